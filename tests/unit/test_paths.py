"""Where things lie, and whether a checkout and the installed package are of one commit."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpurun import paths


def test_what_of_a_checkout_differs_from_the_package_is_named(tmp_path: Path) -> None:
    assert paths.differing(paths.content()) == []
    package = Path(paths.__file__).parent
    for name, source in (("roles", paths.content() / "roles"), ("runner/gpurun", package)):
        shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "content"))
    assert paths.differing(tmp_path) == []
    (tmp_path / "roles/run/tasks/read.yml").write_text("---\n")
    (tmp_path / "roles/run/README.md").write_text("other words\n")
    (tmp_path / "runner/gpurun/of_later.py").touch()
    assert paths.differing(tmp_path) == ["roles/run/tasks/read.yml", "runner/gpurun/of_later.py"]
