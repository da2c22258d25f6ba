"""Parts of one run, measured by several jobs on hosts of their own, as one run again. Parts come oldest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpurun.errors import GpurunError
from gpurun.manifest import Manifest, RunStatus
from gpurun.samples import Sample

_COMMON = ("campaign", "rounds", "order", "compare", "cases")
_STATUSES: tuple[RunStatus, ...] = ("running", "failed", "interrupted", "done")  # the first that a part has


def merge_manifests(parts: Sequence[Manifest]) -> Manifest:
    """One manifest: it began with the first part, and has ended when all have. Of a host that several parts name (a
    resumed run had other hosts), the latest counts."""
    latest = {host: part for part in parts for host in part.hosts}
    last = [part for part in parts if part in latest.values()] or list(parts)[-1:]
    ended = [part.ended_at for part in last]
    codes = [part.exit_code for part in last]
    return last[-1].model_copy(
        update={
            "status": next(status for status in _STATUSES if any(part.status_now == status for part in last)),
            "started_at": parts[0].started_at,
            "ended_at": max(map(str, ended)) if None not in ended else None,
            "exit_code": max(code or 0 for code in codes) if None not in codes else None,
            "hosts": {host: part.hosts[host] for host, part in latest.items()},
            "engines": {name: version for part in last for name, version in part.engines.items()},
            "forced": list(dict.fromkeys(rule for part in last for rule in part.forced)),
        }
    )


def merge_plans(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One plan for the hosts of all. GpurunError where they are not of one campaign: nothing could be compared."""
    for part in parts:
        if other := [key for key in _COMMON if part.get(key) != parts[-1].get(key)]:
            message = f"the parts of this run differ in {', '.join(other)}: they are not of one campaign"
            raise GpurunError(message, hint="give each campaign, and each change of it, a run id of its own")
    samples = {sample["id"]: sample for part in parts for sample in part["samples"]}
    estimates = [part["estimate"] for part in parts]
    longest = max(estimates, key=lambda one: float(one["total_s"]))
    sums = {key: sum(one[key] for one in estimates) for key in ("start_s", "load_s", "samples", "starts")}
    joined: dict[str, Any] = {
        key: [item for index, item in enumerate(items) if item not in items[:index]]
        for key in ("hosts", "secrets", "notes", "findings", "forced")
        for items in [[item for part in parts for item in part[key]]]
    }
    merged = {
        key: {name: value for part in parts for name, value in part[key].items()}
        for key in ("engines", "needs", "scripts")
    }
    in_order = sorted(samples.values(), key=lambda sample: int(sample["round"]))
    return {**parts[-1], **joined, **merged, "estimate": {**longest, **sums}, "samples": in_order}


def worse(new: bytes, place: Path) -> bool:
    """Whether the sample at `place`, if there is one, stands against another: what was measured does against a failure,
    else what is later."""
    if not place.is_file():
        return False
    old, other = (Sample.model_validate_json(text) for text in (place.read_bytes(), new))
    return (old.status == "measured", old.started_at) > (other.status == "measured", other.started_at)
