"""A short all-reduce over several GPUs, before any weight is loaded: does it end, and is the sum right?

Runs on the host's own Python; each rank is a process of the engine's Python, with its torch. Of an engine in an image
both run in a container of it. What passed is remembered for as long as host, driver, GPUs and image stay the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# One rank: it says how far it has come, and last what it measured.
RANK = """
import datetime, json, signal, sys, time
signal.alarm(int(float(sys.argv[6])))  # whatever becomes of the process that started it
rank, ranks, backend, limit_s, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), sys.argv[5]
print("started", flush=True)
import torch
import torch.distributed as dist
device = "cpu"
if backend == "nccl":
    torch.cuda.set_device(rank)
    device = f"cuda:{rank}"
print("torch", flush=True)
dist.init_process_group(backend, init_method=f"file://{place}", rank=rank, world_size=ranks,
                        timeout=datetime.timedelta(seconds=limit_s))
print("joined", flush=True)
wrong, speed = 0, 0.0
for count in (1024, 16 << 20):  # 4 KiB, as in decoding, and 64 MiB, as in prefill
    for turn in range(4):
        values = torch.full((count,), float(rank + 1), device=device)
        if device != "cpu":
            torch.cuda.synchronize()
        began = time.monotonic()
        dist.all_reduce(values)
        if device != "cpu":
            torch.cuda.synchronize()
        took = time.monotonic() - began
        speed = max(speed, 4.0 * count * 2 * (ranks - 1) / ranks / took)
        wrong += int((values != ranks * (ranks + 1) / 2).sum().item())
    print("small" if count == 1024 else "large", flush=True)
print(json.dumps({"wrong": wrong, "bus_gb_per_s": round(speed / 1e9, 2)}), flush=True)
"""


def answer(question: dict) -> dict:
    """What became of one: `status` ok | hang | wrong | failed | unavailable, `message`, `seconds`, `cached`.

    A question has `python` (the engine's), `env` (of the server), `ranks`, `backend` (nccl, or gloo without GPUs),
    `import_s` (until every rank has torch), `limit_s` (from then on), `same` (whatever must stay the same for an answer
    to be remembered), `remember` (a path) and `container` (null, or runtime, image, mounts, ipc, shm_size, args, and
    `source`: this file).
    """
    box, began = question.get("container"), time.monotonic()
    try:
        if box:
            image = _said([box["runtime"], "image", "inspect", "--format", "{{.Id}}", box["image"]], 30)
            question = {**question, "same": [*question["same"], image]}
        known = _remembered(question)
        if known is not None:
            return {**known, "cached": True}
        found = _in_container(question, box) if box else tried(question)
    except (OSError, RuntimeError, ValueError) as error:
        found = {"status": "unavailable", "message": str(error)}
    found["seconds"] = round(time.monotonic() - began, 2)
    if found["status"] == "ok":
        with contextlib.suppress(OSError):  # it is tried again next time
            Path(question["remember"]).parent.mkdir(exist_ok=True)
            Path(question["remember"]).write_text(json.dumps({"same": question["same"], "answer": found}))
    return {**found, "cached": False}


def tried(question: dict) -> dict:
    """The answer without what is remembered, where the ranks are."""
    with tempfile.TemporaryDirectory(prefix="gpurun-allreduce-") as folder, contextlib.ExitStack() as files:
        return _try(question, Path(folder), files)


def _in_container(question: dict, box: dict) -> dict:
    """The same in a container of the image, with the mounts and options of the server's."""
    name, (run, _, job) = f"gpurun-allreduce-{os.getpid()}", question["env"].get("GPURUN_JOB", "").partition("/")
    labels = {"gpurun.home": question["env"].get("GPURUN_HOME", ""), "gpurun.run": run, "gpurun.job": job}  # for `stop`
    argv = [box["runtime"], "run", "--rm", "--interactive", "--init", "--pull", "never", "--network", "host"]
    argv += ["--name", name, "--log-driver", "none"]
    argv += [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
    argv += ["--ipc", box.get("ipc") or ("private" if box.get("shm_size") else "host")]
    argv += ["--shm-size", box["shm_size"]] if box.get("shm_size") else []
    if question["backend"] == "nccl":
        argv += ["--device", "nvidia.com/gpu=all"] if "podman" in box["runtime"] else ["--gpus", "all"]
    argv += [word for mount in box.get("mounts") or [] for word in ("--volume", mount)] + (box.get("args") or [])
    argv += ["--workdir", "/", "--entrypoint", question["python"], box["image"], "-"]
    asked = {**question, "container": None}
    program = f"{box['source']}\nprint(json.dumps(tried({asked!r})))\n"
    try:
        said = _said(argv, question["import_s"] + question["limit_s"] + 60, program)
        return json.loads((said.splitlines() or [""])[-1])
    except RuntimeError:  # a container outlives its client
        subprocess.run([box["runtime"], "rm", "--force", name], stdin=subprocess.DEVNULL, capture_output=True)
        raise


def _said(argv: list, limit_s: float, program: str = "") -> str:
    """What a container engine's client prints. RuntimeError where it does not do it."""
    try:
        done = subprocess.run(argv, input=program, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"`{argv[0]} {argv[1]}` gave no answer within {limit_s:g} s") from None
    if done.returncode != 0:
        usage = re.compile(r"\s*$|Usage|.*--help")
        lines = [line for line in done.stderr.splitlines() if not usage.match(line)] or ["it said nothing"]
        raise RuntimeError(f"`{argv[0]} {argv[1]}`: {lines[-1][:300]}")
    return done.stdout.strip()


def _remembered(question: dict) -> dict | None:
    try:
        known = json.loads(Path(question["remember"]).read_text())
        return known["answer"] if known["same"] == question["same"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _try(question: dict, folder: Path, files: contextlib.ExitStack) -> dict:
    ranks, processes = question["ranks"], []
    env = {**os.environ, **question["env"], "PYTHONUNBUFFERED": "1"}
    words = [str(ranks), question["backend"], str(question["limit_s"]), str(folder / "meeting")]
    words.append(str(question["import_s"] + question["limit_s"] + 10))
    try:
        for rank in range(ranks):
            streams = {
                f"std{kind}": files.enter_context((folder / f"{rank}.{kind}").open("wb")) for kind in ("out", "err")
            }
            argv = [question["python"], "-c", RANK, str(rank), *words]
            processes.append(
                subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=env, cwd=folder, start_new_session=True, **streams)
            )
        _wait(processes, time.monotonic() + question["import_s"], lambda: _all_said(folder, ranks, "torch"))
        _wait(processes, time.monotonic() + question["limit_s"], lambda: False)
        late = [rank for rank, process in enumerate(processes) if process.poll() is None]
    except OSError as error:
        return {"status": "unavailable", "message": f"{question['python']}: {error.strerror}"}
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    said = [_lines(folder / f"{rank}.out") for rank in range(ranks)]
    failed = [rank for rank, process in enumerate(processes) if rank not in late and process.returncode != 0]
    if failed:
        error = (_lines(folder / f"{failed[0]}.err") or ["it said nothing"])[-1]
        # Without torch, or its GPU, there is nothing to try: the engine's own start will tell more.
        status = "failed" if "torch" in said[failed[0]] else "unavailable"
        return {"status": status, "message": f"rank {failed[0]} of {ranks} ended: {error}"}
    if late and not _all_said(folder, ranks, "torch"):
        return {"status": "unavailable", "message": f"torch was not imported within {question['import_s']:g} s"}
    if late:
        stages = sorted({said[rank][-1] for rank in late})
        after = f"after {question['limit_s']:g} s, last at: {', '.join(stages)}"
        return {"status": "hang", "message": f"{len(late)} of {ranks} ranks had not ended {after}"}
    results = [json.loads(lines[-1]) for lines in said]
    if any(result["wrong"] for result in results):
        return {"status": "wrong", "message": f"the sum over {ranks} ranks came out wrong"}
    speed = min(result["bus_gb_per_s"] for result in results)
    return {"status": "ok", "message": f"{ranks} ranks, {speed:g} GB/s on the bus"}


def _wait(processes: list, deadline: float, enough: Callable[[], bool]) -> None:
    """Until all have ended, one has failed (the others would wait for it), it is enough, or the deadline."""
    while time.monotonic() < deadline and not enough():
        codes = [process.poll() for process in processes]
        if any(codes) or None not in codes:
            return
        time.sleep(0.05)


def _all_said(folder: Path, ranks: int, word: str) -> bool:
    return all(word in _lines(folder / f"{rank}.out") for rank in range(ranks))


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
