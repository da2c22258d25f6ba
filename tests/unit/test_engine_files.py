"""The engine files of SGLang, vLLM, TensorRT-LLM and transformers: argv as these engines want it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpurun_host import ENGINES as LOOKED_FOR

from gpurun.engines import engine_names, flags_argv, load_engine

ENGINES = ("sglang", "vllm", "trtllm", "transformers")


@pytest.mark.parametrize(
    ("engine", "flags", "argv"),
    [
        ("sglang", {"tp": 2, "mem-fraction-static": 0.85}, ["--tp-size", "2", "--mem-fraction-static", "0.85"]),
        ("sglang", {"tensor_parallel_size": 4}, ["--tp-size", "4"]),
        ("sglang", {"disable-radix-cache": True, "enable-metrics": None}, ["--disable-radix-cache"]),
        ("sglang", {"enable-fused-qk-norm-rope": False}, ["--no-enable-fused-qk-norm-rope"]),
        ("sglang", {"cuda-graph-bs-decode": [1, 2, 4]}, ["--cuda-graph-bs-decode", "1", "2", "4"]),
        ("sglang", {"json-model-override-args": {"a": 1}}, ["--json-model-override-args", '{"a":1}']),
        ("vllm", {"tp": 2, "max_model_len": "16k"}, ["--tensor-parallel-size", "2", "--max-model-len", "16k"]),
        ("vllm", {"enable-prefix-caching": False}, ["--no-enable-prefix-caching"]),
        ("vllm", {"sc": {"method": "ngram"}}, ["--speculative-config", '{"method":"ngram"}']),
        ("vllm", {"compilation-config.mode": 3}, ["--compilation-config.mode", "3"]),
        ("trtllm", {"tp": 2, "max_batch_size": 64}, ["--tp_size", "2", "--max_batch_size", "64"]),
        ("trtllm", {"backend": "pytorch", "trust_remote_code": True}, ["--backend", "pytorch", "--trust_remote_code"]),
        ("transformers", {"continuous-batching": True}, ["--continuous-batching"]),
        ("transformers", {"cb-use-cuda-graph": False}, ["--no-cb-use-cuda-graph"]),
    ],
)
def test_flags_become_the_engines_own_argv(engine: str, flags: dict[str, Any], argv: list[str]) -> None:
    assert flags_argv(load_engine(engine).flags, flags) == argv


@pytest.mark.parametrize(("engine", "flag"), [("sglang", "enable-metrics"), ("trtllm", "trust_remote_code")])
def test_a_flag_that_can_only_be_set_refuses_false(engine: str, flag: str) -> None:
    with pytest.raises(ValueError, match="no negative form"):
        flags_argv(load_engine(engine).flags, {flag: False})


@pytest.mark.parametrize("name", ENGINES)
def test_the_file_keeps_the_contract(name: str) -> None:
    engine = load_engine(name)
    assert engine.name == name
    commands = [argv for argv in (engine.command.env, engine.command.binary) if argv]
    assert commands, "it can be started in one way at least"
    for argv in commands:
        assert "{{ port }}" in argv
        assert "{{ bind }}" in argv
        assert "{{ model.path }}" in argv
    assert bool(engine.command.env) is bool(engine.install)
    assert {"host", "port"} <= set(engine.flags.reserved)
    assert engine.ready.generate is not None, "only a generation proves that a server is ready"
    assert engine.ready.answer


def test_a_hosts_own_programs_are_looked_for() -> None:
    assert {load_engine(name).binary for name in engine_names()} - {None} == set(LOOKED_FOR)


@pytest.mark.parametrize("name", ["sglang", "vllm", "trtllm"])
def test_metric_names_carry_the_engines_prefix(name: str) -> None:
    metrics = load_engine(name).metrics
    assert metrics is not None
    prefix = "trtllm_" if name == "trtllm" else f"{name}:"
    assert all(metric.startswith(prefix) for metric in [*metrics.names.values(), *metrics.gauges.values()])
    wanted = {"prompt_tokens", "output_tokens", *({"preemptions"} if name != "trtllm" else ())}
    assert wanted <= set(metrics.names)
