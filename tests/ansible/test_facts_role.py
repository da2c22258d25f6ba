"""The role `facts` through Ansible: on this machine, and over ssh on booted hosts with GPUs that are stood in for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.hosts import TestHost

REPOSITORY = Path(__file__).parents[2]
PLAY = """
- hosts: gpu_hosts
  gather_facts: false
  roles: [facts]
  tasks:
    - ansible.builtin.copy:
        content: "{{ ansible_facts.gpurun_facts | to_json }}"
        dest: "{{ facts_to }}"
        mode: "0600"
      delegate_to: localhost
      connection: local
      become: false
      vars: {ansible_python_interpreter: "{{ ansible_playbook_python }}"}
"""


def facts(inventory: Path, folder: Path, **variables: object) -> Any:
    """gpurun_facts of the one host of an inventory."""
    play, answer = folder / "play.yml", folder / "facts.json"
    play.write_text(PLAY)
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    extra = json.dumps({"facts_to": str(answer), **variables})
    done = subprocess.run(
        [program, "-i", str(inventory), "-e", extra, str(play)],
        env={**os.environ, "ANSIBLE_ROLES_PATH": str(REPOSITORY / "roles"), "ANSIBLE_PIPELINING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(answer.read_text())


def test_localhost(tmp_path: Path) -> None:
    inventory = REPOSITORY / "inventory" / "localhost.yml"
    found = facts(inventory, tmp_path, facts_home=str(tmp_path / "a b"))
    assert found["host"]["home"] == str(tmp_path / "a b")
    assert found["host"]["cpus"] >= 1
    if not found["host"]["commands"]["nvidia-smi"] and not found["host"]["nvidia_pci_devices"]:
        empty: dict[str, object] = {"gpus": [], "driver": None, "topology": None, "gpu_error": None}
        assert {key: found[key] for key in empty} == empty


def test_host_with_systemd_and_eight_gpus(host: TestHost, tmp_path: Path) -> None:
    host.set_gpus("8x-rtxpro6000")
    # A process of another user's holds memory: it is seen, with its owner, for as long as it lives.
    start = "setsid env FAKE_GPU_MEMORY_MIB=3:40000 sleep 300 >/dev/null 2>&1 & echo $!"
    pid = int(host.exec(["sh", "-c", start], user="bench").stdout)
    found = facts(host.inventory_path, tmp_path)
    assert found["host"]["init"] == "systemd" and found["host"]["name"] == host.name
    assert found["host"]["container"] == "systemd-nspawn"
    assert found["host"]["user"] == "root" and found["host"]["os"]["id"] == "debian"
    assert found["host"]["commands"]["nvidia-smi"] == "/usr/local/bin/nvidia-smi"
    assert len(found["gpus"]) == 8 and found["gpu_error"] is None
    busy = found["gpus"][3]
    assert busy["memory_used_mib"] == 40000
    assert [(p["pid"], p["user"], p["memory_mib"]) for p in busy["processes"]] == [(pid, "bench", 40000)]
    assert busy["processes"][0]["name"].endswith("sleep")
    host.exec(["kill", str(pid)])
    assert facts(host.inventory_path, tmp_path)["gpus"][3]["memory_used_mib"] == 0


def test_user_without_privileges(host: TestHost, tmp_path: Path) -> None:
    host.set_gpus("1x-rtx4090")
    found = facts(host.inventory_path, tmp_path, ansible_user="bench", facts_home="/root/.gpurun")
    assert (found["host"]["user"], len(found["gpus"])) == ("bench", 1)
    assert found["host"]["disk_free_bytes"] > 0


def test_plain_host(plain_host: TestHost, tmp_path: Path) -> None:
    plain_host.set_gpus("8x-h100-nvlink")
    found = facts(plain_host.inventory_path, tmp_path)
    assert found["host"]["init"] == "other"
    assert found["topology"]["nvlink"] is True
    assert found["host"]["commands"]["llama-server"] is None


@pytest.mark.parametrize(("name", "kind"), [("mismatch", "driver_mismatch"), ("lost", "gpu_lost")])
def test_sick_driver_is_a_fact_and_not_a_failure(host: TestHost, tmp_path: Path, name: str, kind: str) -> None:
    host.set_gpus(name)
    found = facts(host.inventory_path, tmp_path)
    assert found["gpus"] == [] and found["gpu_error"]["kind"] == kind
    assert found["gpu_error"]["advice"]


def test_hung_nvidia_smi_is_bounded(host: TestHost, tmp_path: Path) -> None:
    host.set_gpus("hung")
    began = time.monotonic()
    found = facts(host.inventory_path, tmp_path, facts_limit_s=2)
    assert 2 <= time.monotonic() - began < 12
    assert found["gpu_error"]["kind"] == "hung" and found["host"]["cpus"] >= 1
    assert host.exec(["pgrep", "-fc", "/usr/local/bin/nvidia-smi"], check=False).stdout.strip() == "0"
