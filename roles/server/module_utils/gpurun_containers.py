"""A job whose processes live in a container: the command that runs it in the foreground; finding and removing it.

The container engine's client is what the supervisor starts, so that log, exit code, readiness and limits are those of
any job. A container outlives a client that is killed; it is known by its name and by its labels.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.gpurun_jobs import Job, JobError, State

# How the client finds its engine: inherited by it, and by whoever removes the container.
CLIENT_ENV = (
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST", "XDG_RUNTIME_DIR"),
    *("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"),
)
_ANSWER_S = 30.0


def run_argv(job: Job, wanted: State, argv: Sequence[str], names: Sequence[str]) -> State:
    """`argv` and `container` (client, name, image, image_id) of a job in a container.

    `wanted["container"]` has runtime, image, and optionally read_only (paths that are the same inside), mounts
    (`SOURCE:TARGET[:ro]`), ipc, shm_size, args (more options of `run`). `names` are the variables to hand over: their
    values come from the client's environment, never from its argv. Raises JobError.
    """
    asked = wanted["container"]
    client = shutil.which(asked["runtime"])
    if client is None:
        raise JobError(f"there is no {asked['runtime']} on this host: install it, or use `runtime: venv`")
    image_id = _image_id(client, asked["image"])
    name = f"gpurun-{job.run}-{job.name}"
    command = [client, "run", "--rm", "--name", name, "--init", "--pull", "never", "--network", "host"]
    command += [word for key, value in _labels(job).items() for word in ("--label", f"{key}={value}")]
    command += ["--log-driver", "none"]  # its output is in our log; a second copy would fill the engine's disk
    command += ["--stop-timeout", str(max(1, round(wanted["stop_s"])))]
    ipc = asked.get("ipc") or ("private" if asked.get("shm_size") else "host")
    command += ["--ipc", ipc, *(["--shm-size", asked["shm_size"]] if asked.get("shm_size") else [])]
    if (wanted.get("gpus") or {}).get("nvidia_smi"):
        command += ["--device", "nvidia.com/gpu=all"] if "podman" in asked["runtime"] else ["--gpus", "all"]
    for path in asked.get("read_only") or []:
        command += ["--mount", _csv("type=bind", f"source={path}", f"target={path}", "readonly")]
    command += [word for mount in asked.get("mounts") or [] for word in ("--volume", mount)]
    command += ["--workdir", wanted["cwd"]] if wanted["cwd"] else []
    command += [word for variable in sorted(set(names)) for word in ("--env", variable)]
    command += [*(asked.get("args") or []), image_id, *argv]
    container = {"client": client, "name": name, "image": asked["image"], "image_id": image_id}
    return {"argv": command, "container": container}


def labelled(client: str, home: Path, run: str, name: str | None) -> list[State]:
    """Containers of a job, a run, or every run ("*") of this home, as gpurun_stop tells what it found alive.

    Empty where the engine does not answer.
    """
    labels = [f"gpurun.home={home}"] + ([f"gpurun.run={run}"] if run != "*" else [])
    labels += [f"gpurun.job={name}"] if name else []
    command = [client, "ps", "--all", "--quiet", *(word for label in labels for word in ("--filter", f"label={label}"))]
    found = _ask(command).stdout.split()
    # Podman 4's `ps` does not tell single labels.
    telling = '{{.Name}} {{index .Config.Labels "gpurun.run"}} {{index .Config.Labels "gpurun.job"}}'
    told = _ask([client, "inspect", "--type", "container", "--format", telling, *found]).stdout if found else ""
    rows = [line.lstrip("/").split() for line in told.splitlines()]
    about = {"how": "container", "pid": None, "user": None, "client": client}
    return [{"run": row[1], "job": row[2], "command": row[0], **about} for row in rows if len(row) == 3]


def remove(client: str, *names: str, env: Mapping[str, str] | None = None) -> None:
    """End and remove containers, by name or id; those that are gone already are no error."""
    _ask([client, "rm", "--force", "--volumes", *names], env)


def _labels(job: Job) -> dict[str, str]:
    return {"gpurun.home": str(job.home), "gpurun.run": job.run, "gpurun.job": job.name}


def _image_id(client: str, image: str) -> str:
    """What a name stands for on this host, now: what runs is what was looked at."""
    done = _ask([client, "image", "inspect", "--format", "{{.Id}}", image])
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["no answer"]
        raise JobError(f"`{Path(client).name} pull` must fetch the image {image} first: {said[-1]}")
    return done.stdout.strip()


def _csv(*fields: str) -> str:
    """One value of `--mount`: a line of CSV, so that a path may hold a comma."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def _ask(argv: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[Any]:
    """An answer of the engine; one that hangs is an answer with exit code 124."""
    known = {**os.environ, "LC_ALL": "C"} if env is None else dict(env)
    try:
        return subprocess.run(
            argv, env=known, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_ANSWER_S
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"no answer within {_ANSWER_S:g} s")
