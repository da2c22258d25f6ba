#!/usr/bin/python
"""One job on a host. This documentation is also the argument spec; the action plugin of the same name runs it."""

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
  planned:
    description:
      - What the plan says of the job. Its keys count as the options of their names, where those are not given.
      - Its C(secrets) are names, found in the environment of the controller (see gpurun.secrets).
    type: dict
  argv:
    description: What to start. C(@GPURUN_PORT@) in here, in O(env) and in O(files) becomes the port. No shell.
    type: list
    elements: str
  env: {description: Environment of the job, over a small inherited part of the login user's., type: dict}
  secrets: {description: More environment, which is written to no file and to no command line., type: dict}
  files: {description: "Files to write into the job's folder first, name to text.", type: dict}
  reset:
    description:
      - "How a server's caches are emptied before it starts: C(base_url), C(path) to post to, perhaps C(count), a path
        that says under C(key) how many C({n}) in it there are, from 0."
    type: dict
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
        port_in_use, spawn, lock_lost, server_died, gpu_busy, quarantined, rebooted.
      type: str
    message: {description: One sentence for people., type: str}
    dir: {description: The job's folder; its log is C(log) in there., type: str}
    pid: {description: Its main process., type: int}
    port: {description: Its port., type: int}
    unit: {description: Its systemd unit, if any., type: str}
    reset: {description: "Of O(reset): emptied, or why not.", type: str}
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
others:
  description: Ids of the runs that still have a job here.
  returned: for V(stopped), without O(job)
  type: list
"""
