"""Where the playbooks, roles, inventories and campaigns lie: at the top of a checkout, or inside an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def content() -> Path:
    """The folder that holds ansible.cfg, playbooks/, roles/, inventory/ and campaigns/."""
    installed = _PACKAGE / "content"
    return installed if installed.is_dir() else _PACKAGE.parents[1]


def find_campaign(name: str) -> Path:
    """A campaign file by its path, or one of those that gpurun ships (`campaigns/quickstart.yml` from any folder)."""
    path = Path(name)
    shipped = content() / name
    return shipped if not path.exists() and not path.is_absolute() and shipped.is_file() else path
