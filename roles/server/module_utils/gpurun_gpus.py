"""Memory of this host's GPUs, as nvidia-smi tells it: how much is in use on each, and which processes hold it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

_FOLDERS = "/usr/local/bin:/usr/bin:/bin:/usr/local/nvidia/bin:/usr/lib/wsl/lib"
_QUERIES = (
    "--query-gpu=index,uuid,memory.used,utilization.gpu",
    "--query-compute-apps=gpu_uuid,pid,used_memory",
)


class Gpu(NamedTuple):
    """One GPU. `used_mib` is None where the memory is the host's own, or cannot be read."""

    index: int
    uuid: str
    used_mib: int | None
    busy_percent: int | None


class Holder(NamedTuple):
    """A process that computes on a GPU; `mib` is None where nvidia-smi does not tell."""

    gpu: int
    pid: int
    mib: int | None


class Reading(NamedTuple):
    """The GPUs at one moment."""

    gpus: list[Gpu]
    holders: list[Holder]


class NoGpusError(Exception):
    """nvidia-smi fails: no GPU, no driver. Its own words."""


class HungError(NoGpusError):
    """nvidia-smi gave no answer in time."""


def find() -> str | None:
    """The host's nvidia-smi; None on a host without NVIDIA GPUs."""
    return shutil.which("nvidia-smi", path=f"{os.environ.get('PATH', '')}:{_FOLDERS}")


def look(nvidia_smi: str, limit_s: float, visible: str | None = None) -> Reading:
    """The GPUs now; only those that `visible` names, as CUDA_VISIBLE_DEVICES does. Raises NoGpusError."""
    listed, held = _ask(nvidia_smi, limit_s)
    rows = [[cell.strip() for cell in line.split(",")] for line in listed.splitlines()]
    gpus = [
        Gpu(int(row[0]), row[1], _whole(row[2]), _whole(row[3]))
        for row in rows
        if len(row) == 4 and _whole(row[0]) is not None
    ]
    if not gpus:
        raise NoGpusError(f"nvidia-smi lists no GPU: {listed.strip()[:300]}")
    gpus = _visible(gpus, visible)
    by_uuid, holders = {gpu.uuid: gpu.index for gpu in gpus}, []
    for line in held.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        pid = _whole(cells[1]) if len(cells) == 3 else None
        if pid is not None and cells[0] in by_uuid:
            holders.append(Holder(by_uuid[cells[0]], pid, _whole(cells[2])))
    return Reading(gpus, holders)


class Watch:
    """Looks at the GPUs now and then, in a thread: nvidia-smi may hang, and nothing else shall wait for it."""

    def __init__(self, nvidia_smi: str | None, every_s: float) -> None:
        self.nvidia_smi, self.every_s = nvidia_smi, every_s
        self.used_bytes: int | None = None
        self.busy = ""
        self._thread: threading.Thread | None = None
        self._next = 0.0

    def ask(self) -> None:
        """Look again, unless it is too early or the last look is still under way."""
        if not self.nvidia_smi or time.monotonic() < self._next or (self._thread and self._thread.is_alive()):
            return
        self._next = time.monotonic() + self.every_s
        self._thread = threading.Thread(target=self._look, args=(self.nvidia_smi,), daemon=True, name="gpus")
        self._thread.start()

    def _look(self, nvidia_smi: str) -> None:
        try:
            reading = look(nvidia_smi, self.every_s)
        except NoGpusError as error:
            self.busy = str(error)
            return
        used = [gpu.used_mib for gpu in reading.gpus if gpu.used_mib is not None]
        used = used or [holder.mib for holder in reading.holders if holder.mib is not None]
        self.used_bytes = sum(used) << 20
        busy = [f"GPU {gpu.index} {gpu.busy_percent} %" for gpu in reading.gpus if gpu.busy_percent]
        self.busy = f"busy all the same: {', '.join(busy)}" if busy else ""


def _whole(text: str) -> int | None:
    """A number; None for `[N/A]`, `[Not Supported]`, `ERR!` and the like."""
    match = re.fullmatch(r"(\d+)(?:\.\d+)?(?: \S+)?", text)
    return int(match.group(1)) if match else None


def _visible(gpus: list[Gpu], visible: str | None) -> list[Gpu]:
    """What CUDA_VISIBLE_DEVICES leaves; all of them where it names something that is not in the list (a MIG part)."""
    words = [word.strip() for word in (visible or "").split(",") if word.strip()]
    chosen = [
        gpu
        for word in words
        for gpu in gpus
        if word == str(gpu.index) or (word[:4] == "GPU-" and gpu.uuid.startswith(word))
    ]
    return chosen if words and len(chosen) == len(words) else gpus


def _ask(nvidia_smi: str, limit_s: float) -> Sequence[str]:
    """Both answers. Asked side by side: without persistence mode each call wakes the driver, which takes seconds.

    Files and not pipes: a GPU that no longer answers can leave nvidia-smi in the kernel, where no signal reaches it.
    """
    deadline, environment = time.monotonic() + limit_s, {**os.environ, "LC_ALL": "C"}
    with ExitStack() as stack:
        running = []
        for query in _QUERIES:
            output = stack.enter_context(tempfile.TemporaryFile())
            argv = [nvidia_smi, query, "--format=csv,noheader,nounits"]
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise NoGpusError(f"cannot run {nvidia_smi}: {error.strerror}") from error
            running.append((process, output))
        codes = [_wait(process, deadline) for process, _ in running]
        answers = []
        for _, output in running:
            output.seek(0)
            answers.append(output.read().decode(errors="replace"))
    if None in codes:
        raise HungError(f"nvidia-smi gave no answer within {limit_s:g} s: a GPU or the driver hangs")
    if codes[0] != 0:
        raise NoGpusError(f"nvidia-smi ended with exit code {codes[0]}: {answers[0].strip()[:300]}")
    return answers[0], answers[1] if codes[1] == 0 else ""


def _wait(process: subprocess.Popen[bytes], deadline: float) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(timeout=max(0.0, deadline - time.monotonic()))
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.returncode = -signal.SIGKILL if process.returncode is None else process.returncode  # no warning at its end
    return None
