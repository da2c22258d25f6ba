"""What a start leaves: the prediction beside the engine's own numbers, the settings three ways, no secret in either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.module_utils import gpurun_model_headers
from tests.unit import stored
from tests.unit.models import LLAMA_8B, write

from gpurun import started
from gpurun.assess import assess
from gpurun.engines import load_engine
from gpurun.samples import Sample

SGLANG, VLLM, LLAMACPP = (load_engine(name) for name in ("sglang", "vllm", "llamacpp"))
ANSWER = {
    "tp_size": 2,
    "mem_fraction_static": 0.835,
    "attention_backend": "fa3",
    "api_key": "sk-planted",
    "launch_command": "sglang serve --api-key sk-planted --tp 2",
    "cuda_graph_config": {"decode": {"max_bs": 256, "bs": [1, 2, 4]}},
    "internal_states": [{"last_gen_throughput": 12.5}],
    "random_seed": 17,
    "nccl_port": 12345,
    "max_total_num_tokens": 414769,
}
LOG = """Load weight begin. avail mem=78.58 GB
Load weight end. elapsed=3.5 s, type=LlamaForCausalLM, avail mem=63.55 GB, mem usage=15.02 GB.
max_total_num_tokens=414000, chunked_prefill_size=8192, max_running_requests=2048, context_len=131072
"""


def answer(**changes: Any) -> bytes:
    return json.dumps(ANSWER | changes).encode()


def planned(variant: str, flags: str, **more: Any) -> dict[str, Any]:
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "/m", "--port", "@GPURUN_PORT@", *flags.split()]
    server = {"engine": {"name": "sglang", "version": "0.5.9"}, "argv": argv, "env": {}, "metrics_path": "/metrics"}
    server |= {"model": {"name": "m", "path": "/m"}, "key": variant, "effective": {"path": "/server_info"}}
    return {"id": f"1/{variant}/h", "host": "h", "variant": variant, "axes": {}, "start": True, "server": server} | more


def settings(item: dict[str, Any], said: bytes) -> dict[str, Any]:
    _, kept = started.keep(item, {}, {"effective.json": said, "server.log": b""})
    found: dict[str, Any] = json.loads(kept[started.SETTINGS])
    return found


def test_settings_are_flat_and_without_what_changes_by_itself() -> None:
    found = started.resolved(SGLANG, started.without_secrets(answer()), b"", "")
    assert found == {
        "api_key": "[secret]",
        "attention_backend": "fa3",
        "cuda_graph_config.decode.bs": [1, 2, 4],
        "cuda_graph_config.decode.max_bs": 256,
        "mem_fraction_static": 0.835,
        "tp_size": 2,
    }


def test_no_secret_of_an_answer_is_kept() -> None:
    _, kept = started.keep(planned("baseline", ""), {}, {"effective.json": answer(), "server.log": b""})
    assert all(b"sk-planted" not in content for content in kept.values())
    assert json.loads(kept["effective.json"])["attention_backend"] == "fa3"


def test_vllm_tells_its_settings_in_three_places() -> None:
    metrics = b'# HELP x\nvllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="27000"} 1.0\n'
    listed = b'{"object": "list", "data": [{"id": "m", "created": 1, "max_model_len": 8192}]}'
    log = "INFO Using FLASH_ATTN attention backend out of potential backends: ..."
    found = started.resolved(VLLM, listed, metrics, log)
    assert found == {
        "attention_backend": "FLASH_ATTN",
        "block_size": "16",
        "cache_dtype": "auto",
        "data.0.max_model_len": 8192,
    }


def test_a_setting_three_ways() -> None:
    base = started.resolved(SGLANG, answer(), b"", "")
    mine = started.resolved(SGLANG, answer(attention_backend="triton", mem_fraction_static=0.8), b"", "")
    own = {"attention-backend": "flashinfer", "tp-size": "2", "mem-fraction-static": "0.80"}
    found = started.differences(SGLANG, mine, base, own)
    assert [tuple(row) for row in found] == [
        ("attention_backend", "flashinfer", "triton", "fa3"),
        ("mem_fraction_static", "0.80", 0.8, 0.835),
    ]
    [overruled] = started.differences(SGLANG, base, base, {"tp-size": "4"})
    assert overruled == ("tp_size", "4", 2, 2)


def test_the_flags_of_an_argv() -> None:
    argv = ["serve", "/m", "--port", "1", "-tp", "2", "--x=y", "--list", "a", "b", "--bare", "--neg", "-1"]
    assert started.asked(VLLM, argv) == {
        "tensor-parallel-size": "2",
        "x": "y",
        "list": ["a", "b"],
        "bare": True,
        "neg": "-1",
    }


def test_a_variant_that_changed_nothing_is_told_with_the_verdict() -> None:
    plan = [planned("baseline", ""), planned("same", "--attention-backend fa3"), planned("other", "--tp 2")]
    found = {item["id"]: settings(item, answer()) for item in plan[:2]}
    found["1/other/h"] = settings(plan[2], answer(tp_size=4))
    [note] = started.changed_nothing(plan, found)
    assert note == "same: the engine resolved attention-backend to the baseline's settings: it changed nothing"
    lines = list(started.settings_lines(plan, found))
    assert lines == ["other: tp_size: asked 2, resolved 4, baseline 2"]


def test_a_server_that_never_served_has_no_settings_to_compare() -> None:
    plan = [planned("baseline", ""), planned("dead", "--tp 8"), planned("log-only", "--tp 8")]
    found = {item["id"]: settings(item, answer()) for item in plan}
    found["1/dead/h"]["resolved"] = {}
    found["1/log-only/h"]["resolved"] = {"max_total_num_tokens": 7}
    assert [row.setting for row in started.settings_rows(plan, found)["log-only"]] == ["max_total_num_tokens"]
    assert "dead" not in started.settings_rows(plan, found)
    # A baseline that was late in the first round told all in the second.
    late = [{**planned("baseline", ""), "id": f"{number}/baseline/h"} for number in (1, 2)]
    told = {"1/baseline/h": found["1/log-only/h"], "2/baseline/h": settings(plan[0], answer())}
    other = planned("other", "--tp 2")
    told["1/other/h"] = settings(other, answer(tp_size=4))
    assert [row.setting for row in started.settings_rows([*late, other], told)["other"]] == ["tp_size"]


def test_what_the_engine_keeps_to_itself_may_have_changed() -> None:
    plan = [planned("baseline", ""), planned("hidden", "--a-flag-it-does-not-tell 1")]
    assert not list(started.changed_nothing(plan, {item["id"]: settings(item, answer()) for item in plan}))
    assert not list(started.changed_nothing(plan, {}))


def test_the_note_is_among_those_of_a_judged_run() -> None:
    plan, found = stored.plan(), {}
    for item in plan["samples"]:
        item |= {"id": f"{item['round']}/{item['variant']}", "start": True, "server": {"engine": {"name": "sglang"}}}
        asked = {} if item["variant"] == "baseline" else {"attention-backend": item["variant"]}
        backend = "fa3" if item["variant"] in ("baseline", "ngram") else item["variant"]
        found[item["id"]] = {"asked": asked, "resolved": {"attention_backend": backend}}
    told = [note for note in assess(plan, stored.samples(), settings=found).notes if "changed nothing" in note]
    assert [note.partition(":")[0] for note in told] == ["ngram"]


def test_a_prediction_stands_beside_what_the_engine_reports(tmp_path: Path) -> None:
    known = json.dumps(gpurun_model_headers.describe(write(tmp_path, LLAMA_8B))).encode()
    facts = {"gpus": [{"name": "NVIDIA H100 80GB HBM3", "memory_total_mib": 81559}], "host": {"memory_bytes": 2**37}}
    files = {"server.log": LOG.encode(), started.MODEL: known, started.METRICS: b""}
    prediction, kept = started.keep(planned("baseline", ""), facts, files)
    assert set(kept) == {"server.log", started.SETTINGS}
    assert prediction is not None
    gap = prediction["compared"]["kv_tokens"]
    assert gap["reported"] == 414000
    assert abs(gap["error"]) < 0.02
    assert prediction["compared"]["total_gib"]["error"] < 0.01
    sample = Sample.model_validate(_sample(prediction))
    [line] = started.memory_lines([sample])
    assert line.startswith("baseline: ") and "414,000 reported" in line and "look at it" not in line
    far = _sample({"compared": {"kv_tokens": {"predicted": 349377, "reported": 1741, "error": 199.7}}})
    [line] = started.memory_lines([Sample.model_validate(far)])
    assert "look at it" in line


def test_numbers_of_no_use_for_arithmetic_give_no_prediction() -> None:
    item = planned("baseline", "")
    facts = {
        "gpus": [{"name": "NVIDIA H100 80GB HBM3", "memory_total_mib": 81559}],
        "models": {item["server"]["model"]["name"]: {"available_gib": 0, "total_gib": 0}},
    }
    assert started.keep(item, facts, {})[0] is None


def _sample(prediction: dict[str, Any]) -> dict[str, Any]:
    own = {
        "run": "r",
        "variant": "baseline",
        "benchmark": "b",
        "case": "c",
        "round": 1,
        "host": "h",
        "status": "measured",
    }
    return own | {"prediction": prediction}


def test_only_a_start_is_looked_at() -> None:
    later = planned("baseline", "", start=False)
    assert started.wanted(later, {"status": "ready", "port": 1}) == {}
    prediction, kept = started.keep(later, {}, {"server.log": LOG.encode()})
    assert prediction is None and set(kept) == {"server.log"}
    first = planned("baseline", "")
    first["server"]["engine"]["name"] = "vllm"
    assert started.wanted(first, {"status": "ready", "port": 8001}) == {
        "model": "/m",
        "urls": {started.METRICS: "http://127.0.0.1:8001/metrics"},
    }


def test_llamacpp_reports_slots_times_their_context() -> None:
    log = "srv    load_model: initializing, n_slots = 2, n_ctx_slot = 1024, kv_unified = 'false'"
    assert started.reported("llamacpp", log) == {"kv_tokens": 2048}
    assert started.resolved(LLAMACPP, b"", b"", f"{log}\nllama threadpool init, n_threads = 2")["threads"] == "2"
