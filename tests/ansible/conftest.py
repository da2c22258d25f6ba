"""What tests of roles and modules share."""

from __future__ import annotations

import pytest
from tests.containers import Engine


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each of the two container engines."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Engine)
    return found
