"""Any inventory that Ansible reads is one for gpurun: INI, YAML, a script, a folder with group_vars and host_vars."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gpurun.commands.doctor import command

LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}


def ini(folder: Path) -> Path:
    inventory = folder / "hosts.ini"
    words = " ".join(f'{key}="{value}"' for key, value in LOCAL.items())
    inventory.write_text(f"[gpu_hosts]\none {words}\n[gpu_hosts:vars]\ngpurun_home={folder}/kept\n")
    return inventory


def script(folder: Path) -> Path:
    inventory = folder / "hosts"
    answer = {
        "gpu_hosts": {"hosts": ["one"], "vars": {"gpurun_home": f"{folder}/kept"}},
        "_meta": {"hostvars": {"one": LOCAL}},
    }
    inventory.write_text(f"#!{sys.executable}\nprint({json.dumps(answer)!r})\n")
    inventory.chmod(0o755)
    return inventory


def directory(folder: Path) -> Path:
    inventory = folder / "an inventory"
    (inventory / "group_vars").mkdir(parents=True)
    (inventory / "host_vars").mkdir()
    (inventory / "hosts.yml").write_text(yaml.safe_dump({"gpu_hosts": {"hosts": {"one": None}}}))
    (inventory / "group_vars" / "gpu_hosts.yml").write_text(yaml.safe_dump({"gpurun_home": f"{folder}/kept"}))
    (inventory / "host_vars" / "one.yml").write_text(yaml.safe_dump(LOCAL))
    return inventory


def needy(folder: Path) -> Path:
    """A script that asks a cloud, and gets nowhere without what it logs in with."""
    inventory = script(folder)
    lines = inventory.read_text().splitlines()
    inventory.write_text("\n".join([lines[0], "import os", "os.environ['CLOUD_TOKEN']", *lines[1:]]))
    return inventory


def test_a_plan_is_made_for_the_hosts_of_an_inventory_which_may_need_the_environment(tmp_path: Path) -> None:
    inventory = needy(tmp_path)
    server = {"engine": "command", "argv": ["serve", "--threads", "{{ host.cpus }}"]}
    chat = {"load": {"concurrency": 8, "requests": 4}, "data": {"prompt_tokens": 8, "output_tokens": 8}}
    campaign = {"version": 1, "name": "c", "server": server, "benchmarks": {"chat": chat}}
    (tmp_path / "c.yml").write_text(yaml.safe_dump(campaign))
    env = {**os.environ, "CLOUD_TOKEN": "planted-5ecret-value", "TMPDIR": str(tmp_path)}

    def plan(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "gpurun", "plan", "-c", "c.yml", *words]
        return subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)

    assert plan("-i", str(inventory)).returncode == 2
    assert "no variable of the environment is named CLUD_*" in plan("-i", "hosts", "--pass-env", "CLUD_*").stderr
    done = plan("-i", str(inventory), "--pass-env", "CLOUD_*", "--save-facts", "facts.json")
    assert done.returncode == 0, done.stderr
    assert f"--threads {len(os.sched_getaffinity(0))}" in done.stdout and "one" in done.stdout
    assert "never more than 4 are in flight" in done.stdout
    assert plan("--facts", "facts.json").stdout == done.stdout
    assert "planted-5ecret-value" not in done.stdout + done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"5ecret" in path.read_bytes()]


@pytest.mark.parametrize("make", [ini, script, directory])
def test_hosts_and_their_variables_are_found(make: object, tmp_path: Path) -> None:
    assert callable(make)
    done = CliRunner().invoke(command, ["-i", str(make(tmp_path)), "--json"], standalone_mode=False)
    found = {(one["where"], one["check"]): one["message"] for one in json.loads(done.output)["findings"]}
    assert found["one", "home"] == f"{tmp_path}/kept can be written"
    assert not (tmp_path / "kept").exists()  # doctor changes nothing
