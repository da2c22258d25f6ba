"""The checks by which a load is a measurement, each seen to pass and to fail; and the answers of a server."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

from gpurun.counters import change, read
from gpurun.engines import engine_names, load_engine
from gpurun.parsers import ParsedLoad
from gpurun.validity import accept_length, ask, checks, sanity

SPEC: dict[str, Any] = {
    "load": {"concurrency": 4},
    "requests": 32,
    "duration_s": None,
    "warmup": 4,
    "data": {"kind": "synthetic", "prompt_tokens": 256, "output_tokens": 64},
    "extra_body": {"ignore_eos": True},
}
METRICS = {
    "output_tokens": 32 * 64.0,
    "prompt_tokens": 32 * 256.0,
    "duration_s": 8.0,
    "client_cpu_s": 0.5,
    "ttft_mean_ms": 55.0,
    "itl_mean_ms": 15.0,
    "e2e_mean_ms": 1000.0,
    "e2e_p50_ms": 1000.0,
    "e2e_p99_ms": 1100.0,
}
GAINED = {"output_tokens": 36 * 64.0, "prompt_tokens": 36 * 256.0, "preemptions": 0.0, "cached_tokens": 36 * 16.0}


def found(
    spec: dict[str, Any] | None = None,
    gained: dict[str, float] | None = None,
    *,
    completed: int = 32,
    failed: int = 0,
    warm: int | None = 4 * 64,
    parser: str = "builtin",
    **metrics: float | None,
) -> list[str]:
    known = {name: value for name, value in {**METRICS, **metrics}.items() if value is not None}
    parsed = ParsedLoad(known, completed, failed, [], [], False, warmup_tokens=warm)
    planned = {"spec": {**SPEC, **(spec or {})}, "parser": parser}
    return [f"{each.check} {each.weight}" for each in checks(planned, parsed, {**GAINED, **(gained or {})})]


def test_a_good_load_passes() -> None:
    assert found() == []
    assert found(warm=None) == []
    assert found(parser="vllm") == []
    assert found(prompt_tokens=32 * 300.0) == []  # a chat template


@pytest.mark.parametrize(
    ("said", "case"),
    [
        ("requests fails", {"completed": 31, "output_tokens": 31 * 64.0, "gained": {"output_tokens": 35 * 64.0}}),
        ("duration fails", {"spec": {"requests": None, "duration_s": 10.0}}),
        ("output_tokens fails", {"output_tokens": 1900.0, "gained": {"output_tokens": 1900.0 + 256}}),
        (
            "output_tokens fails",
            {"spec": {"extra_body": {}}, "output_tokens": 2100.0, "gained": {"output_tokens": 2356.0}},
        ),
        ("text fails", {"ttft_mean_ms": None}),
        ("server_tokens fails", {"gained": {"output_tokens": 36 * 64 * 1.03}}),
        ("server_tokens fails", {"gained": {"output_tokens": 2480.0}, "warm": None}),
        ("server_tokens fails", {"gained": {"output_tokens": 36 * 64 * 0.97}}),
        ("server_tokens fails", {"gained": {"output_tokens": 2000.0}, "warm": None}),
        ("server_counters fails", {"gained": {"output_tokens": -5.0}}),
        ("concurrency fails", {"duration_s": 16.0}),
        ("client_cpu fails", {"client_cpu_s": 7.9}),
        ("prompt_tokens taints", {"prompt_tokens": 32 * 400.0}),
        ("prompt_tokens taints", {"prompt_tokens": 32 * 200.0}),
        ("prefix_cache fails", {"gained": {"cached_tokens": 32 * 120.0}}),
        ("prefix_cache fails", {"gained": {"cache_hits": 32 * 240.0, "cached_tokens": 32 * 240.0}}),
        ("times fails", {"itl_mean_ms": 4.0, "parser": "vllm"}),
        ("times fails", {"e2e_p50_ms": 1200.0}),
        ("accept_length fails", {"accept_length": 0.5}),
        ("accept_length fails", {"accept_length": 4.5, "gained": {"drafts": 100.0, "draft_tokens": 300.0}}),
        ("preemptions taints", {"gained": {"preemptions": 3.0}}),
    ],
)
def test_each_check_names_itself(said: str, case: dict[str, Any]) -> None:
    assert found(**case) == [said]


@pytest.mark.parametrize(
    "case",
    [
        {"output_tokens": 32 * 64 * 0.985, "gained": {"output_tokens": 36 * 64 * 0.985}},
        {"gained": {"output_tokens": 2400.0}, "warm": None},
        {"prompt_tokens": 32 * 340.0, "gained": {"cached_tokens": 32 * 85.0}},
        {"spec": {"requests": None, "duration_s": 8.2}},
        {"e2e_mean_ms": 1150.0, "parser": "vllm"},
        {"e2e_mean_ms": None, "duration_s": 16.0},
        {"client_cpu_s": 7.5},
    ],
    ids=lambda case: ", ".join(case),
)
def test_what_is_a_little_off_passes(case: dict[str, Any]) -> None:
    assert found(**case) == []


def test_a_tool_without_a_server_is_not_held_to_its_counters() -> None:
    parsed = ParsedLoad(dict(METRICS), 32, 0, [], [], False)
    assert list(checks({"spec": SPEC, "parser": "llama", "serves": False}, parsed, {"output_tokens": 5.0})) == []


def test_what_failed_may_have_been_counted_by_the_server() -> None:
    assert found(completed=30, failed=2, output_tokens=30 * 64.0, prompt_tokens=30 * 256.0) == []


def test_a_load_that_ends_with_lone_requests_reached_its_concurrency() -> None:
    assert found({"requests": 5}, {"output_tokens": 9 * 64.0, "cached_tokens": 0}, completed=5, output_tokens=5 * 64.0,
                 prompt_tokens=5 * 256.0, duration_s=2.0) == []  # fmt: skip


def test_lengths_that_nobody_fixed_are_not_checked() -> None:
    free = {"extra_body": {}}
    assert found(free, {"output_tokens": 1256.0}, output_tokens=1000.0) == []


PAGE = """# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="tiny"} 1.5e3
vllm:generation_tokens_total{engine="1",model_name="tiny"} 500.0
vllm:num_preemptions_total{engine="0",model_name="a } b"} 2.0
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 4.0
vllm:kv_cache_usage_perc{engine="0"} NaN
"""


def test_counters_are_summed_over_their_labels() -> None:
    metrics = load_engine("vllm").metrics
    assert metrics is not None
    after = read(PAGE, metrics.names)
    assert (after["output_tokens"], after["preemptions"]) == (2000.0, 2.0)
    assert change({"output_tokens": 500.0, "gone": 1.0}, after) == {"output_tokens": 1500.0}
    assert read("<html>404</html>", metrics.names) == {}


def test_acceptance_from_the_servers_counters() -> None:
    assert accept_length({"drafts": 100.0, "accepted_tokens": 250.0}, {}) == {"accept_length": 3.5}
    assert accept_length({"verify_calls": 100.0, "output_tokens": 310.0}, {"accept_length": 9.0}) == {
        "accept_length": 3.1
    }
    assert accept_length({}, {"accept_length": 2.8}) == {"accept_length": 2.8}
    assert accept_length({"drafts": 0.0}, {"accept_length": 0.0}) == accept_length({}, {}) == {}


# As SGLang 0.5.23 prints them with two data-parallel ranks (other lines left out).
SGLANG_PAGE = """# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{dp_rank="0",engine_type="unified",model_name="m",tp_rank="0"} 2.7
sglang:spec_accept_length{dp_rank="1",engine_type="unified",model_name="m",tp_rank="1"} 2.9
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{model_name="m"} 50.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 150.0
"""


def test_gauges_are_means_over_their_labels() -> None:
    metrics = load_engine("sglang").metrics
    assert metrics is not None
    assert read(SGLANG_PAGE, metrics.gauges, statistics.fmean)["accept_length"] == pytest.approx(2.8)
    assert accept_length(read(SGLANG_PAGE, metrics.names), {}) == {"accept_length": 3.0}


def answers(*texts: str | None) -> bytes:
    said = [None if text is None else {"choices": [{"message": {"content": text}}]} for text in texts]
    return json.dumps({"answers": said}).encode()


RIGHT = answers("The sea is a wide blue world of waves.", "Paris.", "4", "Cold", "Earth")


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        (RIGHT, RIGHT, []),
        (answers("The sea is a wide blue world.", "Paris", "It is 5", "cold", "Mars"), RIGHT, []),
        (answers("!!!!", "!!!!!", "!!!!", "!!!", "!!!"), RIGHT, ["fails"]),
        (answers(None, None, None, None, None), RIGHT, ["fails"]),
        (answers("Waves roll endlessly.", "Paris", "4", "cold", "Earth"), RIGHT, ["taints"]),
        (RIGHT, answers(None, "Paris", "4", "cold", "Earth"), []),  # on a busy host an answer may come too late
        (answers("x", "y", "z", "z", "z"), answers("a", "b", "c", "c", "c"), []),  # a random model knows nothing
        (RIGHT, None, []),
        (None, RIGHT, []),
        (b"{", RIGHT, []),
    ],
)
def test_garbage_is_no_measurement(mine: bytes | None, theirs: bytes | None, said: list[str]) -> None:
    assert [each.weight for each in sanity(mine, theirs)] == said


def test_every_question_is_asked_without_chance() -> None:
    bodies = ask("m")["bodies"]
    assert len(bodies) == 5 and all(body["temperature"] == 0 and body["model"] == "m" for body in bodies)


def test_engines_that_are_asked_speak_openais_chat() -> None:
    assert {name for name in engine_names() if load_engine(name).asks} == {"llamacpp", "sglang", "vllm"}
