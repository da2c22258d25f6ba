"""Campaigns whose load comes from another host than the server's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.fleet import BIND, ROOT, Desk, inventory_of, jobs_of_gpurun, server, warm_cache
from tests.e2e.program import Program, eventually
from tests.hosts import HostFleet, TestHost

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(600)]
LONG_S = 240.0
SERVER = server("--host", "{{ bind }}", "--token-delay", "0.3")  # a sample of five seconds


@pytest.fixture(scope="module")
def fleet(bootable: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostFleet]:
    cache = warm_cache(tmp_path_factory.mktemp("uv"))
    with HostFleet(names=["server", "load"], bind=BIND, uv_cache=cache) as fleet:
        yield fleet


@pytest.fixture
def desk(fleet: HostFleet, tmp_path: Path) -> Iterator[Desk]:
    """With one host for servers and one for the load, which keeps its things elsewhere. Both are clean at the end."""
    inventory = inventory_of(fleet)
    group = inventory["gpu_hosts"]
    sender = {"load": {**group["hosts"].pop("load"), "gpurun_home": "/var/tmp/gpurun"}}
    inventory["load_hosts"] = {"hosts": sender, "vars": dict(group["vars"])}
    desk = Desk(tmp_path / "desk", inventory)
    (desk.folder / "inventory.yml").write_text(json.dumps(inventory))
    yield desk
    desk.end()
    for host, home in zip(fleet.hosts, (".gpurun", "/var/tmp/gpurun"), strict=True):
        assert clients(host) == servers(host) == []
        assert not host.exec(["ls", f"{home}/lock.json"], check=False).stdout


def clients(host: TestHost) -> list[str]:
    return [line for line in host.inside(["ps", "-eo", "pid,args"]).splitlines() if "-m loadgen /" in line]


def servers(host: TestHost) -> list[str]:
    """Pids of the small server, without its supervisor."""
    lines = host.inside(["ps", "-eo", "pid,args"]).splitlines()
    return [line.split()[0] for line in lines if line.split()[1:3] == SERVER["argv"][:2]]


def while_loading(program: Program, fleet: HostFleet) -> list[str]:
    """Wait for the client on the load host; a program that ends before is told with what it said."""
    found = eventually(lambda: clients(fleet[1]) or (program.process.poll() is not None and ["ended"]), LONG_S)
    assert found != ["ended"], program.stderr
    return list(found)


def stored(desk: Desk, run: str) -> tuple[Path, dict[str, Any]]:
    path, *_ = sorted((desk.folder / "results" / "fleet" / run / "samples").glob("*/*/*/sample.json"))
    return path.parent, json.loads(path.read_text())


def test_the_load_comes_from_the_load_host(fleet: HostFleet, desk: Desk) -> None:
    desk.campaign(server=SERVER)
    program = desk.bench("--limit", "server")  # load hosts need not be named there
    at_work = while_loading(program, fleet)
    assert clients(fleet[0]) == [] and servers(fleet[1]) == []
    assert all("/var/tmp/gpurun/" in line for line in at_work)
    assert program.finish(LONG_S) == 0, program.stderr
    folder, sample = stored(desk, program.run)
    assert (sample["host"], sample["status"]) == ("server", "measured")
    assert sample["metrics"]["output_tok_per_s"] == pytest.approx(1 / 0.3, rel=0.15)
    assert {path.name for path in folder.iterdir()} >= {"sample.json", "server.log", "client.log", "raw.json"}
    assert fleet[0].address in json.loads((folder / "raw.json").read_text())["spec"]["base_url"]
    assert "0.0.0.0" in (folder / "server.log").read_text()
    assert not fleet[0].exec(["ls", ".gpurun/tools"], check=False).stdout  # installed on the load host only
    plan = json.loads((folder.parents[3] / "plan.json").read_text())
    assert plan["notes"] == ["load sends the load of server, where servers listen on 0.0.0.0"]


def test_ansible_playbook_alone_does_the_same(fleet: HostFleet, desk: Desk) -> None:
    desk.campaign(server=SERVER)
    playbook = [str(Path(sys.executable).with_name("ansible-playbook")), str(ROOT / "playbooks" / "bench.yml")]
    variables = {"gpurun_campaign_file": f"{desk.folder}/campaign.yml", "gpurun_results_dir": f"{desk.folder}/results"}
    program = Program(
        [*playbook, "-i", "inventory.yml", "-e", json.dumps(variables)],
        desk.folder,
        {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
    )
    try:
        while_loading(program, fleet)
        assert program.finish(LONG_S) == 0, program.stderr + program.stdout
    finally:
        program.end()


def test_a_server_killed_under_load_is_told_as_dead(fleet: HostFleet, desk: Desk) -> None:
    desk.campaign(server=SERVER)
    program = desk.bench()
    while_loading(program, fleet)
    (pid,) = servers(fleet[0])
    fleet[0].inside(["kill", "-9", pid])  # as the kernel's OOM killer does, which has counted nothing
    assert program.finish(LONG_S) == 5, program.stderr  # nothing was measured
    folder, sample = stored(desk, program.run)
    assert (sample["failure"]["class"], sample["failure"]["phase"]) == ("engine_dead", "serving")
    assert "not the kernel's OOM killer" in sample["failure"]["advice"]
    assert {path.name for path in folder.iterdir()} >= {"server.log", "client.log"}


def test_a_load_host_that_cannot_be_reached_costs_its_server_and_says_so(fleet: HostFleet, desk: Desk) -> None:
    desk.campaign(server=SERVER)
    fleet[1].cut()
    try:
        program = desk.bench()
        assert program.finish(LONG_S) == 3
    finally:
        fleet[1].heal()
    assert fleet[1].address in program.stderr
    assert jobs_of_gpurun(fleet[0]) == []


def test_a_group_that_does_not_exist_is_refused(desk: Desk) -> None:
    desk.campaign(server=SERVER, load_hosts="senders")
    program = desk.bench()
    assert program.finish(LONG_S) == 2
    assert "the inventory has no host for `load_hosts: senders`" in program.stderr
