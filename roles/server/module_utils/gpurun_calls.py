"""What the module gpurun_job does on a host, see its documentation: one bounded call."""

from __future__ import annotations

import os
from pathlib import Path

from ansible.module_utils import gpurun_locks as locks
from ansible.module_utils.gpurun_gpu_guard import Limits, after_stop, before_start
from ansible.module_utils.gpurun_jobs import Job, JobError, State, check_name, expand_home, jobs_of
from ansible.module_utils.gpurun_spawn import create
from ansible.module_utils.gpurun_stop import purge, still_there, stop
from ansible.module_utils.gpurun_wait import await_end, await_ready

_DEFAULT_STOP_S = 60.0


def answer(params: State, check_mode: bool, program: str) -> State:
    """The module's answer. `program` is the folder of this code, from which supervisors run."""
    home = expand_home(params["home"])
    try:
        if params["state"] == "stopped":
            if params["run"] != "*":
                check_name(params["run"], "run")
            return _stop(params, check_mode, home)
        job = Job(home, params["run"], params["job"])
        if params["state"] == "info":
            job.wait(params["grace_s"], lambda: False)
            return {"changed": False, "job": job.report()}
        return _run({**params, "program": program}, check_mode, home, job)
    except (JobError, OSError) as error:
        return {"failed": True, "msg": f"job {params['run']}/{params['job']}: {error}"}


def _run(params: State, check_mode: bool, home: Path, job: Job) -> State:
    """Create the job unless it exists, and wait."""
    kind = "server" if params["state"] == "started" else "client"
    held = locks.renew(home, job.run)
    changed = job.asked is None
    if changed and params["require_lock"] and not held:
        lock = locks.holder(home)
        message = f"nothing started: {locks.describe(lock) if lock else f'run {job.run} was stopped on this host'}"
        return _refused(job, "lock_lost", message=message)
    quarantine = locks.quarantined(home, job.run) if changed and kind == "server" else None
    if quarantine:
        return _refused(job, "quarantined", message=f"nothing started: this run is done with this host: {quarantine}")
    if check_mode:
        return {"changed": changed, "job": job.report()}
    if changed:
        wanted = {**params, "stop_s": _DEFAULT_STOP_S if params["stop_s"] is None else params["stop_s"]}
        if kind == "server":
            visible = {**os.environ, **(params["env"] or {})}.get("CUDA_VISIBLE_DEVICES")
            refusal, wanted["gpus"] = before_start(job, visible, _limits(params), may_end=params["require_lock"])
            if refusal:
                return _refused(job, "gpu_busy", **refusal)
        changed = create(job, kind, wanted)
    if kind == "server":
        await_ready(job, params["wait_s"])
        return {"changed": changed, "job": job.report()}
    server = Job(home, job.run, params["server_job"]) if params["server_job"] else None
    await_end(job, params["wait_s"], server)
    return {"changed": changed, "job": job.report(), "server": server.report() if server else None}


def _refused(job: Job, reason: str, **facts: object) -> State:
    """Nothing was started, and nothing is left of the attempt: the name is not used up."""
    return {"changed": False, "job": {**job.report(), "status": "failed", "reason": reason, **facts}}


def _limits(params: State) -> Limits:
    return Limits(params["gpu_free_mib"], params["drain_s"])


def _stop(params: State, check_mode: bool, home: Path) -> State:
    run, name = params["run"], params["job"]
    ended = stop(home, run, name, params["stop_s"], pretend=check_mode)
    result = {"changed": bool(ended), "ended": ended}
    if check_mode:
        return result
    left = still_there(home, run, name)
    if left:
        if name and (Job(home, run, name).asked or {}).get("gpus"):
            locks.quarantine(home, run, f"what holds its GPUs cannot be ended: {left[0]['command']}")
        who = ", ".join(f"{one['command']} (pid {one['pid']}, user {one['user']})" for one in left)
        return {**result, "failed": True, "msg": f"cannot end {who}: stuck in the kernel, or not ours to signal"}
    if name:
        trouble = after_stop(Job(home, run, name), _limits(params))
        if trouble:
            locks.quarantine(home, run, trouble)
        result["job"] = Job(home, run, name).report()
    else:
        result["changed"] |= locks.release(home, run)
        result["others"] = sorted({job.run for job in jobs_of(home, "*") if job.supervisor()})
    if params["purge"] and purge(home, run, name):
        result["changed"] = True
    return result
