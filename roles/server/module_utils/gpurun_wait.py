"""Waits on the host for what the supervisor of a job will tell; each wait is bounded."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence

from ansible.module_utils.gpurun_jobs import Job
from ansible.module_utils.gpurun_processes import handle
from ansible.module_utils.gpurun_stop import end_with_reason, stop

_POLL_S = 0.05
# A client notices a death before the server's own process is over: vLLM's looks for its engine every 5 s, and meanwhile
# answers with errors.
_CAUSE_S = 8.0


def await_ready(job: Job, wait_s: float) -> None:
    """Until the server is ready or over, at most `wait_s` seconds."""
    job.wait(wait_s, job.is_ready)
    _tidy(job)


def await_end(job: Job, wait_s: float, server: Job | None = None) -> None:
    """Until the client is over, at most `wait_s` seconds. When its server dies first, the client is ended with it.

    Sleeps in the kernel meanwhile: a measurement is going on.
    """
    jobs, until = [job] if server is None else [job, server], time.monotonic() + wait_s
    while not any(one.is_over() for one in jobs) and time.monotonic() < until:
        _sleep_until_one_ends(jobs, until - time.monotonic())
    if server is not None and server.is_over() and not job.is_over():
        end_with_reason(job, "server_died", f"the server {server.name} ended while the load ran")
    if server is not None and job.is_over() and _in_trouble(job):
        server.wait(_CAUSE_S, lambda: False)
    _tidy(job)


def _in_trouble(client: Job) -> bool:
    """Whether the client failed by itself, or the last of its requests did."""
    report = client.report()
    failed = report["status"] == "failed" and report["reason"] == "exited"
    return failed or bool((report["progress"]["progress_file"] or {}).get("failing"))


def _sleep_until_one_ends(jobs: Sequence[Job], seconds: float) -> None:
    """May return early."""
    poll, handles = select.poll(), []
    try:
        for job in jobs:
            supervisor = job.supervisor()
            pidfd = handle(supervisor) if supervisor else None
            if pidfd is None:  # it has just been created, or has just ended
                break
            handles.append(pidfd)
            poll.register(pidfd, select.POLLIN)
    except (OSError, AttributeError):  # no pidfds here
        pass
    complete = len(handles) == len(jobs)
    poll.poll(max(0.0, seconds if complete else min(seconds, _POLL_S)) * 1000)
    for pidfd in handles:
        os.close(pidfd)


def _tidy(job: Job) -> None:
    """A job whose supervisor was killed may have left some of its tree: nobody else ends that."""
    if job.is_over() and job.read("ended") is None:
        stop(job.home, job.run, job.name)
