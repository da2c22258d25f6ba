"""Running playbooks. The only importer of ansible_runner.

A `Controller` owns what one gpurun call needs to run playbooks: a private directory (0700, removed at the end), the
ssh control sockets, and the environment. Each playbook runs in a thread of its own; its events are put into a queue
that the caller reads, so that no handler ever blocks ansible-runner.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import json
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeAlias

import ansible_runner

from gpurun import paths, reachability
from gpurun.data import table
from gpurun.errors import ConfigError, GpurunError, HostError, NotReadyError

_NAMES = "GPURUN_PASS_ENV"  # names, or patterns of names, of more that it shall inherit
_INVENTORY_S = 20.0  # for an inventory to be listed, which may be a script
_GRACE_S = 5.0  # between interrupting ansible-playbook and killing it


@dataclass(frozen=True)
class TaskEvent:
    """One task's news from one host. `kind`: start, ok, failed, unreachable, skipped or retry."""

    kind: str
    host: str
    task: str
    result: dict[str, Any]
    ignored: bool = False

    @property
    def facts(self) -> dict[str, Any] | None:
        """A host's facts, where this is the task that has read them; `skew_s` is how far its clock is certainly off."""
        found: dict[str, Any] | None = self.result.get("ansible_facts", {}).get("gpurun_facts")
        return found if self.kind == "ok" else None


@dataclass
class Outcome:
    """How a playbook ended. `unreachable` and `failed` map host names to a message."""

    status: str = "starting"
    rc: int | None = None
    unreachable: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    output: str = ""

    @property
    def lost(self) -> dict[str, str]:
        """Both."""
        return {**self.failed, **self.unreachable}

    def no_hosts(self, pattern: str, inventory: Path) -> GpurunError:
        """Why no host could be used: none was named, the inventory or a playbook is broken, or all of them failed."""
        if self.lost:
            message, hint = reachability.told(self.lost)
            return HostError(f"no host can be used: {message}", where=str(inventory), hint=hint)
        said = self.output
        if "as an inventory source" in said:
            found = re.search(r"with '(?:auto|yaml)' plugin: (.+)", said)
            origin = re.search(r"Origin: (\S.*:\d+:\d+)$", said, re.MULTILINE)
            why, where = found[1] if found else said.strip()[:500], origin[1] if origin else inventory
            hint = f"`ansible-inventory --list -i {shlex.quote(str(inventory))}` tells the same"
            return ConfigError(f"the inventory cannot be read: {why} ({where})", hint=hint)
        if self.status == "successful" or "no hosts" in said:
            hint = "name a group or host of the inventory in `hosts:` (and --limit), or give another inventory with -i"
            return ConfigError(f"the inventory has no host for `{pattern}`: {inventory}", hint=hint)
        lines = said.strip().splitlines()
        told = [line for line in lines if "ERROR" in line or "error:" in line] or lines[-3:] or [self.status]
        return HostError(f"ansible-playbook could not run: {' '.join(told)[:500]}", where=str(inventory))


_KINDS = ("start", "ok", "failed", "unreachable", "skipped", "retry")


def message_of(result: Mapping[str, Any]) -> str:
    """The sentence in a task's result that says what went wrong."""
    said = str(result.get("module_stderr") or result.get("module_stdout") or result.get("stderr") or "").strip()
    lines = str(
        result.get("stdout") or ""
    ).splitlines()  # apt puts there what DKMS says: "Error! Bad return status ..."
    told = "\n".join(line for line in lines if line.startswith("Error"))
    return ": ".join(filter(None, [str(result.get("msg") or "").strip(), told, said])) or str(result)


News: TypeAlias = "queue.Queue[tuple[Playbook, TaskEvent | None]]"
"""What comes from playbooks that share a queue, as it comes; None: that playbook has ended."""


class Playbook:
    """One running playbook: iterate over `events()` until it ends, then read `outcome`."""

    def __init__(
        self,
        config: Any,
        pidfile: Path,
        fifo: Path,
        environment: Mapping[str, str],
        news: News,
        inventory: Callable[[], Mapping[str, Mapping[str, Any]]],
    ) -> None:
        self.outcome = Outcome()
        self._inventory = inventory
        self._queue = news
        self._asked: dict[str, float] = {}  # when each host's task began
        self._cancel_at: float | None = None
        self._pidfile = pidfile
        self._fifo = fifo
        self._environment = environment
        self._runner = ansible_runner.Runner(
            config, event_handler=self._on_event, cancel_callback=self._must_die, remove_partials=True
        )
        self._thread = threading.Thread(target=self._run, name="ansible-playbook", daemon=True)
        self._thread.start()
        threading.Thread(target=self._hand_over, name="environment", daemon=True).start()

    def events(self, timeout_s: float = 0.5) -> Iterator[TaskEvent | None]:
        """Task events as they come; None after each `timeout_s` of silence, for the caller to look at the clock."""
        while True:
            try:
                _, event = self._queue.get(timeout=timeout_s)
            except queue.Empty:
                yield None
                continue
            if event is None:
                return
            yield event

    def cancel(self) -> None:
        """Stop as Ctrl-C would; what still runs after a grace time is killed. Returns at once; read on to the end."""
        if self._cancel_at is None:
            self._cancel_at = time.monotonic()
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(self._pidfile.read_text()), signal.SIGINT)

    def _must_die(self) -> bool:
        return self._cancel_at is not None and time.monotonic() - self._cancel_at > _GRACE_S

    def _hand_over(self) -> None:
        # Blocks until the child opens the other end; a child that never starts is answered by _run's own opening.
        with contextlib.suppress(OSError):
            self._fifo.write_text(json.dumps(dict(self._environment)))

    def _run(self) -> None:
        try:
            status, rc = self._runner.run()
            self.outcome.status, self.outcome.rc = str(status), rc
        except Exception as error:  # ansible-runner raises bare exceptions of several kinds; none may kill the queue
            self.outcome.status, self.outcome.output = "failed", f"{type(error).__name__}: {error}"
        finally:
            if self._cancel_at is not None:
                self.outcome.status = "canceled"
            for host in self.outcome.unreachable:
                login = reachability.by_hand(host, self._inventory().get(host, {}))
                self.outcome.unreachable[host] += f"{reachability.LOGIN}{login}"
            with contextlib.suppress(OSError):  # unblock the writer where the child died before it read
                os.close(os.open(self._fifo, os.O_RDONLY | os.O_NONBLOCK))
            self._queue.put((self, None))

    def _on_event(self, event: dict[str, Any]) -> bool:
        data = event.get("event_data") or {}
        name = str(event.get("event"))
        kind = name.removeprefix("runner_").removeprefix("on_")
        if name.startswith("runner_") and kind in _KINDS:
            found = data.get("res")
            result: dict[str, Any] = found if isinstance(found, dict) else {}
            task = TaskEvent(
                kind, str(data.get("host")), str(data.get("task")), result, bool(data.get("ignore_errors"))
            )
            if kind == "start":
                self._asked[task.host] = time.time()
            elif task.facts is not None:
                clock = float(task.facts["host"]["clock_unix"])  # it was read in between
                task.facts["skew_s"] = max(0.0, self._asked.get(task.host, clock) - clock, clock - time.time())
            if kind == "unreachable":
                self.outcome.unreachable[task.host] = message_of(result)
            elif kind == "failed" and not task.ignored:
                self.outcome.failed[task.host] = f"{task.task}: {message_of(result)}"
            self._queue.put((self, task))
        elif name in ("error", "verbose", "warning") and event.get("stdout"):
            self.outcome.output = (self.outcome.output + str(event["stdout"]) + "\n")[-8000:]
        return False  # keep no event files: they may hold what a log must not


class Controller:
    """Everything that the playbooks of one call share. Use as a context manager.

    `inventory` is any Ansible inventory; `secrets` are name -> value pairs that tasks may hand to servers; `more` is
    what playbooks shall have of the environment besides.
    """

    def __init__(
        self,
        inventory: Path | None = None,
        *,
        limit: str | None = None,
        secrets: Mapping[str, str] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        self._ansible = shutil.which("ansible-playbook", path=os.pathsep.join([_own_bin(), os.environ.get("PATH", "")]))
        if self._ansible is None:
            hint = "reinstall gpurun: pip install --force-reinstall gpurun"
            raise NotReadyError("ansible-playbook is not installed beside gpurun", hint=hint)
        self.given = inventory
        self.inventory = (inventory or paths.content() / "inventory" / "localhost.yml").resolve()
        self.limit = limit
        self.directory = Path(tempfile.mkdtemp(prefix=f"gpurun-{os.getpid()}-"))
        self._held = _hold(self.directory)
        self._sockets = self.directory / "cp"
        self._sockets.mkdir(mode=0o700)
        self._environment = {**(more or {}), **self._make_environment(secrets or {})}
        self._count = 0

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the ssh masters that playbooks left, and remove the private directory; those of killed calls too."""
        _remove(self.directory)
        self._held.close()
        _remove_forgotten()

    def start(
        self,
        name: str,
        variables: Mapping[str, Any],
        *,
        hosts: Sequence[str] | None = None,
        news: News | None = None,
        flags: Sequence[str] = (),
    ) -> Playbook:
        """Start `playbooks/<name>.yml` with extra variables; `hosts` narrows the limit; `flags` are ansible-playbook's.

        Playbooks that run side by side share `news`: read that instead of their `events()`.
        """
        self._count += 1
        work = self.directory / f"{self._count:03d}-{name}"
        work.mkdir(mode=0o700)
        (work / "vars.yml").write_text(_as_yaml(variables))
        fifo, pidfile = work / "environment", work / "pid"
        os.mkfifo(fifo, 0o600)
        config = ansible_runner.RunnerConfig(
            private_data_dir=str(work),
            playbook=str(paths.content() / "playbooks" / f"{name}.yml"),
            inventory=str(self.inventory),
            project_dir=str(paths.content()),
            limit=":".join(hosts) if hosts is not None else self.limit,
            cmdline=shlex.join(["-e", f"@{work / 'vars.yml'}", *flags]),  # it is split like a shell's line
            settings={"pexpect_timeout": 0.2, "suppress_ansible_output": True, "suppress_output_file": True},
            suppress_env_files=True,
            quiet=True,
            ident="run",
        )
        config.prepare()
        child = [sys.executable, "-m", "gpurun.child", str(pidfile), str(fifo), str(os.getpid())]
        config.command = [*child, self._ansible, *config.command[1:]]
        inherited = {key: value for key, value in os.environ.items() if config.env.get(key) == value}
        own = {key: value for key, value in config.env.items() if key not in inherited}
        # The child finds gpurun as we did; everything else it gets from the FIFO.
        config.env = {**own, "PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": os.pathsep.join(sys.path)}
        own["ANSIBLE_HOST_KEY_CHECKING"] = os.environ.get(
            "ANSIBLE_HOST_KEY_CHECKING", "True"
        )  # the runner turns it off
        environment = {**self._environment, **own}
        return Playbook(
            config, pidfile, fifo, environment, queue.Queue() if news is None else news, lambda: self._variables
        )

    def run(self, name: str, variables: Mapping[str, Any]) -> tuple[Outcome, list[TaskEvent]]:
        """Run a playbook on all hosts to its end and return what happened. An error where there is no host."""
        playbook = self.start(name, variables)
        events = [event for event in playbook.events() if event is not None]
        if not events:
            raise playbook.outcome.no_hosts(self.limit or "all", self.inventory)
        return playbook.outcome, events

    @cached_property
    def _variables(self) -> Mapping[str, Mapping[str, Any]]:
        """What the inventory says of each host, for telling how to reach it; nothing where that cannot be had."""
        argv = [str(Path(str(self._ansible)).with_name("ansible-inventory")), "-i", str(self.inventory), "--list"]
        try:
            done = subprocess.run(argv, env=self._environment, capture_output=True, timeout=_INVENTORY_S, check=True)
            return dict(json.loads(done.stdout)["_meta"]["hostvars"])
        except (OSError, subprocess.SubprocessError, ValueError, LookupError):
            return {}

    def _make_environment(self, secrets: Mapping[str, str]) -> dict[str, str]:
        names, prefixes = (tuple(table("environment")[key]) for key in ("names", "prefixes"))
        kept = {key: value for key, value in os.environ.items() if key in names or key.startswith(prefixes)}
        kept.setdefault("LC_ALL", "C.UTF-8")  # Ansible refuses to run in a locale that is not UTF-8
        return {
            **kept,
            **_passed_on(os.environ),
            "PATH": os.pathsep.join([_own_bin(), os.environ.get("PATH", os.defpath)]),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "ANSIBLE_CONFIG": str(paths.content() / "ansible.cfg"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self._sockets),
            "ANSIBLE_LOCAL_TEMP": str(self.directory / "tmp"),
            **{f"GPURUN_SECRET_{name}": value for name, value in secrets.items()},
        }


def _passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """What the user names besides. ConfigError for a name that nothing bears: an inventory would fail less clearly."""
    passed: dict[str, str] = {}
    for pattern in environment.get(_NAMES, "").split():
        names = fnmatch.filter(environment, pattern)
        if not names:
            raise ConfigError(f"no variable of the environment is named {pattern}", hint="--pass-env names it")
        passed |= {name: environment[name] for name in names}
    return passed


def _hold(directory: Path) -> IO[str]:
    """Lock a private directory as long as this process lives; `held` is locked from the moment that it is seen."""
    file = (directory / "held.new").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    (directory / "held.new").rename(directory / "held")
    return file


def _remove(directory: Path) -> None:
    sockets = directory / "cp"
    for socket in sockets.iterdir() if sockets.is_dir() else ():
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            argv = ["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "gpurun"]
            subprocess.run(argv, capture_output=True, timeout=5, check=False)
    shutil.rmtree(directory, ignore_errors=True)


def _remove_forgotten() -> None:
    """The same for private directories whose gpurun was killed: it could not, and nobody holds them any more."""
    for held in Path(tempfile.gettempdir()).glob("gpurun-*-*/held"):
        with contextlib.suppress(OSError):
            if held.parent.is_symlink() or held.parent.stat().st_uid != os.geteuid():
                continue
            with held.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(held.parent)


def _own_bin() -> str:
    """The folder of our interpreter: ansible-playbook was installed there, whether or not it is on PATH."""
    return str(Path(sys.executable).parent)


def _as_yaml(variables: Mapping[str, Any]) -> str:
    """Extra variables whose texts Ansible will not take for templates (`!unsafe`)."""
    lines = []
    for key, value in variables.items():
        # Only where it can matter: Ansible cannot read a text of one of YAML's own signs, such as "*", with a tag.
        tag = "!unsafe " if isinstance(value, str) and "{" in value else ""
        lines.append(f"{key}: {tag}{json.dumps(value)}")
    return "\n".join(lines) + "\n"
