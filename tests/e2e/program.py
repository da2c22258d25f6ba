"""gpurun as a program: campaigns against a small server, in a home and folders of their own (with a space in them)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
SERVER = Path(__file__).with_name("server.py")
LIMIT_S = 120.0  # for anything that is waited for: far more than it takes, on a machine that others use too
RUN_ID = re.compile(r"\d{8}-\d{4}-[0-9a-f]{4}")


class Program:
    """A program in its own process group, whose stderr is read as it comes."""

    def __init__(self, argv: list[str], cwd: Path, env: dict[str, str], keep: Sequence[int] = ()) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=keep,
        )
        self.stdout = ""
        self._readers = [threading.Thread(target=self._read_err), threading.Thread(target=self._read_out)]
        for reader in self._readers:
            reader.start()

    @property
    def stderr(self) -> str:
        return "".join(self.lines)

    @property
    def run(self) -> str:
        """The run's id, from the line that begins it."""
        found = RUN_ID.search(self.wait_for(r"run \d{8}-"))
        assert found is not None
        return found.group()

    def wait_for(self, pattern: str, seconds: float = LIMIT_S) -> str:
        """The first line of stderr that matches, as soon as it is there."""
        until = time.monotonic() + seconds
        with self._news:
            while True:
                for line in self.lines:
                    if re.search(pattern, line):
                        return line
                left = until - time.monotonic()
                if left <= 0 or not self._readers[0].is_alive():
                    raise AssertionError(f"no line with {pattern!r} in:\n{self.stderr}")
                self._news.wait(min(left, 0.5))

    def send(self, number: int) -> None:
        """Signal gpurun itself, as a terminal does to its process group: nothing else of ours is in it."""
        os.killpg(self.process.pid, number)

    def finish(self, seconds: float = LIMIT_S) -> int:
        """Wait for the end; the exit code, as a shell would tell it."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"did not end within {seconds} s:\n{self.stderr}") from None
        for reader in self._readers:
            reader.join(10)
        return code

    def end(self) -> None:
        """Whatever happened: no process of ours outlives the test."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        for reader in self._readers:
            reader.join(10)

    def _read_err(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                with self._news:
                    self.lines.append(line)
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            self.stdout = stream.read()


@dataclass
class Place:
    """A folder to start gpurun in, and the home on the host (this machine) that its inventory names."""

    folder: Path
    home: Path

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    def __post_init__(self) -> None:
        self.temporary.mkdir(parents=True, exist_ok=True)
        host = {
            "ansible_connection": "local",
            "ansible_python_interpreter": "{{ ansible_playbook_python }}",
            "gpurun_home": str(self.home),
        }
        (self.folder / "inventory.yml").write_text(yaml.safe_dump({"gpu_hosts": {"hosts": {"here": host}}}))
        self._started: list[Program] = []

    def campaign(self, **changes: Any) -> Path:
        """Write a campaign of one sample; `changes` replace what stands at the top of it."""
        campaign = {
            "version": 1,
            "name": "e2e",
            "server": server(),
            "benchmarks": {
                "chat": {
                    "load": {"concurrency": 2, "requests": 4},
                    "data": {"prompt_tokens": 8, "output_tokens": 8},
                }
            },
            "rounds": 1,
            "timeouts": {"start": "5m", "sample": "5m", "stop": "5s"},
            **changes,
        }
        path = self.folder / "campaign.yml"
        path.write_text(yaml.safe_dump(campaign, sort_keys=False, allow_unicode=True), encoding="utf-8")
        return path

    def start(
        self, *words: str, env: dict[str, str] | None = None, program: list[str] | None = None, keep: Sequence[int] = ()
    ) -> Program:
        """Start gpurun with these arguments (or another program)."""
        # Every process that descends from this one inherits TMPDIR, whatever else its environment lost on the way.
        known = {**os.environ, "TMPDIR": str(self.temporary), "NO_COLOR": "1", **(env or {})}
        known.pop("CI", None)
        started = Program([*(program or [sys.executable, "-m", "gpurun"]), *words], self.folder, known, keep)
        self._started.append(started)
        return started

    def bench(self, *words: str, **options: Any) -> Program:
        """Start `gpurun bench` with the campaign in this place."""
        return self.start("bench", "-c", "campaign.yml", "-i", "inventory.yml", *words, **options)

    def leftovers(self) -> list[str]:
        """Command lines of the processes that were started from here and are still there."""
        marks = [f"TMPDIR={self.temporary}\0".encode(), f"GPURUN_HOME={self.home}\0".encode()]
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if command and any(mark in environ for mark in marks):
                found.append(f"{pid}: {command}")
        return found

    def nothing_left(self) -> None:
        """No process, no private directory, and the host is free."""
        assert self.leftovers() == []
        assert [entry.name for entry in self.temporary.iterdir()] == []
        assert not (self.home / "lock.json").exists()

    def jobs(self, run: str) -> list[str]:
        """Names of the run's job directories on the host."""
        return sorted(path.name for path in (self.home / "jobs" / run).glob("*"))

    def stored(self, run: str) -> Path:
        """The results directory of a run."""
        return self.folder / "results" / "e2e" / run

    def manifest(self, run: str) -> dict[str, Any]:
        document = json.loads((self.stored(run) / "manifest.json").read_text())
        assert isinstance(document, dict)
        return document

    def samples(self, run: str) -> list[dict[str, Any]]:
        """What stands for the run: without what was set aside (`HOST~1`) and measured again."""
        paths = sorted(self.stored(run).glob("samples/*/*/*/sample.json"))
        return [json.loads(path.read_text()) for path in paths if "~" not in path.parent.name]

    def end(self) -> None:
        for program in self._started:
            program.end()
        for line in self.leftovers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.partition(":")[0]), signal.SIGKILL)
        (self.home / "lock.json").unlink(missing_ok=True)


def server(*words: str, **more: Any) -> dict[str, Any]:
    """The `server` part of a campaign: the small server with these arguments."""
    return {"engine": "command", "argv": [sys.executable, str(SERVER), "--port", "{{ port }}", *words], **more}


def eventually(condition: Callable[[], Any], seconds: float = LIMIT_S) -> Any:
    """Poll for something that has no event to wait for: the state of other processes."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")
