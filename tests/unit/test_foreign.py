"""Results of other load tools: what they really wrote, in our metrics, beside their own figures for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError
from gpurun.fields import METRICS
from gpurun.foreign import parse

FOLDER = Path(__file__).parents[1] / "fixtures" / "tools"
SPEC: dict[str, Any] = {
    "load": {"concurrency": 2},
    "requests": 8,
    "data": {"kind": "synthetic", "prompt_tokens": 32, "output_tokens": 16},
}
FILES = {"sglang": "sglang.jsonl", "vllm": "vllm.json", "guidellm": "guidellm.json", "aiperf": "aiperf.jsonl"}


def planned(parser: str, **more: Any) -> dict[str, Any]:
    return {"tool": parser, "parser": parser, "spec": SPEC, **more}


def recorded(parser: str) -> str:
    return (FOLDER / FILES[parser]).read_text()


@pytest.mark.parametrize("parser", FILES)
def test_each_tool_gives_the_same_names(parser: str) -> None:
    parsed = parse(planned(parser), recorded(parser))
    assert (parsed.completed, parsed.failed, parsed.problems, parsed.errors) == (8, 0, [], [])
    wanted = set(METRICS) - {"accept_length", "energy_j_per_tok"}
    missing = {f"itl_p{part}_ms" for part in (50, 90, 99)} if parser == "guidellm" else set()
    assert wanted - set(parsed.metrics) == missing
    assert parsed.metrics["output_tokens"] == 8 * 16
    assert parsed.metrics["prompt_tokens"] == 8 * 32
    assert (parsed.window is None) == (parser in ("sglang", "vllm"))  # they tell no wall clock


@pytest.mark.parametrize("parser", ["vllm", "guidellm", "aiperf"])
def test_the_stubs_timetable_is_found_again(parser: str) -> None:
    metrics = parse(planned(parser), recorded(parser)).metrics
    assert 50 <= metrics["ttft_p50_ms"] < 120  # first token after 50 ms, the rest is the client's, on a busy machine
    assert metrics["tpot_p50_ms"] == pytest.approx(5, rel=0.05)
    assert metrics["itl_mean_ms"] == pytest.approx(5, rel=0.1)
    assert metrics["e2e_p50_ms"] == pytest.approx(metrics["ttft_p50_ms"] + 75, rel=0.05)
    assert 100 < metrics["output_tok_per_s"] < 2 * 16 / 0.125


def test_sglangs_own_figures() -> None:
    own = json.loads(recorded("sglang"))
    metrics = parse(planned("sglang"), recorded("sglang")).metrics
    for name, theirs in (
        ("ttft_mean_ms", "mean_ttft_ms"),
        ("ttft_p99_ms", "p99_ttft_ms"),
        ("tpot_p50_ms", "median_tpot_ms"),
    ):
        assert metrics[name] == pytest.approx(own[theirs])
    assert metrics["output_tok_per_s"] == pytest.approx(own["output_throughput"])
    assert metrics["total_tok_per_s"] == pytest.approx(own["total_throughput"])


def test_vllms_own_figures() -> None:
    own = json.loads(recorded("vllm"))
    metrics = parse(planned("vllm"), recorded("vllm")).metrics
    for name in ("ttft", "tpot", "itl"):
        assert metrics[f"{name}_mean_ms"] == pytest.approx(own[f"mean_{name}_ms"], rel=1e-6)
        assert metrics[f"{name}_p99_ms"] == pytest.approx(own[f"p99_{name}_ms"], rel=1e-6)
    assert metrics["output_tok_per_s"] == pytest.approx(own["output_throughput"])


def test_guidellms_time_per_output_token_is_ours_without_the_first_token() -> None:
    own = json.loads(recorded("guidellm"))["benchmarks"][0]["metrics"]
    metrics = parse(planned("guidellm"), recorded("guidellm")).metrics
    assert metrics["ttft_mean_ms"] == pytest.approx(own["time_to_first_token_ms"]["successful"]["mean"])
    assert metrics["itl_mean_ms"] == pytest.approx(own["inter_token_latency_ms"]["successful"]["mean"])
    assert own["time_per_output_token_ms"]["successful"]["mean"] > 1.5 * metrics["tpot_mean_ms"]


def test_what_failed_counts_as_failed() -> None:
    own = json.loads(recorded("vllm"))
    own["errors"][0], own["output_lens"][0], own["itls"][0] = "HTTP 500", 0, []
    parsed = parse(planned("vllm"), json.dumps(own))
    assert (parsed.completed, parsed.failed, parsed.errors) == (7, 1, ["HTTP 500"])
    assert parsed.metrics["error_rate"] == 1 / 8


def test_waiting_for_a_place_counts_at_a_rate() -> None:
    own = json.loads(recorded("vllm"))
    own["queue_times"] = [2.0] * 8
    paced = planned("vllm", spec={**SPEC, "load": {"request_rate": 5.0}})
    late, plain = (parse(one, json.dumps(own)).metrics for one in (paced, planned("vllm")))
    assert late["ttft_p50_ms"] == pytest.approx(plain["ttft_p50_ms"] + 2000)
    assert late["e2e_p50_ms"] == pytest.approx(plain["e2e_p50_ms"] + 2000)


def test_a_peak_below_the_mean_is_told() -> None:
    own = {**json.loads(recorded("sglang")), "max_output_tokens_per_s": 0.1, "accept_length": 3.5}
    parsed = parse(planned("sglang"), json.dumps(own))
    assert "below its mean" in parsed.notes[0] and parsed.metrics["accept_length"] == 3.5


def test_llama_bench() -> None:
    metrics = parse(planned("llama_bench"), (FOLDER / "llama-bench.txt").read_text()).metrics
    assert metrics["output_tok_per_s"] == 100.01
    assert metrics["tpot_mean_ms"] == pytest.approx(10) and metrics["tpot_p50_ms"] == pytest.approx(10)
    assert metrics["ttft_p50_ms"] == pytest.approx(70) and metrics["output_tokens"] == 3 * 128


@pytest.mark.parametrize(
    ("kind", "text", "place"),
    [
        ("json", '{"runs": [{"tok/s": 3}, {"tok/s": 41.5}]}', "runs.1.tok/s"),
        ("json", '{"a.b": 41.5}', "a.b"),
        ("jsonl", '{"x": 1}\n{"x": 41.5}\n\n', "x"),
        ("csv", "name,x\none,1\ntwo,41.5\n", "x"),
        ("text", "speed: 1 tok/s\nspeed: 41.5 tok/s\n", r"speed: ([\d.]+)"),
    ],
)
def test_a_scripts_results(kind: str, text: str, place: str) -> None:
    wanted = {"format": kind, "metrics": {"output_tok_per_s": place}, "scale": {"output_tok_per_s": 2}}
    assert parse(planned("script", parse=wanted), text).metrics == {"output_tok_per_s": 83.0}


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("json", '{"rate": 1}', "there is no `x`; there is rate"),
        ("json", '{"x": "fast"}', "is 'fast' at `x`, which is no number"),
        ("json", '{"x": NaN}', "which is no measurement"),
        ("json", '{"x": ', "cannot be read"),
        ("json", '{"x": -1}', "which is no measurement"),
        ("json", '{"x": true}', "which is no number"),
        ("jsonl", "", "there is no line of results in it"),
        ("csv", "name\none\n", "there is no `x`"),
        ("csv", "name\none,two,three\n", "there is no `x`; there is name"),
        ("csv", "x\n", "there is no line of results in it"),
        ("csv", "x\n" + "1" * 200_000, "field larger than field limit"),
        ("text", "nothing", "nothing matches `x`"),
    ],
)
def test_a_scripts_results_that_are_not_there(kind: str, text: str, said: str) -> None:
    wanted = {"format": kind, "metrics": {"ttft_p50_ms": "x"}, "scale": {}}
    with pytest.raises(GpurunError, match="the output of script cannot be read") as caught:
        parse(planned("script", parse=wanted), text)
    assert said in caught.value.message


def test_a_share_is_no_percentage() -> None:
    wanted = {"format": "json", "metrics": {"error_rate": "x", "ttft_p50_ms": "y"}, "scale": {}}
    with pytest.raises(GpurunError, match="`error_rate` is 5, but a share is at most 1: `scale` it"):
        parse(planned("script", parse=wanted), '{"x": 5, "y": 1}')


def test_a_script_that_measured_nothing_is_no_measurement() -> None:
    parsed = parse(
        planned("script", parse={"format": "json", "metrics": {"ttft_p50_ms": "x"}, "scale": {}}), '{"x": 0}'
    )
    assert not parsed.measured and parsed.problems == ["all its results are 0"]


@pytest.mark.parametrize("parser", [*FILES, "llama_bench"])
def test_damage_is_one_kind_of_error(parser: str) -> None:
    for text in ("", "{}", "[]", "null", '{"benchmarks": [{}]}'):
        with pytest.raises(GpurunError, match="cannot be read"):
            parse(planned(parser), text) if text or parser != "aiperf" else parse(planned(parser), "{")
