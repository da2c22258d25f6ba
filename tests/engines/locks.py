"""Makes the locks that environments on hosts are installed from, with uv: versions and checksums of everything.

    python -m tests.engines.locks [NAME...]

One lock serves Linux on x86_64 and aarch64 and every Python that the packages have builds for. Checksums are of the
wheels for these, so that whatever index or wheelhouse a site uses, its files are those that were locked.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomllib
from packaging.utils import parse_wheel_filename

from gpurun.engines import engine_names, load_engine
from gpurun.template import render

ROLES = Path(__file__).parents[2] / "roles"
PYTHON = "3.11"  # the oldest that both vLLM and SGLang have
# What a JIT compiler of an engine needs of CUDA beside what the engine's own packages bring.
CUDA = "cuda-toolkit[nvcc,cudart,cccl,curand]=={version}.*"
# Where an engine brings nvcc (humming-kernels asks for any), it and CCCL are those of the toolkit whose headers torch
# brings: others refuse each other ("CUDA compiler and CUDA toolkit headers are incompatible").
OF_TORCH = "cuda-toolkit[nvcc,cccl]"
_LINUX = "sys_platform == 'linux' and platform_machine == '{}' and platform_python_implementation == 'CPython'"
_SETTINGS = f"[tool.uv]\nenvironments = {[_LINUX.format(machine) for machine in ('x86_64', 'aarch64')]}\n"
_HERE = "platform_python_implementation == 'CPython' and sys_platform == 'linux'"
_EVERYWHERE = (  # what uv writes to say that a package is for all of these
    f"((platform_machine == 'aarch64' and {_HERE}) or (platform_machine == 'x86_64' and {_HERE}))",
    f"(platform_machine == 'aarch64' or platform_machine == 'x86_64') and {_HERE}",
    f" and {_HERE}",
    f"python_full_version >= '{PYTHON}'",
)


def wanted() -> Iterator[tuple[Path, list[str]]]:
    """Each lock, and the requirements that it is made from."""
    for name in engine_names():
        install = load_engine(name).install
        for version in install.locked if install else ():
            packages = [render(one, {"engine": {"version": version}}) for one in install.packages]
            packages += [OF_TORCH] if install.prefetch else []
            yield ROLES / f"engine/files/locks/{name}-{version}.txt", packages
    for version in ("13.0", "13.5"):
        yield ROLES / f"cuda/files/cuda-{version}.txt", [CUDA.format(version=version)]


def lock(requirements: list[str]) -> str:
    """The lines of a requirements file with versions and checksums."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pyproject.toml").write_text(_SETTINGS)
        Path(folder, "wanted.in").write_text("\n".join(requirements))
        uv = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "wanted.in", "--quiet", "--universal"]
        options = ["--python-version", PYTHON, "--format", "pylock.toml", "--generate-hashes", "-o", "pylock.toml"]
        subprocess.run([*uv, *options], cwd=folder, check=True)
        made = tomllib.loads(Path(folder, "pylock.toml").read_text())
    return "".join(f"{line}\n" for package in made["packages"] for line in _lines(package))


def _lines(package: Mapping[str, Any]) -> Iterator[str]:
    marker = package.get("marker", "")
    for said in _EVERYWHERE:
        marker = marker.replace(said, "").removeprefix(" and ").removesuffix(" and ")
    files = [one for one in package.get("wheels", ()) if _fits(one["url"].rpartition("/")[2])]
    hashes = sorted({one["hashes"]["sha256"] for one in files or [package["sdist"]]})
    head = f"{package['name']}=={package['version']}" + (f" ; {marker}" if marker else "")
    yield " \\\n".join([head, *(f"    --hash=sha256:{one}" for one in hashes)])


def _fits(wheel: str) -> bool:
    for tag in parse_wheel_filename(wheel)[3]:
        number = tag.interpreter[2:]
        python = "py3" in tag.interpreter or tag.abi == "abi3" or (number.isdigit() and int(number) >= 311)
        linux = re.fullmatch(r"any|(many)?linux.*_(x86_64|aarch64)", tag.platform)
        if python and linux and not tag.abi.endswith("t"):  # not of the Pythons without a global lock
            return True
    return False


def main() -> None:
    """See the module's docstring."""
    for path, requirements in wanted():
        if not sys.argv[1:] or path.stem in sys.argv[1:]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(lock(requirements))
            print(path)


if __name__ == "__main__":
    main()
