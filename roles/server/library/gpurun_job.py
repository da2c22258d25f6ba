#!/usr/bin/python
"""One job on a host: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpurun_job
short_description: Start, await and end a supervised process on a host
description:
  - A job is one process with everything that descends from it, under a supervisor that logs to a file, enforces a time
    limit, ends the whole tree and writes down how it ended. Under systemd, as root, in a transient unit.
  - Each call is bounded by O(wait_s). Call again, with C(until), while the status is V(starting) or V(running).
  - A job that failed is a result, C(job.status), and not a failure of the module.
options:
  state:
    description:
      - V(started) creates a server unless it exists, and waits until it is ready or has ended.
      - V(finished) creates a client unless it exists, and waits for its end.
      - V(stopped) ends a job, all jobs of a run, or those of every run with O(run=*), and gives the host back.
      - V(info) only looks; with O(grace_s), as soon as the job has ended, or after that time.
    type: str
    choices: [started, finished, stopped, info]
    default: started
  home: {description: Folder of gpurun on the host., type: str, default: ~/.gpurun}
  run: {description: Id of the run., type: str, required: true}
  job: {description: Name of the job., type: str}
  argv:
    description: What to start. C(@GPURUN_PORT@) in here, in O(env) and in O(files) becomes the port. No shell.
    type: list
    elements: str
  env: {description: Environment of the job, over a small inherited part of the login user's., type: dict}
  secrets: {description: More environment, which is written to no file and to no command line., type: dict}
  files: {description: "Files to write into the job's folder first, name to text.", type: dict}
  scrape:
    description: "Addresses to read into files of the job's folder before it starts, name to address."
    type: dict
  cwd: {description: Working folder; the job's own by default., type: str}
  container:
    description:
      - "Run it in a container: C(runtime) (docker or podman), C(image), and optionally C(read_only), C(mounts), C(ipc),
        C(shm_size), C(args)."
      - O(argv) is the command inside, and may be empty. Of O(env) and O(secrets) only the names are in any argv.
    type: dict
  port: {description: Port of the server; a free one by default., type: int}
  port_of: {description: Name of the job whose port this one uses., type: str}
  address: {description: Where the server is asked., type: str, default: 127.0.0.1}
  ready: {description: "When a server is ready: health, models, model, generate, answer.", type: dict}
  start_s: {description: Seconds until it must be ready., type: float, default: 900}
  hang_s: {description: Seconds without a sign of progress until a start counts as hung., type: float, default: 300}
  life_s: {description: Seconds after which it is ended in any case., type: float, default: 3600}
  stop_s: {description: "Seconds from SIGTERM to SIGKILL; for V(stopped) each job's own by default.", type: float}
  wait_s: {description: Seconds that this call may wait., type: float, default: 20}
  grace_s: {description: "With V(info): seconds that the job is given to end.", type: float, default: 0}
  server_job: {description: A job of the run without which this client is pointless; it ends with it., type: str}
  require_lock: {description: Start nothing unless the run holds this host., type: bool, default: false}
  gpu_free_mib: {description: Memory that may be in use on a GPU that counts as free., type: int, default: 300}
  drain_s: {description: Seconds for GPU memory to come back after a stop., type: float, default: 60}
  purge: {description: "With V(stopped): remove the folders of what has ended.", type: bool, default: false}
author: gpurun
"""

EXAMPLES = r"""
- name: Start a server
  gpurun_job:
    run: 2026-11-30-1
    job: r1-baseline
    argv: [llama-server, --port, "@GPURUN_PORT@"]
    ready: {health: /health}
  register: server_job
  until: server_job is failed or server_job.job.status != 'starting'
  retries: 60
  delay: 0
"""

RETURN = r"""
job:
  description: Where the job stands.
  returned: when O(job) is given
  type: dict
  contains:
    status: {description: "absent, starting, ready, running, exited or failed.", type: str}
    reason:
      description: >-
        Why it ended: null, exited, stopped, time_limit, start_timeout, start_hang, generation_failed, not_this_model,
        port_in_use, spawn, lock_lost, server_died, gpu_busy, quarantined.
      type: str
    message: {description: One sentence for people., type: str}
    dir: {description: The job's folder; its log is C(log) in there., type: str}
    pid: {description: Its main process., type: int}
    port: {description: Its port., type: int}
    unit: {description: Its systemd unit, if any., type: str}
    holder: {description: "Who has the port: pid, user, command.", type: dict}
    started_at: {description: Unix seconds on the host's clock., type: float}
    ready_at: {description: The same., type: float}
    ended_at: {description: The same., type: float}
    phases: {description: When health, model and generation first answered., type: dict}
    exit_code: {description: Null if a signal ended it., type: int}
    signal: {description: Number of that signal., type: int}
    left: {description: Processes that could not be ended., type: list}
    kernel:
      description: >-
        After its end: C(oom_kills), how many of its processes the kernel's OOM killer ended (null: not known), and
        C(log), lines of the kernel about those, or of a GPU's driver (Xid).
      type: dict
    gpu_memory_left: {description: What of its GPU memory did not come back., type: str}
    gpu_holders: {description: "Who holds GPU memory: gpu, memory_mib, pid, user, command.", type: list}
    progress: {description: "log_bytes, log_lines, last_line, rss_bytes, cpu_s, progress_file.", type: dict}
server:
  description: The same of O(server_job), as it stands after this call.
  returned: for V(finished)
  type: dict
ended:
  description: What V(stopped) found alive and ended.
  returned: for V(stopped)
  type: list
"""

import os
from pathlib import Path

from ansible.module_utils import gpurun_locks as locks
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpurun_gpu_guard import Limits, after_stop, before_start
from ansible.module_utils.gpurun_jobs import Job, JobError, check_name, expand_home
from ansible.module_utils.gpurun_spawn import create
from ansible.module_utils.gpurun_stop import purge, still_there, stop
from ansible.module_utils.gpurun_wait import await_end, await_ready

_DEFAULT_STOP_S = 60.0


def _run(module: AnsibleModule, home: Path, job: Job) -> dict:
    """Create the job unless it exists, and wait."""
    params, kind = module.params, "server" if module.params["state"] == "started" else "client"
    held = locks.renew(home, job.run)
    changed = job.asked is None
    if changed and params["require_lock"] and not held:
        lock = locks.holder(home)
        message = f"nothing started: {locks.describe(lock) if lock else f'run {job.run} was stopped on this host'}"
        return _refused(job, "lock_lost", message=message)
    quarantine = locks.quarantined(home, job.run) if changed and kind == "server" else None
    if quarantine:
        return _refused(job, "quarantined", message=f"nothing started: this run is done with this host: {quarantine}")
    if module.check_mode:
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


def _refused(job: Job, reason: str, **facts: object) -> dict:
    """Nothing was started, and nothing is left of the attempt: the name is not used up."""
    return {"changed": False, "job": {**job.report(), "status": "failed", "reason": reason, **facts}}


def _limits(params: dict) -> Limits:
    return Limits(params["gpu_free_mib"], params["drain_s"])


def _stop(module: AnsibleModule, home: Path) -> dict:
    params = module.params
    run, name = params["run"], params["job"]
    ended = stop(home, run, name, params["stop_s"], pretend=module.check_mode)
    result = {"changed": bool(ended), "ended": ended}
    if module.check_mode:
        return result
    left = still_there(home, run, name)
    if left:
        if name and (Job(home, run, name).asked or {}).get("gpus"):
            locks.quarantine(home, run, f"what holds its GPUs cannot be ended: {left[0]['command']}")
        who = ", ".join(f"{one['command']} (pid {one['pid']}, user {one['user']})" for one in left)
        module.fail_json(msg=f"cannot end {who}: stuck in the kernel, or not ours to signal", **result)
    if name:
        trouble = after_stop(Job(home, run, name), _limits(params))
        if trouble:
            locks.quarantine(home, run, trouble)
        result["job"] = Job(home, run, name).report()
    elif locks.release(home, run):
        result["changed"] = True
    if params["purge"] and purge(home, run, name):
        result["changed"] = True
    return result


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["started", "finished", "stopped", "info"], "default": "started"},
            "home": {"type": "str", "default": "~/.gpurun"},
            "run": {"type": "str", "required": True},
            "job": {"type": "str"},
            "argv": {"type": "list", "elements": "str"},
            "env": {"type": "dict"},
            "secrets": {"type": "dict", "no_log": True},
            "files": {"type": "dict"},
            "scrape": {"type": "dict"},
            "cwd": {"type": "str"},
            "container": {"type": "dict"},
            "port": {"type": "int"},
            "port_of": {"type": "str"},
            "address": {"type": "str", "default": "127.0.0.1"},
            "ready": {"type": "dict"},
            "start_s": {"type": "float", "default": 900.0},
            "hang_s": {"type": "float", "default": 300.0},
            "life_s": {"type": "float", "default": 3600.0},
            "stop_s": {"type": "float"},
            "wait_s": {"type": "float", "default": 20.0},
            "grace_s": {"type": "float", "default": 0.0},
            "server_job": {"type": "str"},
            "require_lock": {"type": "bool", "default": False},
            "gpu_free_mib": {"type": "int", "default": 300},
            "drain_s": {"type": "float", "default": 60.0},
            "purge": {"type": "bool", "default": False},
        },
        required_if=[
            ("state", "started", ["job", "argv"]),
            ("state", "finished", ["job", "argv"]),
            ("state", "info", ["job"]),
        ],
        supports_check_mode=True,
    )
    params = module.params
    home = expand_home(params["home"])
    try:
        if params["state"] == "stopped":
            if params["run"] != "*":
                check_name(params["run"], "run")
            result = _stop(module, home)
        else:
            job = Job(home, params["run"], params["job"])
            if params["state"] == "info":
                job.wait(params["grace_s"], lambda: False)
                result = {"changed": False, "job": job.report()}
            else:
                result = _run(module, home, job)
    except (JobError, OSError) as error:
        module.fail_json(msg=f"job {params['run']}/{params['job']}: {error}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
