"""What several folders of tests share: booted hosts (see tests/hosts) and the import path of the roles' Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import ansible.module_utils
import pytest
from tests.hosts.base import locked

if TYPE_CHECKING:
    from tests.containers import Engine
    from tests.hosts import HostFleet, TestHost

# The roles' own module_utils, importable by tests as they are on a host.
for _folder in sorted(Path(__file__).parents[1].glob("roles/*/module_utils")):
    ansible.module_utils.__path__.append(str(_folder))

HOST_FIXTURES = {"bootable", "host", "plain_host", "fleet", "engine"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses a booted host carries the marker `hosts`."""
    for item in items:
        if HOST_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.hosts)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Two tests run at a time, but one that is `alone` waits until the other is over, and none begins beside it."""
    turns = item.config.cache.mkdir("turns")  # type: ignore[union-attr]
    with ExitStack() as turn:
        with locked(turns / "door"):  # nobody overtakes one who waits to be alone
            turn.enter_context(locked(turns / "room", shared=item.get_closest_marker("alone") is None))
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """What a user's machine may lack, CI has: there a skip is a failure."""
    report = yield
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def bootable() -> None:
    """Skips where this machine cannot boot hosts."""
    from tests.hosts import base_tree, missing

    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    base_tree()


@pytest.fixture(scope="session")
def docker(bootable: None) -> Iterator[Engine]:
    """A Docker engine with an image; skips where this machine has none."""
    yield from _engine("docker")


@pytest.fixture(scope="session")
def podman(bootable: None) -> Iterator[Engine]:
    """The same of Podman."""
    yield from _engine("podman")


@pytest.fixture(scope="session")
def engine(docker: Engine) -> Engine:
    """The engine that most tests take."""
    return docker


def _engine(runtime: str) -> Iterator[Engine]:
    from tests import containers

    reason = containers.missing(runtime)
    if reason is not None:
        pytest.skip(reason)
    with containers.Podman() if runtime == "podman" else containers.Engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def host(bootable: None) -> Iterator[TestHost]:
    """One booted host with systemd, shared by the tests of a module."""
    with _fleet() as hosts:
        yield hosts[0]


@pytest.fixture(scope="module")
def plain_host(bootable: None) -> Iterator[TestHost]:
    """One host without systemd: a bare sshd, as in rented containers."""
    with _fleet(kind="plain") as hosts:
        yield hosts[0]


@pytest.fixture(scope="module")
def fleet(bootable: None) -> Iterator[HostFleet]:
    """Four booted hosts."""
    with _fleet(4) as hosts:
        yield hosts


def _fleet(n: int = 1, **options: object) -> HostFleet:
    from tests.hosts import HostFleet

    return HostFleet(n, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def root_mounts() -> None:
    """Skips where this process may not mount file systems."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
