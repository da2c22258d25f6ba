"""GPU memory around a server: free before its start, back after its end.

A stranger's process is named and never touched. What dead jobs of ours still hold is ended. Memory that does not come
back after a stop belongs to nobody that could be asked: whatever is measured on that host afterwards means nothing.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from ansible.module_utils import gpurun_gpus as gpus
from ansible.module_utils.gpurun_jobs import Job, State
from ansible.module_utils.gpurun_processes import belonging, describe, job_of
from ansible.module_utils.gpurun_stop import stop
from ansible.module_utils.gpurun_supervisor import write_state

_POLL_S = 0.25
_NO_GPU = ("", "-1", "NoDevFiles")  # CUDA_VISIBLE_DEVICES that hides all of them
_ANSWER_S = 30.0  # eight GPUs without persistence mode take many seconds to wake
_SETTLE_S = 10.0  # for memory that no process holds: the driver may be giving it back


class Limits(NamedTuple):
    """`free_mib` may be in use on a GPU that counts as free; `drain_s` is the time for memory to come back."""

    free_mib: int
    drain_s: float


def before_start(job: Job, visible: str | None, limits: Limits, may_end: bool) -> tuple[State | None, State]:
    """Why the job must not start (message, holders), or None; and what to remember for after_stop.

    `may_end` says that this run holds the host, so that whatever of ours is on its GPUs is left over, and is ended.
    """
    nvidia_smi = gpus.find()
    if nvidia_smi is None or (visible is not None and visible.strip() in _NO_GPU):
        return None, {}
    known: State = {"nvidia_smi": nvidia_smi, "visible": visible}
    until, ended = time.monotonic() + _SETTLE_S, set[tuple[str, str]]()
    while True:
        try:
            reading = gpus.look(nvidia_smi, _ANSWER_S, visible)
        except gpus.HungError as error:
            return {"message": f"nothing started: {error}", "gpu_holders": []}, known
        except gpus.NoGpusError:
            return None, {}  # the preflight tells; a server that needs a GPU will, too
        ours = {process.pid: job_of(job.home, process.pid) for process in belonging(job.home)}
        left = {known_job for holder in reading.holders if (known_job := ours.get(holder.pid))} - ended
        if may_end and left:
            for run, name in left:
                stop(job.home, run, name)
            ended |= left
            until = time.monotonic() + limits.drain_s
            continue
        holders = [_facts(holder) for holder in reading.holders if _much(holder, limits)]
        if holders:
            return {"message": _refusal(holders), "gpu_holders": holders}, known
        unexplained = _unexplained(reading, set())
        if all(mib <= limits.free_mib for mib in unexplained.values()):
            return None, {**known, "before_mib": {str(index): mib for index, mib in unexplained.items()}}
        if time.monotonic() > until:
            held = _listed(unexplained, limits.free_mib)
            message = f"nothing started: {held} in use, by no process that can be seen from here: free it (another "
            message += "container, a desktop, a process that hangs in the driver), or leave that GPU out"
            return {"message": message, "gpu_holders": []}, known
        time.sleep(_POLL_S)


def after_stop(job: Job, limits: Limits) -> str | None:
    """Waits for the job's GPU memory to come back; a sentence about what has not within the deadline. Once per job."""
    known = (job.asked or {}).get("gpus") or {}
    if "before_mib" not in known or job.read("drained") is not None:
        return None
    before = {int(index): mib for index, mib in known["before_mib"].items()}
    until = time.monotonic() + limits.drain_s
    while True:
        trouble = _not_back(job.home, known, before, limits)
        if trouble is None or time.monotonic() > until:
            break
        time.sleep(_POLL_S)
    if trouble is not None:
        trouble = f"{limits.drain_s:g} s after the end of {job.name}, {trouble}"
    write_state(job.directory / "drained.json", {"gpu_memory_left": trouble})
    return trouble


def _not_back(home: Path, known: State, before: dict[int, int], limits: Limits) -> str | None:
    try:
        reading = gpus.look(known["nvidia_smi"], _ANSWER_S, known["visible"])
    except gpus.NoGpusError as error:
        return str(error)
    ours = {process.pid for process in belonging(home)}
    grown = {
        index: mib for index, mib in _unexplained(reading, ours).items() if mib > before.get(index, 0) + limits.free_mib
    }
    if not grown:
        return None
    was = ", ".join(f"{before.get(index, 0)} MiB on GPU {index}" for index in grown)
    return f"{_listed(grown, 0)} still in use (before it: {was})"


def _unexplained(reading: gpus.Reading, ours: set[int]) -> dict[int, int]:
    """MiB in use on each GPU that no process but `ours` is seen to hold."""
    used = {gpu.index: gpu.used_mib for gpu in reading.gpus}
    left = {index: mib or 0 for index, mib in used.items()}
    for holder in reading.holders:
        if holder.pid not in ours and used[holder.gpu] is not None:
            left[holder.gpu] -= holder.mib or 0
        elif holder.pid in ours and used[holder.gpu] is None:  # unified memory: only processes can be counted
            left[holder.gpu] += holder.mib or 0
    return {index: max(0, mib) for index, mib in left.items()}


def _much(holder: gpus.Holder, limits: Limits) -> bool:
    return holder.mib is None or holder.mib > limits.free_mib


def _facts(holder: gpus.Holder) -> State:
    return {"gpu": holder.gpu, "memory_mib": holder.mib, **describe(holder.pid)}


def _refusal(holders: list[State]) -> str:
    named = [
        f"GPU {one['gpu']}: {one['command'] or 'a process'} (pid {one['pid']}, user {one['user'] or 'unknown'}, "
        f"{'unknown memory' if one['memory_mib'] is None else str(one['memory_mib']) + ' MiB'})"
        for one in holders
    ]
    return f"nothing started: GPU memory is held by {'; '.join(named)}: end it, or leave that GPU out"


def _listed(mib: dict[int, int], above: int) -> str:
    named = [f"{much} MiB of GPU {index}" for index, much in mib.items() if much > above]
    return f"{', '.join(named)} {'is' if len(named) == 1 else 'are'}"
