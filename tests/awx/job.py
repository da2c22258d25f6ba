"""A job as AWX 24.6.1 runs it (main/tasks/jobs.py, receptor.py): a private data directory, streamed by ansible-runner's
own transmit and process to a worker that stands where the execution environment does, in a clean environment.

What a container gives AWX, namespaces give here: see ExecutionEnvironment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ansible_runner
import yaml
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = Path(__file__).parents[2]
_UV = str(Path(sys.executable).with_name("uv"))
OBJECTS = ROOT / "awx" / "objects.yml"
Event = dict[str, Any]


class _Texts(yaml.SafeDumper):
    """AWX's way: texts that a survey or a launch gives are no templates."""

    def represent_data(self, data: Any) -> yaml.Node:
        if isinstance(data, str):
            return self.represent_scalar("!unsafe", data)
        return super().represent_data(data)


def extra_vars(given: Mapping[str, Any], trusted: Mapping[str, Any] | None = None) -> str:
    """The file env/extravars: `given` at launch, `trusted` by the job template, whose texts may be templates."""
    parts = [yaml.dump({key: value}, Dumper=yaml.SafeDumper) for key, value in (trusted or {}).items()]
    return "".join([*parts, *(yaml.dump({key: value}, Dumper=_Texts) for key, value in given.items())])


def checkout(folder: Path) -> Path:
    """The repository as a project update leaves it: nothing that was built, in a folder of any name."""
    built = shutil.ignore_patterns("__pycache__", "dist", "*.egg-info")
    folder.mkdir(parents=True)
    for name in ("awx", "campaigns", "docs", "inventory", "playbooks", "roles", "runner"):
        shutil.copytree(ROOT / name, folder / name, ignore=built)
    for name in ("ansible.cfg", "pyproject.toml", "README.md"):
        shutil.copy2(ROOT / name, folder)
    return folder


@dataclass(frozen=True)
class ExecutionEnvironment:
    """A clean virtual environment at `path`, in `root`: this machine's file system, or a Debian's own, of which a job
    has nothing but to read, and beside it this machine's /tmp and network."""

    path: Path
    root: Path = Path("/")

    def command(self, *argv: str) -> list[str]:
        """What runs `argv` there, as PID 1 of its own: all that it starts ends with it."""
        enter = ["sh", "-euc", _ENTER, str(self.root)] if self.root != Path("/") else []
        return ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *enter, *argv]


_ENTER = """
mount --bind "$0" "$0"
mount -o remount,bind,ro "$0"
for place in /dev /tmp /etc/resolv.conf /etc/ssl/certs; do mount --rbind "$place" "$0$place"; done
mount -t proc proc "$0/proc"
exec /usr/sbin/chroot "$0" "$@"
"""


def wheel(folder: Path) -> Path:
    """The package, as the image has it."""
    subprocess.run([_UV, "build", "-q", "--wheel", "-o", str(folder), str(ROOT)], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def environment(folder: Path, built: Path, root: Path = Path("/")) -> ExecutionEnvironment:
    """What the execution environment has: the package, with its own pins, for the Python of `root`. All in `folder`."""
    ee = ExecutionEnvironment(folder / "ee", root)
    python, known = sys.executable, dict(os.environ)
    if root != Path("/"):
        python, known["UV_CACHE_DIR"] = "/usr/bin/python3", str(folder / "cache")
    for source in (_UV, built):
        shutil.copy2(source, folder)
    uv = str(folder / "uv")
    install = [uv, "pip", "install", "-q", "--python", str(ee.path), f"{folder / built.name}[store]"]
    for argv in ([uv, "venv", "-q", "--python", python, str(ee.path)], install):
        done = subprocess.run(ee.command(*argv), env=known, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return ee


def objects() -> dict[str, Any]:
    """awx/objects.yml as Ansible hands it to the modules: what is unsafe is a text."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))
    return dict(yaml.load(OBJECTS.read_text(), Loader))


def inventory(hosts: Mapping[str, Mapping[str, Any]], variables: Mapping[str, Any]) -> dict[str, Any]:
    """An inventory's script data, as AWX makes them: all hosts in gpu_hosts. Logins are the machine credential's."""
    variables = {name: value for name, value in variables.items() if name not in _LOGIN}
    known = {name: {**own, "remote_tower_enabled": "true", "remote_tower_id": 1} for name, own in hosts.items()}
    every = {"vars": {**variables, "remote_tower_id": 1}, "children": ["gpu_hosts"], "hosts": []}
    return {"all": every, "gpu_hosts": {"hosts": list(hosts)}, "_meta": {"hostvars": known}}


_LOGIN = {"ansible_user", "ansible_ssh_private_key_file", "ansible_control_path_dir", "ansible_become_password"}


@dataclass
class Credential:
    """One of a type of awx/objects.yml, with what a person has put into its fields."""

    type: str
    inputs: dict[str, str]

    def inject(self, folder: Path, seen_at: Path) -> tuple[dict[str, str], list[str]]:
        """Its files are written to env/ in `folder`, which the job sees at `seen_at`. Returns the environment and
        ansible-playbook's arguments that it adds."""
        (known,) = [one for one in objects()["gpurun_awx_credential_types"] if one["name"] == self.type]
        sandbox, names, injectors = ImmutableSandboxedEnvironment(), {}, known["injectors"]

        def fill(text: str) -> str:
            return sandbox.from_string(text).render(**self.inputs, tower={"filename": names.get("", names)})

        def write(name: str, text: str) -> str:
            path = Path("env") / f"{self.type}-{name}".replace(" ", "-")
            (folder / path).write_text(text)
            (folder / path).chmod(0o600)
            return str(seen_at / path)

        for name, text in injectors.get("file", {}).items():
            names[name.partition(".")[2]] = write(name, fill(text))
        environment = {name: fill(text) for name, text in injectors.get("env", {}).items()}
        variables = {name: fill(text) for name, text in injectors.get("extra_vars", {}).items()}
        return environment, ["-e", f"@{write('variables', extra_vars(variables))}"] if variables else []


@dataclass
class Template:
    """What a job template and its credentials come to: everything but the answers of a launch."""

    playbook: str
    inventory: dict[str, Any]
    key: Path | None = None  # the machine credential's, as are user and password
    user: str = "root"
    become_password: str = ""
    credentials: Sequence[Credential] = ()
    environment: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    limit: str | None = None
    timeout_s: int = 0

    @classmethod
    def named(cls, name: str, inventory: dict[str, Any], **others: Any) -> Template:
        """The one of awx/objects.yml."""
        (known,) = [one for one in objects()["gpurun_awx_templates"] if one["name"] == name]
        return cls(known["playbook"], inventory, variables=known.get("extra_vars", {}), **others)


class Job:
    """One launch. `run()` it, or `start()` it and `lose_node()` or `cancel()`; then `status`, `events`, `artifacts`."""

    def __init__(
        self, folder: Path, ee: ExecutionEnvironment, project: Path, template: Template, number: int, **answers: Any
    ) -> None:
        self.template, self.number, self.ee = template, number, ee
        self.events: list[Event] = []
        self.status = "new"
        self._worker: subprocess.Popen[bytes] | None = None
        self._news = threading.Condition()
        self._here, self._there, self._home = (folder / name for name in ("controller", "node", "home"))
        for path in (self._here / "env", self._here / "inventory", self._here / "cp", self._there, self._home):
            path.mkdir(parents=True, mode=0o700)
        shutil.copytree(project, self._here / "project")
        meta = {"awx_job_id": number, "tower_job_id": number, "awx_user_name": "admin"}
        trusted = {name: value for name, value in template.variables.items() if name not in answers}
        self._write("env/extravars", extra_vars({**answers, **meta}, trusted))
        self._write("env/settings", json.dumps({"job_timeout": template.timeout_s, **_SETTINGS}))
        words = ["-u", template.user, *(["-l", template.limit] if template.limit else [])]
        words += ["--ask-become-pass"] if template.become_password else []
        self._injected: dict[str, str] = {}
        before = set(self._files())
        for credential in template.credentials:
            more, arguments = credential.inject(self._here, self._there)
            self._injected |= more
            words += arguments
        self.given = set(self._files()) - before  # by AWX, with what credentials hold
        self._write("env/cmdline", ansible_runner.utils.args2cmdline(*words))
        script = f"#! /usr/bin/env python3\n# -*- coding: utf-8 -*-\nprint({json.dumps(template.inventory)!r})\n"
        self._write("inventory/hosts", script, 0o700)

    def _files(self) -> list[str]:
        return [str(path.relative_to(self._here)) for path in (self._here / "env").iterdir()]

    def _write(self, name: str, text: str, mode: int = 0o600) -> None:
        (self._here / name).write_text(text)
        (self._here / name).chmod(mode)

    def start(self) -> Job:
        """Send the job to its node; what comes back is read as it comes."""
        # Of this process's environment the worker has nothing.
        env = {"PATH": f"{self.ee.path}/bin:/usr/bin:/bin", "HOME": str(self._home), "LANG": "C.UTF-8"}
        command = self.ee.command("ansible-runner", "worker", "--private-data-dir", str(self._there))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        worker = subprocess.Popen(command, env=env, cwd=self._there, start_new_session=True, **pipes)
        self._worker = worker
        assert worker.stdin is not None
        with contextlib.suppress(BrokenPipeError), worker.stdin as pipe:
            ansible_runner.interface.run(streamer="transmit", _output=pipe, **self._parameters())
        self._reader = threading.Thread(target=self._process, args=[worker], name="process", daemon=True)
        self._reader.start()
        return self

    def _parameters(self) -> dict[str, Any]:
        environment = {
            **_AWX_ENVIRONMENT,
            "AWX_PRIVATE_DATA_DIR": str(self._here),
            "JOB_ID": str(self.number),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": f"{self._there}/cp",
            "ANSIBLE_ROLES_PATH": f"{self._there}/requirements_roles:roles:~/.ansible/roles:/etc/ansible/roles",
            "ANSIBLE_COLLECTIONS_PATH": f"{self._there}/requirements_collections:~/.ansible/collections",
            **self.template.environment,
            **self._injected,
        }
        known = {
            "private_data_dir": str(self._here),
            "ident": self.number,
            "playbook": self.template.playbook,
            "inventory": f"{self._here}/inventory/hosts",
            "envvars": environment,
            "suppress_env_files": True,
            "fact_cache_type": "",
            "cancel_callback": lambda: False,  # without one it takes over the signals of this process
            "passwords": {r"BECOME.*password.*:\s*?$": self.template.become_password},
        }
        return {**known, "ssh_key": self.template.key.read_text()} if self.template.key else known

    def _process(self, worker: subprocess.Popen[bytes]) -> None:
        stream = worker.stdout
        assert stream is not None
        try:
            ansible_runner.interface.run(
                streamer="process",
                _input=stream,
                private_data_dir=str(self._here),
                ident=self.number,
                event_handler=self._take,
                status_handler=self._note,
                quiet=True,
                suppress_env_files=True,
            )
        finally:
            worker.wait(30)
            stream.close()
            with self._news:
                self._news.notify_all()

    def _take(self, event: Event) -> bool:
        with self._news:
            self.events.append(event)
            self._news.notify_all()
        return True

    def _note(self, status: Mapping[str, Any], **_: Any) -> None:
        self.status = str(status["status"])

    def wait_for(self, what: Callable[[Event], bool], seconds: float = 240.0) -> Event:
        """The first event of which `what` is true, as soon as it is there."""
        until = time.monotonic() + seconds
        with self._news:
            while True:
                if found := next(filter(what, self.events), None):
                    return found
                left = until - time.monotonic()
                assert left > 0 and self._reader.is_alive(), f"{self.status}: no such event in:\n{self.stdout}"
                self._news.wait(min(left, 0.5))

    def lose_node(self) -> Job:
        """The node's power goes: nothing in the container has a chance to clean up."""
        self.end()
        return self.finish(60)

    def cancel(self) -> Job:
        """As AWX does: receptor interrupts the worker on its node, and kills it where it has not ended after 10 s."""
        assert self._worker is not None
        (pid,) = Path(f"/proc/{self._worker.pid}/task/{self._worker.pid}/children").read_text().split()
        os.kill(int(pid), signal.SIGINT)
        self._reader.join(10)
        self.end()
        return self.finish(60)

    def end(self) -> None:
        """Kill the worker, if it is there, and with it all that it started."""
        if self._worker is not None and self._worker.poll() is None:
            os.killpg(self._worker.pid, 9)

    def finish(self, seconds: float = 300.0) -> Job:
        """Wait for the end; then the private data directory is deleted, as AWX does, and the container with its own."""
        self._reader.join(seconds)
        if self._reader.is_alive():
            self.end()
            self._reader.join(30)
            raise AssertionError(f"the job did not end within {seconds} s:\n{self.stdout}")
        self.left = [
            (str(path.relative_to(folder)), path.read_bytes())
            for folder in (self._here, self._there)
            for path in folder.rglob("*")
            if path.is_file() and not path.is_relative_to(self._here / "project")
        ]
        for folder in (self._here, self._there, self._home):
            shutil.rmtree(folder)
        return self

    def run(self, seconds: float = 300.0) -> Job:
        return self.start().finish(seconds)

    @property
    def stdout(self) -> str:
        """Without its colours."""
        said = "\n".join(str(event.get("stdout")) for event in self.events if event.get("stdout"))
        return re.sub(r"\x1b\[[\d;]*m", "", said)

    @property
    def artifacts(self) -> dict[str, Any]:
        """What set_stats hands to the next nodes of a workflow."""
        last = [event for event in self.events if event["event"] == "playbook_on_stats"]
        return dict(last[-1]["event_data"].get("artifact_data", {})) if last else {}


_SETTINGS = {"suppress_ansible_output": True, "suppress_output_file": True}
# settings/defaults.py: every ANSIBLE_* of AWX's settings.
_AWX_ENVIRONMENT = {
    "ANSIBLE_HOST_KEY_CHECKING": "False",
    "ANSIBLE_PARAMIKO_RECORD_HOST_KEYS": "False",
    "ANSIBLE_FORCE_COLOR": "True",
    "ANSIBLE_INVENTORY_UNPARSED_FAILED": "True",
    "ANSIBLE_RETRY_FILES_ENABLED": "False",
    "MAX_EVENT_RES": "700000",
    "AWX_HOST": "https://towerhost",
    "INVENTORY_ID": "1",
    "PROJECT_REVISION": "0" * 40,
}
