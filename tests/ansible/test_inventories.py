"""Any inventory that Ansible reads is one for gpurun: INI, YAML, a script, a folder with group_vars and host_vars."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize("make", [ini, script, directory])
def test_hosts_and_their_variables_are_found(make: object, tmp_path: Path) -> None:
    assert callable(make)
    done = CliRunner().invoke(command, ["-i", str(make(tmp_path)), "--json"], standalone_mode=False)
    found = {(one["where"], one["check"]): one["message"] for one in json.loads(done.output)["findings"]}
    assert found["one", "home"] == f"{tmp_path}/kept can be written"
    assert not (tmp_path / "kept").exists()  # doctor changes nothing
