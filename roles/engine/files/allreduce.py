"""A short all-reduce over several GPUs, before any weight is loaded: does it end, and is the sum right?

Runs on the host's own Python; each rank is a process of the engine's Python, with its torch. What passed is remembered
beside the engine, for as long as host, driver and GPUs stay the same.
"""

from __future__ import annotations

import contextlib
import json
import os
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
    to be remembered) and `remember` (a path).
    """
    known = _remembered(question)
    if known is not None:
        return {**known, "cached": True}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpurun-allreduce-") as folder, contextlib.ExitStack() as files:
        found = _try(question, Path(folder), files)
    found["seconds"] = round(time.monotonic() - began, 2)
    if found["status"] == "ok":
        with contextlib.suppress(OSError):  # it is tried again next time
            Path(question["remember"]).write_text(json.dumps({"same": question["same"], "answer": found}))
    return {**found, "cached": False}


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
