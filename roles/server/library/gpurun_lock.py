#!/usr/bin/python
"""Which run holds a host: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpurun_lock
short_description: Hold a host for one run, or give it back
description:
  - One run at a time on a host. Every call of gpurun_job for that run renews the lease.
  - A holder whose controller is dead (its process is gone; on another machine, its lease has passed) loses the host,
    after everything that its run left there has been ended.
  - A run that is resumed has its own host back sooner, after O(silent_s).
  - Otherwise a second run is told who holds the host, and fails.
options:
  state: {description: V(held) or V(released)., type: str, choices: [held, released], default: held}
  home: {description: Folder of gpurun on the host., type: str, default: ~/.gpurun}
  run: {description: "Id of the run; to release, V(*) is any.", type: str, required: true}
  campaign: {description: "Name of the campaign, for people.", type: str, default: ""}
  controller:
    description:
      - The process that conducts the run, with C(host), C(machine_id), C(pid), C(pid_start).
      - C(machine_id) is boot id and pid namespace (see gpurun_processes), C(pid_start) clock ticks since boot.
    type: dict
  lease_s: {description: Seconds that the host stays ours without a sign of life., type: float, default: 900}
  silent_s:
    description: Seconds without a sign of life, while it measures, after which the same run may go on from elsewhere.
    type: float
  wait_s: {description: Seconds to wait for another run to end., type: float, default: 0}
author: gpurun
"""

EXAMPLES = r"""
- name: Take the host
  gpurun_lock:
    run: 2026-11-30-1
    controller: {host: desk, pid: 4711, pid_start: 123456, machine_id: "..."}
"""

RETURN = r"""
held: {description: Whether the run holds the host now., returned: always, type: bool}
holder: {description: The lock of the run that holds the host instead., returned: when refused, type: dict}
ended: {description: What an earlier run or controller had left and was ended., returned: for V(held), type: list}
"""

from ansible.module_utils import gpurun_locks as locks
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpurun_jobs import JobError, check_name, expand_home


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["held", "released"], "default": "held"},
            "home": {"type": "str", "default": "~/.gpurun"},
            "run": {"type": "str", "required": True},
            "campaign": {"type": "str", "default": ""},
            "controller": {"type": "dict"},
            "lease_s": {"type": "float", "default": 900.0},
            "silent_s": {"type": "float"},
            "wait_s": {"type": "float", "default": 0.0},
        },
        required_if=[("state", "held", ["controller"])],
        supports_check_mode=True,
    )
    params, home = module.params, expand_home(module.params["home"])
    if module.check_mode:
        lock = locks.holder(home)
        mine = bool(lock) and params["run"] in ("*", lock["run"])
        module.exit_json(changed=mine == (params["state"] == "released"), held=mine, holder=lock)
    try:
        if params["run"] != "*" or params["state"] == "held":
            check_name(params["run"], "run")
        if params["state"] == "released":
            module.exit_json(changed=locks.release(home, params["run"]), held=False)
        wanted = {key: params[key] for key in ("run", "campaign", "controller", "lease_s", "silent_s")}
        result = locks.hold(home, wanted, params["wait_s"])
    except OSError as error:
        place = error.filename or home
        cure = "set `gpurun_home` in the inventory to a folder that this user may write, on a disk with space"
        module.fail_json(msg=f"{place} cannot be written: {error.strerror or error}\nhint: {cure}")
    except JobError as error:
        module.fail_json(msg=f"lock of {home}: {error}")
    if not result["held"]:
        holder = result["holder"]
        message = f"{locks.describe(holder)}\nhint: wait for it (--wait 30m), or end it: `gpurun stop {holder['run']}`"
        module.fail_json(msg=message, **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
