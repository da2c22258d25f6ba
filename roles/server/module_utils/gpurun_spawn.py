"""Creates a job on this host: its directory, its port, its supervisor."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from ansible.module_utils import gpurun_containers, gpurun_ports
from ansible.module_utils.gpurun_jobs import Job, JobError, State
from ansible.module_utils.gpurun_supervisor import write_state

PORT = "@GPURUN_PORT@"
_SPEC_S = 15.0
_SCRAPE_S = 5.0
# What a job inherits. Everything else of our own environment stays out: over a local connection that is the
# controller's, with whatever tokens it has; and a server should not change with the shell that gpurun was called from.
_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES"),
)


def create(job: Job, kind: str, wanted: State) -> bool:
    """Create the job and start its supervisor; returns at once. A port that is taken is a job that has ended with that.

    False if somebody else has just created it.

    `wanted`: argv, env, secrets, files (name -> text), cwd, port (None: choose one), port_of (a job whose port it is),
    address, ready, reset (how the server's caches are emptied, see `_reset`), scrape (name -> address to read
    into a file after that), container (see gpurun_containers), gpus (what gpurun_gpu_guard knew before), program (what
    Python runs as the supervisor), and the limits life_s, stop_s, start_s, hang_s in seconds. Raises JobError, OSError.
    """
    _check(wanted)
    port = _port(job, kind, wanted)
    job.directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        job.directory.mkdir(mode=0o700)
    except FileExistsError:
        return False
    root = Path("/run/systemd/system").is_dir() and os.geteuid() == 0
    unit = f"gpurun-{job.run}-{job.name}" if root else None
    asked = {
        "kind": kind,
        "run": job.run,
        "job": job.name,
        "port": port,
        "unit": unit,
        "argv": [_filled(word, port) for word in wanted["argv"]],
        "created_at": time.time(),
        "stop_s": wanted["stop_s"],
        "gpus": wanted.get("gpus"),
        "reset": _reset(wanted["reset"], port) if wanted.get("reset") else None,
    }
    try:
        write_state(job.directory / "job.json", asked)
    except OSError:
        shutil.rmtree(job.directory, ignore_errors=True)  # else the name would be used up
        raise
    if kind == "server" and wanted["port"] is not None and not gpurun_ports.is_free(wanted["port"]):
        _stillborn(job, "port_in_use", **_taken(wanted["port"]))
        return True
    fifo = job.directory / "spec.fifo"
    try:
        for name, text in (wanted["files"] or {}).items():
            _write_private(job.directory / name, _filled(text, port))
        for name, url in (wanted.get("scrape") or {}).items():
            with contextlib.suppress(OSError, ValueError):  # no answer, no file
                _write_private(job.directory / name, _ask(_filled(url, port)))
        if wanted.get("container"):
            asked.update(gpurun_containers.run_argv(job, wanted, asked["argv"], _given(job, wanted)))
            write_state(job.directory / "job.json", asked)
        os.mkfifo(fifo, 0o600)
        _start_supervisor(job, unit, wanted, asked.get("container"))
        _send_spec(job, fifo, json.dumps(_spec(job, wanted, port, asked)).encode())
    except JobError as error:
        _stillborn(job, "spawn", message=str(error))
    except OSError as error:
        _stillborn(job, "spawn", message=f"cannot start a supervisor: {error}")
    finally:
        with contextlib.suppress(OSError):
            fifo.unlink()
    return True


def _ask(url: str, body: bytes | None = None) -> str:
    """What an address answers; with a body, to a POST. Raises OSError (HTTP's errors are a kind of it), ValueError."""
    import urllib.request  # late: it takes as long to import as all the rest

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, body, timeout=_SCRAPE_S) as answer:
        return str(answer.read().decode(errors="replace"))


def _reset(rule: State, port: int | None) -> str:
    """Post to the address that empties the server's caches, to each of as many as the server says: how it went."""
    base = _filled(rule["base_url"], port)
    try:
        count = json.loads(_ask(base + rule["count"]))[rule["key"]] if rule.get("count") else 1
        for number in range(count):
            _ask(base + rule["path"].replace("{n}", str(number)), b"")
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"not emptied: {error}"
    return "emptied"


def _check(wanted: State) -> None:
    if not wanted["argv"] and not wanted.get("container"):
        raise JobError("argv is empty: there is nothing to start")
    for name in wanted["files"] or {}:
        if name != Path(name).name or name in {"log", "job.json"}:
            raise JobError(f"files: {name!r} is not a plain file name of its own")
    for name, value in (wanted["secrets"] or {}).items():
        if not value:
            raise JobError(f"the secret {name} has no value: set it in the environment of gpurun")


def _port(job: Job, kind: str, wanted: State) -> int | None:
    if wanted["port_of"]:
        server = Job(job.home, job.run, wanted["port_of"]).asked
        if server is None:
            raise JobError(f"port_of: there is no job {wanted['port_of']} in run {job.run}")
        return server["port"]  # type: ignore[no-any-return]
    if wanted["port"] is None and kind == "server":
        return gpurun_ports.choose()
    return wanted["port"]  # type: ignore[no-any-return]


def _taken(port: int) -> State:
    who = gpurun_ports.holder(port)
    name = f"{who['command']} (pid {who['pid']}, user {who['user']})" if who else "a process that does not listen yet"
    if who and who["pid"] is None:
        name = f"a process of user {who['user']} that cannot be seen from here"
    message = f"port {port} is taken by {name}: end that, or choose another port, or none to get a free one"
    return {"message": message, "holder": who}


def _stillborn(job: Job, reason: str, **facts: object) -> None:
    """A job that never had a process has ended all the same."""
    ended = {"exit_code": None, "signal": None, "reason": reason, "ended_at": time.time(), **facts}
    write_state(job.directory / "ended.json", ended)


def _filled(text: str, port: int | None) -> str:
    return text if port is None else text.replace(PORT, str(port))


def _given(job: Job, wanted: State) -> list[str]:
    """The variables that a container gets: nothing of the host's own but the choice of GPUs."""
    chosen = [name for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ]
    return [*chosen, *(wanted["env"] or {}), *(wanted["secrets"] or {}), *_marks(job)]


def _spec(job: Job, wanted: State, port: int | None, asked: State) -> State:
    container = asked.get("container")
    inherited = (*_INHERITED, *gpurun_containers.CLIENT_ENV) if container else _INHERITED
    env = {name: os.environ[name] for name in inherited if name in os.environ}
    env.update({name: _filled(str(value), port) for name, value in (wanted["env"] or {}).items()})
    env.update(wanted["secrets"] or {})
    env.update(_marks(job))
    limits = {name: float(wanted[name]) for name in ("life_s", "stop_s", "start_s", "hang_s")}
    return {
        "argv": asked["argv"],
        "env": env,
        "cwd": str(job.directory) if container else wanted["cwd"] or str(job.directory),
        "container": container,
        "ready": wanted["ready"],
        "address": wanted["address"],
        "port": port,
        "nvidia_smi": (wanted.get("gpus") or {}).get("nvidia_smi"),
        "visible": (wanted.get("gpus") or {}).get("visible"),
        **limits,
    }


def _marks(job: Job) -> dict[str, str]:
    return {"GPURUN_HOME": str(job.home), "GPURUN_JOB": f"{job.run}/{job.name}"}


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(text)


def _start_supervisor(job: Job, unit: str | None, wanted: State, container: State | None) -> None:
    argv = [sys.executable, "-I", "-S", "-X", "utf8", wanted["program"], str(job.directory)]
    said = job.directory / "supervisor.log"
    marks = _marks(job)
    if unit is None:
        # It forks itself off and lets us go on, so that it is nobody's child but init's.
        with said.open("ab") as log:
            forked = subprocess.run(
                [*argv, "--detach"], env=marks, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
            )
        if forked.returncode != 0:
            raise OSError(f"{sys.executable} ended with {forked.returncode}: {said.read_text(errors='replace')[-500:]}")
        return
    limit_s = wanted["life_s"] + wanted["stop_s"] + 60  # ours come first: they tell a reason
    properties = [
        "Type=exec",
        "KillMode=control-group",
        f"RuntimeMaxSec={limit_s:.3f}",  # systemd reads no exponents
        f"TimeoutStopSec={wanted['stop_s'] + 30:.3f}",
        "OOMPolicy=continue",  # the supervisor tells which process was killed; the default would end all, as if asked
        "MemoryAccounting=yes",  # a counter of its own tells whether the kernel's OOM killer ended something of it
        "LimitMEMLOCK=infinity",
        f"StandardOutput=append:{said}",
        f"StandardError=append:{said}",
    ]
    if container:  # it is in the engine's control group, not in this unit's
        marks.update({name: os.environ[name] for name in gpurun_containers.CLIENT_ENV if name in os.environ})
        properties.append(f"ExecStopPost=-{container['client']} rm --force --volumes {container['name']}")
    command = ["systemd-run", "--quiet", "--collect", f"--unit={unit}", f"--description={description(job)}"]
    command += [f"--property={one}" for one in properties]
    command += [f"--setenv={name}={value}" for name, value in marks.items()]
    done = subprocess.run(
        [*command, "--", *argv], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise OSError(f"systemd-run refused {unit}: {done.stderr.strip()}")


def description(job: Job) -> str:
    """The description of a job's unit: it tells units of different homes apart."""
    return f"gpurun job {job.directory}"


def _send_spec(job: Job, fifo: Path, spec: bytes) -> None:
    """Hand over what must not touch the disk. A supervisor that never comes for it has said why in its own log."""
    until = time.monotonic() + _SPEC_S
    while True:
        try:
            pipe = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:  # nobody reads yet
                raise
        if time.monotonic() > until or job.is_over():
            return
        time.sleep(0.005)
    with contextlib.suppress(BrokenPipeError), os.fdopen(pipe, "wb") as file:
        os.set_blocking(pipe, True)
        file.write(spec)
