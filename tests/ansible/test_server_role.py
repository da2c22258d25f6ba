"""The roles server and load, and playbooks/stop.yml, through ansible-playbook against this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.jobs import READY, Job, eventually, locks, processes, server_argv, start_server, stop

ROOT = Path(__file__).resolve().parents[2]
SECRET = "planted-5ecret-value"
CLIENT = (
    "import json, urllib.request\n"
    "spec = json.load(open('spec.json'))\n"
    "urllib.request.urlopen(spec['base_url'] + '/health').read()\n"
    "json.dump(spec, open('raw.json', 'w'))\n"
)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "home of gpurun"
    home.mkdir()
    yield home
    stop(home, "*", stop_s=0.2)
    assert processes.belonging(home) == []


def play(name: str | Path, variables: dict[str, Any], **env: str) -> tuple[int, str]:
    """Run a playbook on localhost; the exit code and what it said."""
    command = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        "-i",
        "localhost,",
        "-c",
        "local",
        "-e",
        json.dumps({"ansible_python_interpreter": sys.executable, **variables}),
    ]
    inherited = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
    environment = {
        **inherited,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "LC_ALL": "C.UTF-8",
        **env,
    }
    done = subprocess.run(
        [*command, str(name)], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def playbook(tmp_path: Path, sample: dict[str, Any], out: Path) -> Path:
    """A play that measures one sample as the role `run` does, and writes what was registered."""
    (tmp_path / "sample.json").write_text(json.dumps(sample))  # read by a lookup: what it returns is never a template
    tasks: list[dict[str, Any]] = [
        {"name": "Lock", "ansible.builtin.include_role": {"name": "server", "tasks_from": "lock"}},
        {"name": "Start", "ansible.builtin.include_role": {"name": "server", "tasks_from": "start"}},
        {
            "name": "Load",
            "ansible.builtin.include_role": {"name": "load", "tasks_from": "send"},
            "when": "server_job.job.status == 'ready'",
        },
        {"name": "Stop", "ansible.builtin.include_role": {"name": "server", "tasks_from": "stop"}},
        {
            "name": "Tell",
            "ansible.builtin.copy": {
                "dest": str(out),
                "mode": "0600",
                "content": "{{ [server_job, load_job | default(none), server_stopped, server_locked] | to_json }}",
            },
        },
    ]
    controller = {"host": "here", "pid": os.getpid()}
    read = f"{{{{ lookup('ansible.builtin.file', '{tmp_path}/sample.json') | from_json }}}}"
    variables = {"server_sample": read, "load_sample": read, "server_lock": {"run": "run1", "controller": controller}}
    path = tmp_path / "play.yml"
    path.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "vars": variables, "tasks": tasks}]))
    return path


def sample(*words: str) -> dict[str, Any]:
    client = [sys.executable, "-c", CLIENT, "{{ 1 + 1 }}", "$(id)", "ä '\""]
    return {
        "server": {
            "job": "r1-server",
            "argv": server_argv(*words, "{{ 6 * 7 }}"),
            "env": {"GREETING": "{{ lookup('env', 'HOME') }} $HOME"},
            "secrets": ["HF_TOKEN"],
            "port": None,
            "cwd": None,
            "ready": READY,
            "start_s": 20,
            "life_s": 60,
            "stop_s": 5,
        },
        "load": {
            "job": "r1-load",
            "argv": client,
            "spec": {"base_url": "http://127.0.0.1:@GPURUN_PORT@", "text": "{{ 6 * 7 }}"},
            "timeout_s": 20,
        },
    }


def test_one_sample_through_the_roles(tmp_path: Path, home: Path) -> None:
    out = tmp_path / "out.json"
    path = playbook(tmp_path, sample(), out)
    variables = {"gpurun_home": str(home), "gpurun_run_id": "run1"}
    code, said = play(path, variables, GPURUN_SECRET_HF_TOKEN=SECRET, ANSIBLE_VERBOSITY="3")
    assert code == 0, said
    start = said.partition("TASK [server : Start the server]")[2].partition("TASK [")[0]
    assert "EXEC" in start and " PUT " not in start  # a module that is put somewhere has its arguments in a file
    assert SECRET not in said and SECRET not in out.read_text()
    server, load, stopped, locked = json.loads(out.read_text())
    assert locked["held"] and locked["changed"]
    assert (server["job"]["status"], server["changed"]) == ("ready", True)
    assert (load["job"]["status"], load["job"]["exit_code"]) == ("exited", 0)
    assert [one["job"] for one in stopped["ended"]] == ["r1-server"]
    raw = json.loads((Path(load["job"]["dir"]) / "raw.json").read_text())
    assert raw == {"base_url": f"http://127.0.0.1:{server['job']['port']}", "text": "{{ 6 * 7 }}"}
    asked = Job(home, "run1", "r1-server").asked
    assert asked is not None and asked["argv"][-1] == "{{ 6 * 7 }}"
    for file in home.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()


def test_crash_while_starting_is_a_result(tmp_path: Path, home: Path) -> None:
    out = tmp_path / "out.json"
    path = playbook(tmp_path, sample("crash"), out)
    # The secret by its own name, as whoever calls ansible-playbook sets it.
    code, said = play(path, {"gpurun_home": str(home), "gpurun_run_id": "run1"}, HF_TOKEN=SECRET)
    assert code == 0, said
    server, load, stopped, _ = json.loads(out.read_text())
    assert (server["job"]["status"], server["job"]["reason"], load) == ("failed", "exited", None)
    assert stopped["changed"] is False


def test_missing_secret_is_named(tmp_path: Path, home: Path) -> None:
    path = playbook(tmp_path, sample(), tmp_path / "out.json")
    code, said = play(path, {"gpurun_home": str(home), "gpurun_run_id": "run1"})
    assert code == 2 and "HF_TOKEN has no value" in said


def test_stop_playbook_ends_what_a_dead_controller_left(home: Path) -> None:
    job = start_server(Job(home, "run1", "job1"))
    eventually(job.is_ready)
    controller = {"host": "elsewhere", "machine_id": "x", "pid": 1}
    assert locks.hold(home, {"run": "run2", "campaign": "c", "controller": controller, "lease_s": 900}, 0)["held"]
    variables = {"gpurun_home": str(home), "gpurun_purge": True}
    for changed in ("changed=1", "changed=0"):
        code, said = play(ROOT / "playbooks" / "stop.yml", variables)
        assert code == 0 and changed in said, said
        assert processes.belonging(home) == [] and locks.holder(home) is None
    assert not job.directory.exists()
