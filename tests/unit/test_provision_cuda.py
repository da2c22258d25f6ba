"""CUDA, engines and models: what is decided for them, and how what was tried is judged."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.test_provisioning import INDEX, facts, with_driver

from gpurun.environments import check_cuda, decide, engines_on, models_on
from gpurun.errors import ConfigError
from gpurun.provisioning import Step
from gpurun.provisioning import decide as decide_system
from gpurun.target import Wanted
from gpurun.verification import engine_checks, judge

CUDA = {
    **INDEX,
    "packages": {**INDEX["packages"], "cuda-toolkit-13-0": ["13.0.1-1", "13.0.3-1"], "cuda-13-0": ["13.0.3-1"]},
}
HOST: dict[str, Any] = {"home": "/h", "user": "u", "home_writable": True, "disk_free_bytes": 10 << 30}
SMI = {"error": None, "versions": ["580.95.05"], "fabric": []}
GPU = {"name": "B", "arch": "sm_120", "error": None, "kernel": True}


def test_cuda_is_the_toolkit_and_nothing_that_brings_a_driver() -> None:
    wanted = Wanted(driver=False, cuda="13.0")
    first = decide_system(facts(), wanted)
    assert first.look is not None
    decision = decide_system(facts(), wanted, CUDA)
    assert [step.role for step in decision.steps] == ["repository", "cuda"]
    assert decision.cuda["specs"] == ["cuda-toolkit-13-0=13.0.3-1"]
    there = facts(packages={"cuda-toolkit-13-0": {"version": "13.0.3-1", "state": "installed", "maker": ""}})
    assert decide_system(there, wanted).steps == []
    interrupted = {**there, "ledger": {"cuda": {"before": []}}}
    assert [step.role for step in decide_system(interrupted, wanted, CUDA).steps][-1] == "cuda"


@pytest.mark.parametrize(
    ("known", "wanted", "check"),
    [
        (facts(), Wanted(driver=False, cuda="13.7"), "cuda"),
        (facts("1db4"), Wanted(driver=False, cuda="13.0"), "cuda"),
        (facts(disk_free={"/usr": 10 << 30, "/var": 50 << 30, "/boot": 1 << 30}), Wanted(cuda="13.0"), "disk"),
        (facts(os={"id": "sles"}), Wanted(driver=False, cuda="13.0"), "system"),
    ],
)
def test_what_cuda_cannot_be_is_refused(known: Any, wanted: Wanted, check: str) -> None:
    assert check in [one.check for one in decide_system(known, wanted, CUDA).refusals]


def test_removing_something_else_does_not_judge_the_driver() -> None:
    known = with_driver(ledger={"cuda": {"packages": ["cuda-toolkit-13-0"], "files": []}})
    decision = decide_system(known, Wanted(remove=("cuda", "engine")))
    assert decision.remove == {"cuda": {"packages": ["cuda-toolkit-13-0"], "files": []}}


def test_an_engine_is_its_default_version_or_the_one_asked_for() -> None:
    locked, other = engines_on({"home": "/h"}, ["vllm", "vllm==0.1"], {"vllm": ["flash-attn==2.8.3"]}, gpus=True)
    assert (locked["lock"], locked["builds"], locked["prefetch"][1]) == (
        "vllm-0.33.0.txt",
        ["flash-attn==2.8.3"],
        "download-kernels",
    )
    assert (other["lock"], other["packages"]) == (None, ["vllm==0.1"])
    assert engines_on({}, ["vllm"], {}, gpus=False)[0]["prefetch"] == []


@pytest.mark.parametrize("model", [{}, {"hf": "a/b"}, {"url": "https://x.example/m.gguf"}, {"hf": "a/b", "sha": "x"}])
def test_a_model_that_is_not_pinned_is_refused(model: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="model"):
        models_on({}, [model])


def test_mistakes_are_told_before_any_host_is_asked() -> None:
    with pytest.raises(ConfigError, match="no engine `nope`"):
        engines_on({}, ["nope"], {}, gpus=False)
    with pytest.raises(ConfigError, match=r"CUDA 12\.8"):
        check_cuda("12.8")


@pytest.mark.parametrize(
    ("host", "gib", "remove", "held", "check"),
    [
        (HOST, 11.0, [], False, "disk"),
        (HOST, 0.0, ["/h/engines/x"], True, "in_use"),
        ({**HOST, "home_writable": False}, 1.0, [], False, "home"),
    ],
)
def test_what_cannot_be_is_refused(host: Any, gib: float, remove: list[str], held: bool, check: str) -> None:
    missing = [Step("engine", "install x", "")] if gib else []
    steps, refusals = decide(host, missing, gib, remove, held)
    assert steps and [one.check for one in refusals] == [check]
    assert decide(HOST, missing, min(gib, 9.0), remove, False)[1] == []


def found(*gpus: str, **changes: Any) -> dict[str, Any]:
    known = {
        "system": with_driver() if not gpus else {**with_driver(), "pci": facts(*gpus)["pci"]},
        "nvidia_smi": SMI,
        "cuda": {"error": None, "devices": [GPU]},
        "services": {},
        "nvcc": {"home": "/c", "version": "13.0.88", "error": None, "compiled": ["sm_120"]},
        "engines": [{"name": "vllm", "version": "1", "error": None, "note": ""}],
    }
    return {**known, **changes}


def test_all_is_well() -> None:
    status = {one.check: one.status for one in judge(found())}
    assert status.pop("fabric") == "skipped"
    assert set(status.values()) == {"ok"}


SWITCHED = ("2330", "22a3:0680")
UP = {"nvidia-fabricmanager": "active"}


@pytest.mark.parametrize(
    ("check", "known"),
    [
        ("versions", found(nvidia_smi={**SMI, "versions": ["580.95.04"]})),
        ("count", found("2bb5", "2bb5")),
        ("count", found(nvidia_smi={**SMI, "error": "Driver/library version mismatch"})),
        ("context", found(cuda={"error": "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)", "devices": []})),
        ("context", found(cuda={"error": None, "devices": [{**GPU, "error": "cuMemAlloc_v2: error (2)"}]})),
        ("fabric", found(*SWITCHED, services={"nvidia-fabricmanager": "failed"})),
        (
            "fabric",
            found(
                *SWITCHED,
                services={"nvidia-fabricmanager": "active"},
                nvidia_smi={**SMI, "fabric": ["In Progress, N/A"]},
            ),
        ),
        ("nvcc", found(nvcc={"home": "/c", "version": None, "error": "gcc: No such file", "compiled": []})),
        ("kernel", found(cuda={"error": None, "devices": [{**GPU, "kernel": False}]})),
        ("engine", found(engines=[{"name": "vllm", "version": "1", "error": "ImportError", "note": ""}])),
    ],
)
def test_what_does_not_work_fails_its_check_with_a_next_step(check: str, known: dict[str, Any]) -> None:
    failed = {one.check: one.fix for one in judge(known) if one.status == "failed"}
    assert failed.get(check)


def test_a_container_is_judged_by_what_it_was_given() -> None:
    """One of its host's GPUs, by whose bus it sees all of them, and none of its host's services."""
    container = {**with_driver(), "pci": facts(*SWITCHED, "2330")["pci"], "machine": "none"}
    checks = {one.check: (one.status, one.say) for one in judge(found(system=container))}
    assert {status for status, _ in checks.values()} == {"ok"}
    assert checks["count"][1] == "1 in nvidia-smi, of 2 on the PCI bus of this container's host"
    down = found(system=container, nvidia_smi={**SMI, "fabric": ["In Progress, N/A"]})
    assert [one.check for one in judge(down) if one.status == "failed"] == ["fabric"]


def test_without_a_gpu_there_is_nothing_to_try() -> None:
    bare = {**facts(), "pci": []}
    error = {"error": "libcuda.so.1: cannot open", "devices": []}
    checks = judge(found(system=bare, nvidia_smi=None, cuda=error, nvcc=None, engines=[]))
    assert {one.status for one in checks} == {"skipped"}


def test_engines_are_checked_as_when_they_are_installed() -> None:
    assert engine_checks()["vllm"] == ["FOLDER/bin/python", "-c", "import vllm.version"]
    assert engine_checks()["llamacpp"][1] == "FOLDER/llamacpp_server.py"
