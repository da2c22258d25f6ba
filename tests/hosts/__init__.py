"""Real hosts for tests: see HostFleet."""

from tests.hosts.base import base_tree
from tests.hosts.fleet import HostFleet, missing
from tests.hosts.machine import Kind, TestHost

__all__ = ["HostFleet", "Kind", "TestHost", "base_tree", "missing"]
