"""The test hosts themselves: what other tests lean on must hold."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.hosts import HostFleet, TestHost
from tests.hosts.slots import NSPAWN, cgroup_roots

REPOSITORY = Path(__file__).parents[2]


def test_booted_host_runs_systemd_with_transient_units(host: TestHost) -> None:
    assert host.exec(["systemctl", "is-system-running", "--wait"]).stdout.strip() == "running"
    done = host.exec(
        ["systemd-run", "--wait", "--collect", "-p", "RuntimeMaxSec=1", "sh", "-c", "sleep 30 & wait"], check=False
    )
    assert "Finished with result: timeout" in done.stderr
    assert host.boot_s < 10


def test_user_without_privileges_logs_in_and_may_become_root(host: TestHost) -> None:
    assert host.exec(["whoami"], user="bench").stdout.strip() == "bench"
    assert host.exec(["sudo", "-n", "whoami"], user="bench").stdout.strip() == "root"


def test_plain_host_has_no_systemd_and_survives_a_restart(plain_host: TestHost) -> None:
    assert "systemd" not in plain_host.exec(["cat", "/proc/1/comm"]).stdout.strip()
    assert plain_host.exec(["test", "-d", "/run/systemd/system"], check=False).returncode == 1
    plain_host.exec(["touch", "/root/kept"])
    plain_host.reboot()
    plain_host.exec(["test", "-e", "/root/kept"])


def test_cut_hangs_the_connection_and_heal_brings_it_back(host: TestHost) -> None:
    command = ["ssh", *host.ssh_options, f"root@{host.address}", "echo up; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as session:
        try:
            assert session.stdout is not None and session.stdout.readline() == "up\n"
            host.cut()
            # Keepalives (2 s, 2 missed) notice; nothing tells ssh that the peer is gone.
            assert session.wait(timeout=15) == 255
            assert host.exec(["true"], check=False, timeout_s=15).returncode == 255
            assert host.inside(["hostname"]).strip() == host.name
        finally:
            session.kill()
            host.heal()
    assert host.exec(["hostname"]).stdout.strip() == host.name


def test_reboot_is_a_new_boot_with_the_old_disk_and_host_key(host: TestHost) -> None:
    def boot_id() -> str:
        return host.exec(["cat", "/proc/sys/kernel/random/boot_id"]).stdout

    before = boot_id()
    host.exec(["sh", "-c", "touch /root/kept /run/lost"])
    host.reboot()
    assert boot_id() != before
    host.exec(["test", "-e", "/root/kept"])
    assert host.exec(["test", "-e", "/run/lost"], check=False).returncode == 1


def test_reboot_from_within_comes_back_too(host: TestHost) -> None:
    module = ["ansible", "all", "-i", str(host.inventory_path), "-m", "ansible.builtin.reboot"]
    done = subprocess.run(
        [str(Path(sys.executable).with_name(module[0])), *module[1:], "-a", "reboot_timeout=30 post_reboot_delay=0"],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert '"rebooted": true' in done.stdout, done.stdout + done.stderr


def test_full_disk_refuses_writes_until_freed(host: TestHost) -> None:
    host.fill_disk()
    full = host.exec(["dd", "if=/dev/zero", "of=/root/more", "bs=4096", "count=4"], check=False)
    assert "No space left on device" in full.stderr
    host.fill_disk(leave_bytes=64 << 20)
    host.exec(["dd", "if=/dev/zero", "of=/root/more", "bs=1M", "count=32"])
    host.free_disk()
    host.exec(["dd", "if=/dev/zero", "of=/root/more", "bs=1M", "count=128"])
    host.exec(["rm", "/root/more"])


def test_fleet_of_four_is_reached_by_ansible_with_pinned_keys(fleet: HostFleet) -> None:
    program = Path(sys.executable).with_name("ansible")
    argv = [str(program), "gpu_hosts", "-i", str(fleet.inventory_path), "-o", "-m", "command", "-a", "hostname"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line.split("(stdout) ")[1] for line in done.stdout.splitlines()) == [h.name for h in fleet.hosts]


def test_cutting_one_host_leaves_the_others_reachable(fleet: HostFleet) -> None:
    fleet[1].cut()
    try:
        assert [fleet[k].exec(["hostname"]).stdout.strip() for k in (0, 2, 3)] == ["host1", "host3", "host4"]
    finally:
        fleet[1].heal()


def test_changed_host_key_is_refused(host: TestHost) -> None:
    known_hosts = host.inventory_path.with_name("known_hosts")
    right = known_hosts.read_text()
    other = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(known_hosts.with_name("key"))], capture_output=True, text=True
    )
    try:
        known_hosts.write_text(f"{host.address} {' '.join(other.stdout.split()[:2])}\n")
        done = host.exec(["true"], check=False)
        assert done.returncode == 255 and "REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr
    finally:
        known_hosts.write_text(right)


def test_options_reach_the_hosts(bootable: None, tmp_path: Path) -> None:
    (tmp_path / "wheel").write_text("w")
    options = {"bind": {str(tmp_path): "/srv/wheels"}, "overlay": {str(tmp_path): "/srv/cache"}, "port": 2222}
    with HostFleet(1, "plain", names=["odd"], **options) as fleet:  # type: ignore[arg-type]
        assert fleet[0].exec(["cat", "/etc/hostname", "/srv/wheels/wheel"]).stdout == "odd\nw"
        assert "Read-only" in fleet[0].exec(["touch", "/srv/wheels/new"], check=False).stderr
        fleet[0].exec(["touch", "/srv/cache/new"])
        fleet[0].reboot()
        fleet[0].exec(["test", "-e", "/srv/cache/new"])
    assert [path.name for path in tmp_path.iterdir()] == ["wheel"]


def test_hosts_install_offline_from_a_warm_cache(bootable: None, tmp_path: Path) -> None:
    uv, cache = str(Path(sys.executable).with_name("uv")), tmp_path / "cache"
    wheel = tmp_path / "warm-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("warm.py", "")
        archive.writestr("warm-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: warm\nVersion: 1.0\n")
        archive.writestr("warm-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("warm-1.0.dist-info/RECORD", "")
    install = ["--find-links", "/srv", "--no-index", "warm"]
    local = [uv, "--cache-dir", str(cache), "pip", "install", "--target", str(tmp_path / "t"), "--no-index"]
    subprocess.run([*local, "--find-links", str(tmp_path), "warm"], check=True, capture_output=True)
    with HostFleet(1, uv_cache=cache, bind={uv: "/usr/local/bin/uv", str(wheel): f"/srv/{wheel.name}"}) as fleet:
        variables = fleet.inventory()["gpu_hosts"]["vars"]  # type: ignore[index]
        environment = [f"{key}={value}" for key, value in variables["uv_environment"].items()]
        fleet[0].exec(["env", *environment, "uv", "pip", "install", "--target", "/root/t", *install])
        fleet[0].exec(["python3", "-c", "import sys; sys.path.insert(0, '/root/t'); import warm"])


_RUN_AND_TELL = """
import json, os, sys
from tests.hosts import HostFleet
fleet = HostFleet(2, overlay={os.getcwd(): "/srv/here"}).start()
try:
    roots = [os.stat(host.root) for host in fleet.hosts]
    locks = [f"inode-{root.st_dev}:{root.st_ino}" for root in roots]
    print(json.dumps([fleet.folder.name, fleet[0].machine, locks]), flush=True)
    sys.stdin.read()
finally:
    fleet.stop()
"""


@pytest.mark.alone
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_after_a_dead_test_run(bootable: None, how: signal.Signals) -> None:
    """SIGINT cleans up by itself; what a SIGKILL leaves is removed by the next fleet in that slot."""
    with subprocess.Popen(
        [sys.executable, "-c", _RUN_AND_TELL],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        slot, machine, locks = json.loads(child.stdout.readline())
        assert any((root / machine).is_dir() for root in cgroup_roots())
        assert all((NSPAWN / "locks" / lock).exists() for lock in locks)
        child.send_signal(how)
        child.wait(timeout=30)
    if how == signal.SIGINT:
        assert not any((root / machine).is_dir() for root in cgroup_roots())
    with HostFleet(1, "plain", slot=int(slot)):
        assert not Path(f"/run/netns/gpt{slot}-2").exists()
    assert not any(list(root.glob(f"gpt{slot}-*")) for root in cgroup_roots())
    assert f"/gpurun-tests/{slot}/" not in Path("/proc/self/mountinfo").read_text()
    assert not Path(f"/var/tmp/gpurun-tests/{slot}").exists()
    assert not Path(f"/sys/class/net/gpt{slot}").exists()
    assert not any(path.name in locks for path in NSPAWN.glob("locks/*"))
