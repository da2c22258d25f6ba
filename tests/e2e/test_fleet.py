"""Campaigns over ssh on booted hosts: each at its own pace, one that dies or drops out; servers that are left up."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.fleet import BIND, Desk, inventory_of, jobs_of_gpurun, server, warm_cache
from tests.e2e.program import Program, eventually
from tests.hosts import HostFleet

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(600)]
SLOW = server("--token-delay", "0.5")  # a sample of eight seconds
LONG_S = 240.0


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_cache(tmp_path_factory.mktemp("uv"))


@pytest.fixture(scope="module")
def two(bootable: None, cache: Path) -> Iterator[HostFleet]:
    with HostFleet(2, bind=BIND, uv_cache=cache) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def plain(bootable: None, cache: Path) -> Iterator[HostFleet]:
    """A host without systemd, and sshd on another port."""
    with HostFleet(1, kind="plain", port=2222, bind=BIND, uv_cache=cache) as fleet:
        yield fleet


@pytest.fixture
def desk(two: HostFleet, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "desk", inventory_of(two))
    yield desk
    desk.end()
    assert [jobs_of_gpurun(host) for host in two.hosts] == [[], []]


def measured(desk: Desk, program: Program) -> dict[tuple[str, int, str], str]:
    """What became of each sample of the run."""
    return {
        key: one["failure"]["class"] if one["failure"] else one["status"]
        for key, one in desk.samples(program.run).items()
    }


# -- a run on hosts that differ eightfold in speed ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def apart(two: HostFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, Program, dict[str, Any]]]:
    desk = Desk(tmp_path_factory.mktemp("apart"), inventory_of(two))
    delay = "{{ (0.05 if host.name == 'host1' else 0.4) * %d }}"
    desk.campaign(
        server=server("--token-delay", delay % 1),
        variants={"half": {"server": server("--token-delay", delay % 2)}},
        rounds=3,
    )
    program = desk.bench("--json")
    assert program.finish(LONG_S) == 0, program.stderr
    yield desk, program, json.loads(program.stdout)
    desk.end()


def test_no_host_waits_for_a_slower_one(apart: tuple[Desk, Program, dict[str, Any]]) -> None:
    desk, program, document = apart
    assert len(document["samples"]) == 12
    lines = (desk.folder / "results" / "fleet" / program.run / "events.jsonl").read_text().splitlines()
    done = [one["where"] for one in map(json.loads, lines) if one["event"] == "SampleFinished"]
    order = [where["host"] for where in done]
    # In step, the fast one's third round would begin after the slow one's second: then four of these eight are its own.
    assert order[:8].count("host1") >= 5, order


def test_effects_are_paired_within_a_host(apart: tuple[Desk, Program, dict[str, Any]]) -> None:
    effect = next(
        one for one in apart[2]["effects"] if one["metric"] == "output_tok_per_s" and one["variant"] == "half"
    )
    assert effect["verdict"] == "worse"  # across hosts, a factor of eight would have hidden a factor of two
    assert -0.6 < effect["estimate"] < -0.4


def test_the_plan_says_what_runs_where(apart: tuple[Desk, Program, dict[str, Any]]) -> None:
    desk, program, _ = apart
    manifest = json.loads((desk.folder / "results" / "fleet" / program.run / "manifest.json").read_text())
    (desk.folder / "facts.json").write_text(json.dumps(manifest["hosts"]))
    argv = [sys.executable, "-m", "gpurun", "plan", "-c", "campaign.yml", "--facts", "facts.json"]
    text = subprocess.run(argv, cwd=desk.folder, capture_output=True, text=True, check=True).stdout
    assert "on host1, host2" in text
    assert "--token-delay 0.05" in text and "--token-delay 0.4" in text


# -- hosts that drop out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["systemd", "plain"])
def test_a_connection_lost_in_mid_sample_is_taken_up_again(
    two: HostFleet, plain: HostFleet, kind: str, tmp_path: Path
) -> None:
    fleet = two if kind == "systemd" else plain
    desk, host = Desk(tmp_path, inventory_of(fleet)), fleet[0]
    try:
        desk.campaign(server=SLOW)
        program = desk.bench("--limit", host.name)
        program.wait_for("measuring", LONG_S)
        eventually(lambda: any("loadgen" in line for line in jobs_of_gpurun(host)))
        host.cut()
        try:
            said = program.wait_for("trying again", LONG_S)
        finally:
            host.heal()
        assert f"{host.name}: " in said and host.address in said
        assert program.finish(LONG_S) == 0, program.stderr
        assert measured(desk, program) == {(host.name, 1, "baseline"): "measured"}
        (sample,) = desk.samples(program.run).values()
        assert sample["metrics"]["output_tok_per_s"] == pytest.approx(2, rel=0.15)
        eventually(lambda: jobs_of_gpurun(host) == [])
    finally:
        desk.end()


def test_a_host_that_is_rebooted_in_mid_sample_is_told_and_resumed(two: HostFleet, desk: Desk) -> None:
    host = two[0]
    desk.campaign(server=SLOW)
    program = desk.bench("--limit", host.name)
    program.wait_for("measuring", LONG_S)
    eventually(lambda: any("loadgen" in line for line in jobs_of_gpurun(host)))
    host.reboot()
    program.finish(LONG_S)
    failure = desk.samples(program.run)[host.name, 1, "baseline"]["failure"]
    assert failure["class"] == "host_unreachable" and "rebooted" in failure["proof"], failure
    again = desk.bench("--limit", host.name, "--resume", program.run)
    assert again.finish(LONG_S) == 0, again.stderr
    assert measured(desk, program) == {(host.name, 1, "baseline"): "measured"}


def test_a_host_that_dies_costs_only_its_own_samples_and_a_resumed_run_has_them(two: HostFleet, desk: Desk) -> None:
    desk.campaign(server=SLOW, rounds=2)
    program = desk.bench()
    program.wait_for("host2.*measuring", LONG_S)
    two[1].stop()
    try:
        assert program.finish(LONG_S) == 3, program.stderr
    finally:
        two[1].start()
    got = measured(desk, program)
    assert [got["host1", number, "baseline"] for number in (1, 2)] == ["measured", "measured"]
    assert [got["host2", number, "baseline"] for number in (1, 2)] == ["host_unreachable", "host_unreachable"]
    failure = desk.samples(program.run)["host2", 1, "baseline"]["failure"]
    assert two[1].address in failure["proof"] and "--resume" in failure["advice"]
    assert "host2" in failure["advice"] and f"root@{two[1].address}; then" in failure["advice"]
    again = desk.start("bench", "--resume", program.run)  # the campaign is that of the command that began it
    assert again.finish(LONG_S) == 0, again.stderr
    assert set(measured(desk, program).values()) == {"measured"}
    assert "2 samples" in again.wait_for("run .*samples")


def test_a_host_that_is_dead_at_the_start_is_in_the_record_and_a_resumed_run_has_it(two: HostFleet, desk: Desk) -> None:
    desk.campaign(rounds=2)
    two[1].cut()
    try:
        program = desk.bench()
        assert program.finish(LONG_S) == 3, program.stderr
    finally:
        two[1].heal()
    lost = [("host2", number, "baseline") for number in (1, 2)]
    assert measured(desk, program) == {
        **dict.fromkeys(lost, "host_unreachable"),
        **{("host1", number, "baseline"): "measured" for number in (1, 2)},
    }
    failure = desk.samples(program.run)[lost[0]]["failure"]
    assert failure["phase"] == "preflight" and two[1].address in failure["proof"] and "--resume" in failure["advice"]
    assert "host_unreachable" in program.stdout and two[1].address in program.stdout
    run = desk.folder / "results" / "fleet" / program.run
    assert json.loads((run / "plan.json").read_text())["hosts"] == ["host1", "host2"]
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    (told,) = (event for event in events if event["event"] == "HostLost")
    assert told["host"] == "host2" and two[1].address in told["reason"]
    two[0].cut()  # what it has measured is kept
    try:
        again = desk.start("bench", "--resume", program.run)
        assert again.finish(LONG_S) == 3, again.stderr
    finally:
        two[0].heal()
    assert set(measured(desk, program).values()) == {"measured"}
    assert "2 samples" in again.wait_for("run .*samples")


# -- a host that runs out of memory -----------------------------------------------------------------------------------


@pytest.fixture
def limited(two: HostFleet) -> Iterator[HostFleet]:
    """Units of ours on the first host get 200 MiB each."""
    host, folder = two[0], "/run/systemd/system/gpurun-.service.d"
    # systemd-nspawn mounts version 1 of this controller so that systemd cannot use it; version 2 it can.
    host.inside(["mount", "-o", "remount,bind,rw", "/sys/fs/cgroup/memory"], check=False)
    host.inside(["mkdir", "-p", folder])
    host.inside(["sh", "-c", f"printf '[Service]\\nMemoryMax=200M\\nMemorySwapMax=0\\n' > {folder}/limit.conf"])
    host.inside(["systemctl", "daemon-reexec"])
    yield two
    host.inside(["rm", "-r", folder])
    host.inside(["systemctl", "daemon-reload"])


def test_what_the_kernels_oom_killer_ends_is_told_with_its_proof(limited: HostFleet, desk: Desk) -> None:
    greedy = {"server": server("--hoard", "1000"), "expect": "oom_host"}
    desk.campaign(variants={"greedy": greedy}, order="fixed")
    program = desk.bench("--limit", limited[0].name)
    assert program.finish(LONG_S) == 0, program.stderr
    assert measured(desk, program) == {("host1", 1, "baseline"): "measured", ("host1", 1, "greedy"): "oom_host"}
    failure = desk.samples(program.run)["host1", 1, "greedy"]["failure"]
    assert failure["phase"] == "serving" and "oom_kill rose by 1" in failure["proof"]
    assert not limited[0].exec(["ls", ".gpurun/jobs"]).stdout  # all of it is home


# -- serve and stop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["systemd", "plain"])
def test_serve_is_left_up_and_holds_its_host_until_stop(
    two: HostFleet, plain: HostFleet, kind: str, tmp_path: Path
) -> None:
    fleet = two if kind == "systemd" else plain
    desk, host = Desk(tmp_path / "desk", inventory_of(fleet)), fleet[0]
    elsewhere = Desk(tmp_path / "another machine", inventory_of(fleet))
    try:
        desk.campaign()
        words = ["-c", "campaign.yml", "--limit", host.name, "--for", "10m"]
        program = desk.start("serve", *words, "--json")
        assert program.finish(LONG_S) == 0, program.stderr
        told = json.loads(program.stdout)
        (one,) = told["servers"]
        assert (one["unit"] is not None) == (kind == "systemd")
        assert "listening" in host.exec(["cat", one["log"]]).stdout
        assert f"/{one['pid']}" in host.exec(["ls", "-d", f"/proc/{one['pid']}"]).stdout
        assert _asked_through(one) == 200
        assert not (desk.folder / "results").exists()
        refused = desk.bench("--limit", host.name)
        assert refused.finish(LONG_S) == 3
        assert f"run {told['run']} of campaign fleet holds this host" in refused.stderr
        assert f"gpurun stop {told['run']}" in refused.stderr
        assert _asked_through(one) == 200  # that a bench was refused has not disturbed it
        code, nothing = elsewhere.run("stop", "nowhere")
        assert code == 2 and told["run"] in nothing.stderr
        code, stop = elsewhere.run("stop", told["run"][-4:], "--json")  # an id that only the host knows
        assert code == 0, stop.stderr
        (ended,) = json.loads(stop.stdout)["ended"][host.name]
        assert (ended["run"], ended["pid"]) == (told["run"], one["pid"])
        assert jobs_of_gpurun(host) == []
        assert not host.exec(["ls", ".gpurun/lock.json"], check=False).stdout
    finally:
        desk.end()
        elsewhere.end()


def _asked_through(served: dict[str, Any]) -> int:
    """The status that the server answers with, through the tunnel that serve tells."""
    with subprocess.Popen(served["tunnel"]) as tunnel:
        try:

            def ask() -> int:
                try:
                    with urllib.request.urlopen(f"{served['url']}/health", timeout=5) as answer:
                        return int(answer.status)
                except OSError:
                    return 0

            return int(eventually(ask))
        finally:
            tunnel.terminate()


def test_a_server_that_does_not_start_is_explained_and_nothing_is_left(desk: Desk) -> None:
    crash = server("--crash", "CUDA error: no kernel image is available for execution on the device")
    desk.campaign(variants={"broken": {"server": crash}})
    program = desk.start("serve", "-c", "campaign.yml", "--variant", "broken", "--limit", "host1")
    assert program.finish(LONG_S) == 1, program.stderr
    assert "host1: the server did not become ready: unsupported_arch" in program.stderr
    assert "hint: This build has no code for this GPU" in program.stderr
    assert program.stdout == ""


def test_a_campaign_is_measured_by_password_alone(
    two: HostFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD", "bench")
    inventory = inventory_of(two)
    inventory["gpu_hosts"]["vars"] |= {
        "ansible_user": "bench",
        "ansible_password": "{{ lookup('env', 'WORD') }}",
        "ansible_ssh_private_key_file": "",
        "ansible_ssh_args": "-o PubkeyAuthentication=no",
        "ansible_become": True,  # its user may not write to the cache of packages that these hosts share
    }
    desk = Desk(tmp_path, inventory)
    try:
        desk.campaign(server=SLOW)
        program = desk.bench("--limit", two[0].name, "--pass-env", "WORD")
        assert program.finish(LONG_S) == 0, program.stderr
        assert measured(desk, program) == {(two[0].name, 1, "baseline"): "measured"}
    finally:
        desk.end()


# -- hosts that cannot be used -----------------------------------------------------------------------------------------


@pytest.mark.alone
def test_every_way_in_and_every_way_to_be_kept_out(two: HostFleet, plain: HostFleet, tmp_path: Path) -> None:
    """One inventory with the same hosts under many names; doctor says of each whether and why not."""
    host, other, ported = two[0], two[1], plain[0]
    inventory = inventory_of(two)
    common = inventory["gpu_hosts"]["vars"].pop("ansible_ssh_common_args")
    (tmp_path / "none").touch()
    (tmp_path / "wrong").write_text(f"# a comment\n{host.address} {other.host_key}\n")
    (tmp_path / "key").write_text("no key")
    (tmp_path / "key").chmod(0o644)
    known = f"UserKnownHostsFile {two.known_hosts}\nIdentityFile {two.key}\nStrictHostKeyChecking yes\nUser root\n"
    jump = f"Host inner\nHostName {other.address}\nProxyJump {host.address}\n"
    (tmp_path / "ssh_config").write_text(f"{jump}Host *\n{known}")
    (tmp_path / "no_jump").write_text(f"{jump}Host {host.address}\nUserKnownHostsFile {tmp_path}/none\nHost *\n{known}")

    def knowing(file: Path) -> dict[str, str]:
        return {"ansible_ssh_common_args": common.replace(str(two.known_hosts), str(file))}

    def with_key(file: Path) -> dict[str, str]:
        return {"ansible_ssh_private_key_file": str(file)}

    at = {"ansible_host": host.address, **knowing(two.known_hosts)}
    bench = {**at, "ansible_user": "bench", "ansible_ssh_private_key_file": ""}
    # PAM takes up to 3 s to refuse; ssh with signs of life every 2 s gives a busy machine just one more.
    wrong = {"ansible_password": "wrong", "ansible_ssh_args": "-o ServerAliveInterval=30"}
    inner = {"ansible_host": "inner", "ansible_ssh_common_args": f"-F {tmp_path}/ssh_config"}
    astray = {"ansible_host": "inner", "ansible_ssh_common_args": f"-F {tmp_path}/no_jump"}
    asking = {
        "ansible_ssh_common_args": knowing(tmp_path / "none")["ansible_ssh_common_args"].replace(
            "Checking=yes", "Checking=ask"
        )
    }
    elsewhere = {"ansible_host": ported.address, "ansible_port": 2222, **knowing(plain.known_hosts)}
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "unknown": ({**at, **knowing(tmp_path / "none")}, "is not known here"),
        "changed": ({**at, **knowing(tmp_path / "wrong")}, f"{tmp_path}/wrong, line 2"),
        "refused": ({**at, "ansible_port": 23}, "nothing listens on its port 23"),
        "stranger": ({**at, "ansible_user": "eve"}, f"login as eve@{host.address} is refused"),
        "nameless": ({**at, "ansible_host": "no-such-host.invalid"}, "no-such-host.invalid is not known"),
        "silent": ({**at, "ansible_host": f"{host.address.rpartition('.')[0]}.77"}, "does not answer on port 22"),
        "open-key": ({**at, **with_key(tmp_path / "key")}, f"ignores the key {tmp_path}/key"),
        "keyless": ({**at, **with_key(tmp_path / "nothing")}, f"there is no key {tmp_path}/nothing"),
        "pythonless": ({**at, "ansible_python_interpreter": "/opt/python3"}, "there is no Python"),
        "wrong-word": ({**bench, **wrong}, f"login as bench@{host.address} is refused"),
        "word": ({**bench, "ansible_password": "bench"}, ""),
        "become": ({**bench, "ansible_password": "bench", "ansible_become": True}, ""),
        "ported": ({**elsewhere, **with_key(plain.key)}, ""),
        "behind": (inner, ""),
        "astray": (astray, "inner is not reached through its jump host"),
        "asking": ({**at, **asking}, "could not be verified"),
    }
    inventory["gpu_hosts"]["hosts"] = {name: variables for name, (variables, _) in cases.items()}
    desk = Desk(tmp_path / "desk", inventory)
    try:
        program = desk.start("doctor", "--json")
        assert program.finish(LONG_S) == 3, program.stderr
    finally:
        desk.end()
    found = {(one["where"], one["check"]): one for one in json.loads(program.stdout)["findings"]}
    for name, (_, said) in cases.items():
        reach = found[name, "reach"]
        assert reach["state"] == ("fail" if said else "ok"), (name, reach)
        assert said in reach["message"], (name, reach)
        assert bool(reach["fix"]) == bool(said)
    assert "reached as root" in found["become", "reach"]["message"]
    assert "reached as bench" in found["word", "reach"]["message"]
    assert "no systemd" in found["ported", "init"]["message"]
    assert "ssh-keygen -f" in found["changed", "reach"]["fix"]
