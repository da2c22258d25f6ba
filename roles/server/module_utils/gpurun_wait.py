"""Waits on the host for what the supervisor of a job will tell; each wait is bounded."""

from __future__ import annotations

from ansible.module_utils.gpurun_jobs import Job
from ansible.module_utils.gpurun_stop import end_with_reason, stop


def await_ready(job: Job, wait_s: float) -> None:
    """Until the server is ready or over, at most `wait_s` seconds."""
    job.wait(wait_s, job.is_ready)
    _tidy(job)


def await_end(job: Job, wait_s: float, server: Job | None = None) -> None:
    """Until the client is over, at most `wait_s` seconds. When its server dies first, the client is ended with it."""
    job.wait(wait_s, lambda: server is not None and server.is_over())
    if server is not None and server.is_over() and not job.is_over():
        end_with_reason(job, "server_died", f"the server {server.name} ended while the load ran")
    _tidy(job)


def _tidy(job: Job) -> None:
    """A job whose supervisor was killed may have left some of its tree: nobody else ends that."""
    if job.is_over() and job.read("ended") is None:
        stop(job.home, job.run, job.name)
