"""Environments from locks, and packages built in them, through the role `engine` and the real uv."""

from __future__ import annotations

import os
import re
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from tests.ansible.test_engine_role import ROOT, play, tiny, wheel
from tests.engines.locks import wanted

from gpurun.engines import engine_names, load_engine
from gpurun.launch import to_install

LOCKS = [path for path, _ in wanted()]
# A package that cannot be built without what is in the environment, and that keeps what it was built with.
SETUP = """
import os, pathlib, tiny
from setuptools import setup
pathlib.Path("built.py").write_text(f"jobs = {os.environ['MAX_JOBS']!r}; against = {tiny.x!r}")
setup(name="built", version="1.0", py_modules=["built"])
"""


def test_every_lock_is_whole_and_every_locked_version_has_one() -> None:
    there = {*ROOT.glob("roles/engine/files/locks/*"), *ROOT.glob("roles/cuda/files/*.txt")}
    assert there == set(LOCKS)
    for path in LOCKS:
        packages = [line for line in path.read_text().splitlines() if not line.startswith(" ")]
        assert packages and all("==" in line and line.endswith("\\") for line in packages), "a version and a checksum"


@pytest.mark.parametrize("name", [name for name in engine_names() if load_engine(name).install])
def test_what_an_engine_means_without_a_version_is_locked(name: str) -> None:
    engine = load_engine(name)
    told = to_install(engine, engine.default_version, {})
    assert ROOT / "roles/engine/files/locks" / told["lock"] in LOCKS
    assert told["packages"][0].partition("==")[2] == engine.default_version
    assert to_install(engine, "0.1", {})["lock"] is None
    assert to_install(engine, engine.default_version, {"python": {"version": "3.9.21"}})["python"] == "3.12"


def test_llamacpp_from_its_lock(tmp_path: Path) -> None:
    engine = load_engine("llamacpp")
    told = to_install(engine, engine.default_version, {"home": str(tmp_path)})
    variables = {f"engine_{key}": value for key, value in told.items()}
    done = play(tmp_path, "engine", {"gpurun_home": str(tmp_path), **variables})
    assert (done["status"], done["versions"]) == ("complete", {"xllamacpp": engine.default_version})


def test_a_package_that_is_not_the_locked_one_is_refused(tmp_path: Path) -> None:
    env = wheel(tmp_path / "wheels", "tiny", "1.0", {"tiny.py": b"x = 1\n"})
    wrong = tiny(tmp_path, engine_packages=[f"tiny==1.0 --hash=sha256:{'0' * 64}"])
    failed = play(tmp_path, "engine", wrong, env)
    assert "its hash differs" in failed["msg"]


def test_what_brings_nvcc_has_the_headers_of_its_version() -> None:
    """CCCL's headers refuse any other compiler."""
    for path in (path for path in LOCKS if "nvidia-cuda-nvcc" in path.read_text()):
        pins = dict(re.findall(r"(?m)^nvidia-cuda-(nvcc|crt|runtime)==(\d+\.\d+)", path.read_text()))
        assert len(pins) == 3 and len(set(pins.values())) == 1, path


def test_kernels_are_fetched_by_commands_that_want_uv_and_their_failure_is_one_line(tmp_path: Path) -> None:
    env = {**wheel(tmp_path / "wheels", "tiny", "1.0", {"tiny.py": b"x = 1\n"}), "PATH": "/usr/bin:/bin"}
    fetch = ["sh", "-c", "uv pip list -q --python bin/python && echo no kernels for this GPU; exit 1"]
    made = play(tmp_path, "engine", tiny(tmp_path, engine_prefetch=fetch), env)
    assert made["note"] == "nothing was prefetched, so the first start takes longer: no kernels for this GPU"


def test_a_package_is_built_once_with_jobs_bounded_by_memory(tmp_path: Path) -> None:
    env = wheel(tmp_path / "wheels", "tiny", "1.0", {"tiny.py": b"x = 7\n"})
    with tarfile.open(tmp_path / "wheels/built-1.0.tar.gz", "w:gz") as archive:
        for name, text in (("setup.py", SETUP), ("PKG-INFO", "Metadata-Version: 2.1\nName: built\nVersion: 1.0\n")):
            member = tarfile.TarInfo(f"built-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, BytesIO(text.encode()))
    env = {"UV_FIND_LINKS": env["UV_FIND_LINKS"]}  # setuptools comes from the index
    plain = play(tmp_path, "engine", tiny(tmp_path), env)
    wishes = tiny(tmp_path, engine_builds=["setuptools==80.9.0", "built==1.0"])
    built = play(tmp_path, "engine", wishes, env)
    assert (built["changed"], built["dir"]) == (True, plain["dir"]), "in the environment that was there"
    found = (Path(built["dir"]) / "lib").glob("python*/site-packages/built.py")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 33
    most = max(1, min(len(os.sched_getaffinity(0)) // 2, memory))
    assert next(found).read_text() in [f"jobs = '{jobs}'; against = 7" for jobs in range(1, most + 1)]
    assert play(tmp_path, "engine", wishes, env)["changed"] is False
    assert play(tmp_path, "engine", tiny(tmp_path), env)["changed"] is False, "whoever wants less takes it as it is"
