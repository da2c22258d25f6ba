"""Asks the Python of a host, from an action plugin: a program by its standard input, JSON as its answer.

Nothing of the program stays on the host, and no module has to start, which takes a third of a second.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from shlex import quote
from typing import Any


def ask(execute: Callable[..., Mapping[str, Any]], python: str, program: str, what: str) -> Any:
    """What `program` prints. `execute` is an action plugin's `_low_level_execute_command`.

    AnsibleActionFail, which says that it cannot do `what`, where the program breaks.
    """
    from ansible.errors import AnsibleActionFail

    said = execute(f"{quote(python)} -I -", in_data=program.encode())
    if said["rc"] != 0:
        raise AnsibleActionFail(f"cannot {what}: {said['stderr'].strip()[-500:]}")
    return json.loads(said["stdout"])
