"""What host and GPUs do while a server serves, a row a second, in the job's folder: telemetry.csv.

Part of the server's supervisor: so it is where the GPUs are, whoever sends the load, and costs no trip to the host.
GPUs are read by one nvidia-smi that stays (`-l 1`), not through NVML in this process: a GPU that hangs leaves the one
who asks it in the kernel, and the supervisor must still be able to end the job. Missing values are empty.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Callable

EVERY_S = 1.0
_FRESH_S = 3.0  # an older reading of a GPU is none
_FIRST_S = 20.0  # for nvidia-smi's first words: without persistence mode it wakes the driver first
_HOST = ("cpu_percent", "steal_percent", "memory_used_mib", "swapped_pages")
_GPU = (
    ("power_w", "power.draw"),
    ("sm_mhz", "clocks.current.sm"),
    ("memory_mhz", "clocks.current.memory"),
    ("temperature_c", "temperature.gpu"),
    ("busy_percent", "utilization.gpu"),
    ("memory_mib", "memory.used"),
    ("slowed_by", "clocks_event_reasons.active"),  # a mask of bits: nvmlClocksEventReasons in nvml.h
)
_OLD_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}  # before driver 535


class Telemetry(threading.Thread):
    """Writes rows until `stop`. `ours` tells the processes of the job: whoever else computes on a GPU is a stranger."""

    def __init__(
        self, folder: Path, nvidia_smi: str | None, ours: Callable[[], set[int]], visible: str | None = None
    ) -> None:
        """`visible`: the GPUs of the job, as CUDA_VISIBLE_DEVICES names them; all of them without."""
        super().__init__(daemon=True, name="telemetry")
        self.path, self.nvidia_smi, self.ours = folder / "telemetry.csv", nvidia_smi, ours
        self.chosen = ["-i", visible] if visible and "MIG" not in visible else []
        self._gpus: dict[int, tuple[float, list[str]]] = {}
        self._apps: dict[int, float] = {}  # when each process was last seen on a GPU
        self._heard, self._over = threading.Event(), threading.Event()
        self._children: list[subprocess.Popen[str]] = []

    def run(self) -> None:
        """Rows until the end; a full disk ends them and nothing else."""
        tasks = (self._read_gpus, self._read_apps) if self.nvidia_smi else ()
        readers = [threading.Thread(target=task, daemon=True, name=task.__name__) for task in tasks]
        for reader in readers:
            reader.start()
        with contextlib.suppress(OSError), self.path.open("w", encoding="utf-8", buffering=1) as file:
            self._write(file.write, time.monotonic() + (_FIRST_S if readers else 0))
        for reader in readers:
            reader.join(_FRESH_S)

    def _write(self, write: Callable[[str], Any], patience: float) -> None:
        """A row each second. The first ones wait until all GPUs have been heard of, which are the columns."""
        gpus: list[int] | None = None
        waiting: list[tuple[list[str], dict[int, list[str]], str]] = []
        before, due = host_counters(), time.monotonic()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due += EVERY_S
            now, counters = time.time(), host_counters()
            seen = {index: values for index, (at, values) in list(self._gpus.items()) if now - at < _FRESH_S}
            waiting.append(([f"{now:.3f}", *host_row(before, counters)], seen, self._strangers(now)))
            before = counters
            if gpus is None and (self._heard.is_set() or time.monotonic() >= patience):
                gpus = sorted(self._gpus)
                names = [f"gpu{index}_{name}" for index in gpus for name, _ in _GPU]
                write(",".join(["unix_s", *_HOST, *names, "strangers"]) + "\n")
            if gpus is not None:
                for host, of, strangers in waiting:
                    cells = [cell for index in gpus for cell in of.get(index, [""] * len(_GPU))]
                    write(",".join([*host, *cells, strangers]) + "\n")
                waiting.clear()

    def stop(self) -> None:
        """End it, and what it started: with a signal that cannot be blocked, as children inherit our mask."""
        self._over.set()
        for child in self._children:
            with contextlib.suppress(OSError):
                child.kill()

    def _read_gpus(self) -> None:
        fields = ["index", *(field for _, field in _GPU)]
        for names in (fields, [_OLD_NAMES.get(field, field) for field in fields]):
            for line in self._lines("--query-gpu=" + ",".join(names), "1"):
                cells = [cell.strip() for cell in line.split(",")]
                if len(cells) == len(fields) and cells[0].isdigit():
                    known = int(cells[0]) in self._gpus
                    self._gpus[int(cells[0])] = (time.time(), [_plain(cell) for cell in cells[1:]])
                    if known:  # the second round has begun: all have been named
                        self._heard.set()
            if self._gpus:
                return

    def _read_apps(self) -> None:
        for line in self._lines("--query-compute-apps=pid,used_memory", "2"):
            pid = line.split(",")[0].strip()
            if pid.isdigit():
                self._apps[int(pid)] = time.time()

    def _lines(self, query: str, every: str) -> Any:
        argv = [str(self.nvidia_smi), query, "--format=csv,noheader,nounits", "-l", every, *self.chosen]
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError:
            return
        self._children.append(child)
        if self._over.is_set():
            child.kill()
        assert child.stdout is not None
        with child.stdout:
            yield from child.stdout
        child.wait()

    def _strangers(self, now: float) -> str:
        """Processes on the GPUs that are not the job's, by number and name, as far as they can be seen from here."""
        recent = {pid for pid, at in list(self._apps.items()) if now - at < 2 * _FRESH_S}
        if not recent or recent <= self.ours():
            return ""
        named = []
        for pid in sorted(recent - self.ours()):
            with contextlib.suppress(OSError):  # gone, or of another namespace, where numbers mean something else
                named.append(f"{pid} {Path(f'/proc/{pid}/comm').read_text().strip()}".replace(",", " "))
        return "; ".join(named)


def host_counters() -> dict[str, float]:
    """Jiffies in all, idle and stolen, memory in use (MiB), pages swapped in and out since the boot."""
    counters: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        counters.update(all=sum(times), idle=times[3] + times[4], steal=times[7])
    with contextlib.suppress(OSError, ValueError, KeyError):
        rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(rows[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
        counters["memory_mib"] = (total - free) / 1024
    with contextlib.suppress(OSError, ValueError, KeyError):
        rows = dict(line.split(" ", 1) for line in Path("/proc/vmstat").read_text().splitlines())
        counters["swapped"] = int(rows["pswpin"]) + int(rows["pswpout"])
    return counters


def host_row(before: dict[str, float], now: dict[str, float]) -> list[str]:
    """The cells of the host between two readings; shares are of all processors."""
    cells = [""] * len(_HOST)
    if "all" in before and now.get("all", 0) > before["all"]:
        spent = now["all"] - before["all"]
        cells[0] = f"{100 * (1 - (now['idle'] - before['idle']) / spent):.1f}"
        cells[1] = f"{100 * (now['steal'] - before['steal']) / spent:.1f}"
    if "memory_mib" in now:
        cells[2] = f"{now['memory_mib']:.0f}"
    if "swapped" in before and "swapped" in now:
        cells[3] = f"{now['swapped'] - before['swapped']:.0f}"
    return cells


def _plain(cell: str) -> str:
    """A number or a mask; nothing for `[N/A]`, `[Not Supported]` and the like."""
    if cell.startswith("0x"):
        return str(int(cell, 16))
    return cell if cell.replace(".", "", 1).isdigit() else ""
