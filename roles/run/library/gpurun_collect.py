#!/usr/bin/python
"""Bring what a sample left on the host home in one answer: logs, raw results, effective settings."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpurun_collect
short_description: Read files of a sample, and what its server says about itself
description:
  - Returns the files compressed and base64-encoded, so that one ssh round trip brings all of them.
  - A file that is missing is left out; one that is too large comes as its first and last part.
options:
  files: {description: "Name at home: path on the host.", type: dict, required: true}
  urls: {description: "Name at home: address on this host to read while the server lives.", type: dict, default: {}}
  max_bytes: {description: Most bytes of one file., type: int, default: 67108864}
author: gpurun
"""
RETURN = r"""
files: {description: "Name: {data, size, truncated}; data is base64 of zlib.", type: dict, returned: always}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpurun_collecting import collect


def main():
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "dict", "required": True},
            "urls": {"type": "dict", "default": {}},
            "max_bytes": {"type": "int", "default": 64 * 1024 * 1024},
        },
        supports_check_mode=True,
    )
    found = collect(module.params["files"], module.params["urls"], module.params["max_bytes"])
    module.exit_json(changed=False, files=found)


if __name__ == "__main__":
    main()
