"""A booted host to provision, the repositories that it is provisioned from, and a desk to do it at."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.awx.job import ExecutionEnvironment
from tests.e2e.fleet import Desk, inventory_of
from tests.e2e.program import Program, eventually
from tests.hosts import HostFleet, TestHost
from tests.nvidia_machine import MACHINE, make_machine, packages
from tests.nvidia_repository import Repository

_LOCK = "import fcntl,os,time; f=open('/var/lib/dpkg/lock-frontend','w'); fcntl.lockf(f,fcntl.LOCK_EX); "
_LOCK += "open('/run/locked','w'); [time.sleep(.1) for _ in iter(lambda: os.path.exists('/run/locked'), False)]"
# apt-get that waits for a lock; the pattern does not find itself
_WAITS = "grep -alz 'DPkg::Lock::[T]imeout' /proc/[0-9]*/cmdline || true"
_PROGRAMS = ("gpg-agent", "dpkg-deb", "rpmbuild", "createrepo_c")


class Machine:
    """A host, its repositories, and a desk to provision it from, with this gpurun or that of an execution environment.
    `before` are the packages that it began with."""

    def __init__(
        self,
        fleet: HostFleet,
        repository: Repository,
        folder: Path,
        row: str = "debian12",
        user: str = "root",
        ee: ExecutionEnvironment | None = None,
    ) -> None:
        self.fleet, self.host, self.repository, self.row = fleet, fleet[0], repository, row
        self._user = user
        self._login = folder / "login"  # which an execution environment sees, as it does not the fleet's own folder
        self._login.mkdir(parents=True)
        for path in (fleet.key, fleet.known_hosts):
            shutil.copy2(path, self._login)
        there = ["env", "-C", str(folder), f"HOME={folder}"]
        gpurun = {"gpurun": ee.command(*there, f"{ee.path}/bin/gpurun")} if ee else {}
        self.desk = Desk(folder, self.inventory(), **gpurun)
        self.before = packages(self.host)

    def inventory(self, **variables: Any) -> dict[str, Any]:
        """The host's, with more variables."""
        wishes = {
            "provision_root": MACHINE,
            "provision_machine": "full",
            "provision_repository_url": self.repository.url,
            "provision_keyring_sha256": self.repository.keyring_sha256(self.row),
        }
        known = json.dumps(inventory_of(self.fleet, user=self._user, **wishes, **variables))
        return json.loads(known.replace(str(self.fleet.folder), str(self._login)))  # type: ignore[no-any-return]

    def start(self, *words: str) -> Program:
        return self.desk.start("provision", "--json", *words)

    def run(self, *words: str, code: int = 0) -> dict[str, Any]:
        """gpurun provision, to its end; what it says of the host."""
        return self.finished(self.start(*words), code)

    def finished(self, program: Program, code: int = 0) -> dict[str, Any]:
        assert program.finish(240) == code, program.stderr + program.stdout
        hosts = json.loads(program.stdout)["hosts"]
        found = hosts[self.host.name]
        assert isinstance(found, dict)
        return found

    @property
    def said(self) -> str:
        """What the last call said beside its document."""
        return self.desk.started[-1].stderr

    def versions(self) -> dict[str, str]:
        """The driver's packages, and their versions without the packaging's."""
        return {
            name: v.partition("-")[0]
            for name, v in packages(self.host).items()
            if "nvidia" in name or "libcuda" in name
        }

    @property
    def rpm(self) -> bool:
        """Whether its packages are rpm's."""
        return self.row.startswith("rhel")

    def driver(self) -> set[tuple[str, str]]:
        """The driver's packages and versions, of whichever package manager; one may be there twice."""
        if not self.rpm:
            return set(self.versions().items())
        said = self.host.inside(["rpm", "-qa", "--qf", "%{NAME} %{VERSION}\n", "*nvidia*"])
        found = [line.partition(" ") for line in said.splitlines() if "container" not in line]
        return {(name, version) for name, _, version in found}


@contextlib.contextmanager
def provisionable(
    folder: Path,
    publish: Callable[[Repository], None],
    *,
    row: str = "debian12",
    gpus: Sequence[str] = ("0302:2bb5",),
    user: str = "root",
    ee: ExecutionEnvironment | None = None,
    **fleet: Any,
) -> Iterator[Machine]:
    """A bare machine with these GPUs, into which `user` logs in, from `ee` where there is one. Skips where this machine
    lacks programs for it."""
    lacking = [program for program in _PROGRAMS if not shutil.which(program)]
    if lacking:
        reason = f"missing: {' '.join(lacking)} (tests/hosts/install.sh installs them)"
        pytest.skip(reason)
    with HostFleet(**fleet) as hosts, contextlib.ExitStack() as ends:
        repository = Repository(folder, hosts[0].address.rpartition(".")[0] + ".1")
        ends.callback(repository.close)
        publish(repository)
        repository.publish_system()
        make_machine(hosts[0], repository, gpus=gpus)
        machine = Machine(hosts, repository, folder / "desk", row, user, ee)
        ends.callback(machine.desk.end)
        yield machine


def seen(host: TestHost, path: str) -> bool:
    """Whether a path is there, on the host."""
    return host.inside(["sh", "-c", f"test -e {path} && echo yes || true"]) != ""


# -- what holds on each system ----------------------------------------------------------------------------------------


def begins_nothing_that_could_not_end(machine: Machine, *words: str) -> None:
    """Too little disk, then no repository."""
    before = machine.driver()
    machine.host.fill_disk(200 << 20)
    full = machine.run(*words, code=3)
    machine.host.free_disk()
    assert [one["check"] for one in full["refusals"]] == ["disk"]
    machine.repository.down()
    down = machine.run(*words, code=3)
    machine.repository.up()
    assert [one["check"] for one in down["refusals"]] == ["repository"]
    assert machine.driver() == before


def loses_power_halfway(machine: Machine, *words: str) -> None:
    """The host does, while the driver is being installed."""
    machine.host.inside(["sh", "-c", "touch /run/hold-postinst; rm -f /run/postinst-runs"])
    program = machine.start(*words)
    eventually(lambda: seen(machine.host, "/run/postinst-runs"))
    machine.host.stop()
    machine.host.start()
    assert program.finish(240) == 3


def waits_for_another(machine: Machine, *words: str) -> dict[str, Any]:
    """Another apt or dnf is at work when the driver's turn comes; what is said of the host at the end."""
    before = machine.driver()
    if machine.rpm:
        machine.host.inside(["sh", "-c", "touch /run/hold-postinst; rm -f /run/postinst-runs; rpm -e slow || true"])
        held, other = "/run/hold-postinst", ["dnf", "-y", "install", "slow"]
    else:
        held, other = "/run/locked", ["python3", "-c", _LOCK]
    machine.host.inside(["systemd-run", "--collect", "--unit=other", *other])
    eventually(lambda: seen(machine.host, "/run/postinst-runs" if machine.rpm else held))
    asked = len(machine.repository.asked)
    program = machine.start(*words)
    if machine.rpm:
        eventually(lambda: any("kmod-nvidia-open-dkms" in path for path in machine.repository.asked[asked:]))
    else:
        eventually(lambda: machine.host.inside(["sh", "-c", _WAITS]))
    assert machine.driver() == before
    machine.host.inside(["rm", held])
    return machine.finished(program)
