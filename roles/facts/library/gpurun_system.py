#!/usr/bin/python
"""What decides whether and how a driver can be installed: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpurun_system
short_description: What decides whether and how a driver can be installed
description:
  - GPUs by their PCI ids, kernel, headers, compiler, firmware, packages, repositories, and who made what.
  - Changes nothing, and needs neither a driver nor lspci.
options:
  root:
    description: Where /sys and /proc are read.
    type: str
    default: /
  machine:
    description: What the machine is taken for; auto goes by its evidence.
    type: str
    choices: [auto, full, userspace, none]
    default: auto
  patterns:
    description: Regular expressions; packages whose names match one of them are told.
    type: list
    elements: str
    required: true
  mention:
    description: Files that define repositories are told where they have one of these texts in them.
    type: list
    elements: str
    required: true
author: gpurun
"""

EXAMPLES = r"""
- name: Look at the system
  gpurun_system:
    patterns: [nvidia]
    mention: [developer.download.nvidia.com]
"""

RETURN = r"""
gpurun_system:
  description: The facts; also set for the host, as C(ansible_facts.gpurun_system).
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible.module_utils import gpurun_system


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "str", "default": "/"},
            "machine": {"type": "str", "default": "auto", "choices": ["auto", "full", "userspace", "none"]},
            "patterns": {"type": "list", "elements": "str", "required": True},
            "mention": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    facts = gpurun_system.collect(**module.params)
    module.exit_json(changed=False, gpurun_system=facts, ansible_facts={"gpurun_system": facts})


if __name__ == "__main__":
    main()
