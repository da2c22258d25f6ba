"""What of a machine may be used, read from trees of files as kernels write them, and from this machine."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from ansible.module_utils import gpurun_host


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module reads the system's files below tmp_path."""
    monkeypatch.setattr(gpurun_host, "ROOT", str(tmp_path))


def put(root: Path, path: str, content: str) -> None:
    """One file of a tree."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content)


@pytest.fixture
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """An affinity wide enough for quotas to matter on any machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.parametrize(("quota", "cpus"), [("250000 100000", 2), ("50000 100000", 1), ("max 100000", 8)])
def test_quota_of_cgroup_2_counts_on_any_level(
    tree: None, tmp_path: Path, eight_cpus: None, quota: str, cpus: int
) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/outer.slice/inner.scope\n")
    put(tmp_path, "sys/fs/cgroup/outer.slice/inner.scope/cpu.max", "max 100000\n")
    put(tmp_path, "sys/fs/cgroup/outer.slice/cpu.max", f"{quota}\n")
    assert gpurun_host.usable_cpus() == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("300000", 3), ("-1", 8)])
def test_quota_of_cgroup_1(tree: None, tmp_path: Path, eight_cpus: None, quota: str, cpus: int) -> None:
    put(tmp_path, "proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n")
    put(tmp_path, "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", quota)
    put(tmp_path, "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000")
    assert gpurun_host.usable_cpus() == cpus


def test_affinity_counts() -> None:
    all_of_them = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(all_of_them)})
        assert gpurun_host.usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, all_of_them)


def test_memory_is_what_the_control_group_leaves(tree: None, tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", "MemTotal:       16000000 kB\nMemAvailable:   12000000 kB\n")
    put(tmp_path, "proc/self/cgroup", "0::/pod/job\n")
    put(tmp_path, "sys/fs/cgroup/pod/memory.max", str(4 << 30))
    put(tmp_path, "sys/fs/cgroup/pod/memory.current", str(1 << 30))
    put(tmp_path, "sys/fs/cgroup/pod/job/memory.max", "max")
    host = gpurun_host.collect("~/.gpurun")
    assert (host["memory_bytes"], host["memory_available_bytes"]) == (4 << 30, 3 << 30)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    host = gpurun_host.collect("~/.gpurun")
    assert (host["memory_bytes"], host["memory_available_bytes"]) == (16000000 * 1024, 12000000 * 1024)


@pytest.mark.parametrize(
    ("files", "container"),
    [
        ({"run/systemd/container": "lxc\n"}, "lxc"),
        ({"proc/1/environ": "PATH=/bin\0container=podman\0"}, "podman"),
        ({".dockerenv": ""}, "docker"),
        ({"proc/1/cgroup": "0::/kubepods/burstable/x\n"}, "kubernetes"),
        ({"proc/self/mounts": "overlay / overlay rw 0 0\n"}, "other"),
        ({"proc/self/mounts": "/dev/sda1 / ext4 rw 0 0\noverlay /var/lib/x overlay rw 0 0\n"}, "none"),
    ],
)
def test_container_by_its_traces(tree: None, tmp_path: Path, files: dict[str, str], container: str) -> None:
    for path, content in files.items():
        put(tmp_path, path, content)
    assert gpurun_host.collect("~")["container"] == container


def test_cores_are_counted_per_socket(tree: None, tmp_path: Path) -> None:
    threads = [(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 1), (1, 0), (1, 1)]
    lines = [f"model name\t: Test CPU\nphysical id\t: {socket}\ncore id\t\t: {core}\n" for socket, core in threads]
    put(tmp_path, "proc/cpuinfo", "\n".join(lines))
    host = gpurun_host.collect("~")
    assert (host["cores"], host["sockets"], host["cpu_model"]) == (4, 2, "Test CPU")


def test_os_release_with_quotes(tree: None, tmp_path: Path) -> None:
    put(tmp_path, "etc/os-release", 'PRETTY_NAME="Rocky Linux 9.4"\nID=\'rocky\'\nVERSION_ID="9.4"\n')
    assert gpurun_host.collect("~")["os"] == {"id": "rocky", "version": "9.4", "name": "Rocky Linux 9.4"}


def test_this_machine() -> None:
    host = gpurun_host.collect("~/.gpurun/not/there/yet")
    assert host["user"] == pwd.getpwuid(os.getuid()).pw_name
    assert str(host["home"]).startswith("/") and str(host["home"]).endswith("/not/there/yet")
    assert isinstance(host["disk_free_bytes"], int) and host["disk_free_bytes"] > 0
    assert 1 <= host["cpus"] <= host["cpus_logical"]
    assert 0 < host["memory_available_bytes"] <= host["memory_bytes"]
    assert set(host["commands"]) == set(gpurun_host.COMMANDS)


def test_commands_are_found_where_a_session_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert gpurun_host.find_command("sh") in ("/usr/bin/sh", "/bin/sh")
    assert gpurun_host.find_command("no-such-program") is None


def test_versions_of_engines_that_a_host_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run must see that a program of the host is another one now."""
    bins = tmp_path / "venv" / "bin"
    (tmp_path / "venv/lib/python3.12/site-packages/vllm-0.33.0.dist-info").mkdir(parents=True)
    put(tmp_path, "venv/bin/vllm", "#!/bin/sh\nexit 3\n")
    put(tmp_path, "venv/bin/sglang", "#!/bin/sh\nexit 3\n")
    put(tmp_path, "venv/bin/llama-server", "#!/bin/sh\necho 'ggml: cpu'\necho 'version: 10434 (a1b2c3d)' >&2\n")
    for program in bins.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bins}:/usr/bin:/bin")
    assert gpurun_host.collect("~")["engine_versions"] == {"vllm": "0.33.0", "llama-server": "10434 (a1b2c3d)"}
