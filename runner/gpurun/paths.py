"""Where the playbooks, roles, inventories and campaigns lie: at the top of a checkout, or inside an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def content() -> Path:
    """The folder that holds ansible.cfg, playbooks/, roles/, inventory/ and campaigns/."""
    installed = _PACKAGE / "content"
    return installed if installed.is_dir() else _PACKAGE.parents[1]


def differing(checkout: Path) -> list[str]:
    """What of a checkout whose playbooks are run is otherwise in this package, which came by another way."""
    if content() == checkout:
        return []
    pairs = ((checkout / "roles", content() / "roles"), (checkout / "runner" / "gpurun", _PACKAGE))
    return [
        path.relative_to(checkout).as_posix()
        for theirs, ours in pairs
        for path in sorted(theirs.rglob("*"))
        if path.suffix in (".py", ".yml")
        and not ((other := ours / path.relative_to(theirs)).is_file() and other.read_bytes() == path.read_bytes())
    ]


def find_campaign(name: str) -> Path:
    """A campaign file by its path, or one of those that gpurun ships (`campaigns/quickstart.yml` from any folder)."""
    path = Path(name)
    shipped = content() / name
    return shipped if not path.exists() and not path.is_absolute() and shipped.is_file() else path
