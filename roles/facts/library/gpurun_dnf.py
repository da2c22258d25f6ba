#!/usr/bin/python
"""Packages of the RPM family by the program dnf: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpurun_dnf
short_description: Packages of the RPM family by the program dnf
description:
  - Does what ansible.builtin.dnf does, without Python's bindings of dnf, which on RHEL 8 are those of a Python (3.6)
    that Ansible no longer serves. What changed is told by the packages before and after.
  - In check mode dnf is asked what it would do.
options:
  name:
    description: Packages, by name or as C(NAME-VERSION), which also goes back to that version.
    type: list
    elements: str
    required: true
  state:
    description: V(absent) leaves what the packages had asked for.
    type: str
    choices: [present, absent]
    default: present
  recommended:
    description: Whether to install what the packages recommend.
    type: bool
    default: true
  erase:
    description: Whether packages that are in the way may be removed.
    type: bool
    default: false
  lock_timeout:
    description: Seconds to wait for another dnf.
    type: int
    default: 600
author: gpurun
"""

EXAMPLES = r"""
- name: Install the compiler
  gpurun_dnf:
    name: [gcc]
"""

RETURN = r"""
installed: {description: "What has come; in check mode, names that dnf would touch.", type: list, returned: always}
removed: {description: Packages that have gone., type: list, returned: always}
"""

import re
import subprocess
import time

from ansible.module_utils.basic import AnsibleModule

LOCKED = 200  # what dnf ends with where another one works: dnf(8), "exit status"
NOT_FOUND = re.compile("(?m)^Error: Unable to find a match")
# Of the table: its parts that are of packages, and those; a line that is wrapped goes on further in.
PART = re.compile(r"(?ms)^(?:Install|Reinstall|Upgrad|Downgrad|Remov)ing\b[^\n]*:\n(.*?)(?=^\S|\Z)")
TOUCHED = re.compile(r"(?m)^ (\S+)")


def run(module, words):
    """dnf's exit code and what it says, once no other dnf is at work."""
    argv = [module.get_bin_path("dnf", required=True), "--setopt=exit_on_lock=True", *words]
    until = time.monotonic() + module.params["lock_timeout"]
    while True:
        done = module.run_command(argv, environ_update={"LC_ALL": "C.UTF-8", "COLUMNS": "500"})
        if done[0] != LOCKED or time.monotonic() > until:
            return done
        time.sleep(1)  # the other one tells nobody when it ends


def installed():
    """Name, version and architecture of each package that there is; of a kernel's there may be several."""
    argv = ["rpm", "-qa", "--qf", "%{NAME}-%{EPOCHNUM}:%{VERSION}-%{RELEASE}.%{ARCH}\n"]
    return set(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines())


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "list", "elements": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "recommended": {"type": "bool", "default": True},
            "erase": {"type": "bool", "default": False},
            "lock_timeout": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    asked = module.params
    words = ["remove", "--noautoremove"]
    if asked["state"] == "present":
        words = ["install", f"--setopt=install_weak_deps={asked['recommended']}", *["--allowerasing"] * asked["erase"]]
    words += ["--assumeno" if module.check_mode else "--assumeyes", "--", *asked["name"]]
    before = set() if module.check_mode else installed()
    code, out, err = run(module, words)
    if code and NOT_FOUND.search(err):  # published since dnf looked last
        code, out, err = run(module, ["--refresh", *words])
    table, summary, _ = out.partition("\nTransaction Summary")
    would = module.check_mode and bool(summary)  # then dnf ends with 1, as it was told no
    if code and not would:
        told = "\n".join(line for line in err.splitlines() if line.strip()) or out
        module.fail_json(msg=f"dnf {words[0]} {' '.join(asked['name'])}: {told.strip()}", stdout=out, rc=code)
    if module.check_mode:
        names = TOUCHED.findall("".join(PART.findall(table))) if would else []
        module.exit_json(changed=would, installed=names, removed=[])
    after = installed()
    module.exit_json(changed=after != before, installed=sorted(after - before), removed=sorted(before - after))


if __name__ == "__main__":
    main()
