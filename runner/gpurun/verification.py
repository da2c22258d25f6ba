"""What was tried on a host (the module gpurun_verify), judged by data/verification.yml. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpurun.data import table
from gpurun.engines import engine_names, load_engine
from gpurun.hardware import fabric_of, gpus_of
from gpurun.launch import place_of
from gpurun.template import holds, render, render_tree

SERVICES = {"fabricmanager": "nvidia-fabricmanager", "imex": "nvidia-imex"}


@dataclass(frozen=True)
class Check:
    """`say` is what was found; `fix` the next step where it failed. Skipped: there was nothing to try."""

    check: str
    status: Literal["ok", "failed", "skipped"]
    say: str
    fix: str = ""


def engine_checks() -> dict[str, list[str]]:
    """Engine -> the command that must succeed in its environment, which is called FOLDER."""
    found = {}
    for name in engine_names():
        engine = load_engine(name)
        if engine.install and engine.install.check:
            argv = render_tree(engine.install.check, {"engine": place_of(engine, "VERSION", "HOME")})
            found[name] = [word.replace(f"HOME/engines/{name}-VERSION", "FOLDER") for word in argv]
    return found


def judge(found: Mapping[str, Any]) -> list[Check]:
    """Every check of the table."""
    system, cuda, smi = found["system"], found["cuda"], found["nvidia_smi"] or {}
    fabric = fabric_of(system) or {}
    versions = {"module": system["module"]["loaded"], "libcuda": system["userspace"]}
    versions["nvidia-smi"] = next(iter(smi.get("versions", ())), None)
    whole = system["machine"] == "full"  # a container sees its host's whole bus, and none of its services
    gpus, rows = len(gpus_of(system)), len(smi.get("versions", ()))
    services = [SERVICES[key] for key in fabric.get("packages", ()) if key in SERVICES and whole]
    broken = [f"{one['name']}: {one['error']}" for one in cuda["devices"] if one["error"]]
    known = {
        **found,
        "gpus": gpus,
        "given": gpus if whole or not rows else min(gpus, rows),
        "fabric": fabric,
        "services": {name: found["services"].get(name) or "unknown" for name in services},
        "rows": smi.get("fabric", []),
        "versions": {name: version or "none" for name, version in versions.items()},
        "known": [version for version in versions.values() if version],
        "no_context": cuda["error"] or "; ".join(broken),
        "ran": [one["kernel"] for one in cuda["devices"] if one["kernel"] is not None],
    }
    each = ((row, {**known, "one": one}) for row in table("verification") for one in found.get(row.get("each"), [None]))
    return [_judged(row, seen) for row, seen in each]


def _judged(row: Mapping[str, Any], known: Mapping[str, Any]) -> Check:
    one = next(one for one in row["outcomes"] if holds(one.get("when", "true"), known))
    return Check(row["check"], one["status"], render(one["say"], known), render(one.get("fix", ""), known))
