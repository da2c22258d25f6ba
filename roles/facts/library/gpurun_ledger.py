#!/usr/bin/python
"""What gpurun installs on a host, written down so that it can be undone: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpurun_ledger
short_description: What gpurun installs on a host, written down so that it can be undone
description:
  - C(opened) notes what is installed before gpurun adds to it; C(closed) writes down what has come since. A run that is
    interrupted in between leaves the note, and the next run that closes counts from there.
options:
  component:
    description: Such as driver.
    type: str
    required: true
  state:
    description: See above; C(absent) forgets the component.
    type: str
    choices: [opened, closed, absent]
    required: true
  manager:
    description: Whose packages are looked at.
    type: str
    choices: [apt, dnf]
    required: true
  files:
    description: Files that gpurun has written for this component.
    type: list
    elements: str
    default: []
author: gpurun
"""

EXAMPLES = r"""
- name: Note what is there
  gpurun_ledger:
    component: driver
    state: opened
    manager: apt
"""

RETURN = r"""
ledger:
  description: C(packages) and C(files) that gpurun has installed, as far as that is known.
  returned: always
  type: dict
"""

import contextlib
import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible.module_utils import gpurun_packages, gpurun_system


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "component": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["opened", "closed", "absent"], "required": True},
            "manager": {"type": "str", "choices": ["apt", "dnf"], "required": True},
            "files": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    component, state = module.params["component"], module.params["state"]
    known = gpurun_system.ledger().get(component)
    before = known if isinstance(known, dict) else {}
    after = {"packages": [], "files": [], **before}
    if state != "absent":
        now = sorted(gpurun_packages.installed(module.params["manager"]))
        if state == "opened":
            after.setdefault("before", now)
        elif "before" in after:
            added = {*after["packages"], *now} - set(after.pop("before"))
            after["packages"] = sorted({*after["packages"], *added} & set(now))
        after["files"] = sorted({*after["files"], *module.params["files"]})
    path = Path(gpurun_system.LEDGER, f"{component}.json")
    changed = path.exists() if state == "absent" else after != before
    if changed and not module.check_mode:
        path.parent.mkdir(parents=True, exist_ok=True)
        if state == "absent":
            path.unlink()
            with contextlib.suppress(OSError):  # not empty
                path.parent.rmdir()
                path.parent.parent.rmdir()
        else:
            partial = path.with_suffix(".new")
            partial.write_text(json.dumps(after), encoding="utf-8")
            partial.replace(path)
    module.exit_json(changed=changed, ledger={key: after[key] for key in ("packages", "files")})


if __name__ == "__main__":
    main()
