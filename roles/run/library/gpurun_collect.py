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

import base64
import urllib.error
import urllib.request
import zlib
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

_URL_TIMEOUT_S = 10


def read_file(path, max_bytes):
    """The bytes of a file and its size; of one that is too large, the first and the last half."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        if size <= max_bytes:
            return stream.read(), size
        head = stream.read(max_bytes // 2)
        stream.seek(size - max_bytes // 2)
        note = b"\n[gpurun: %d bytes left out]\n" % (size - max_bytes)
        return head + note + stream.read(), size


def read_url(url):
    """What an address on this host answers, or None."""
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=_URL_TIMEOUT_S) as answer:
            return answer.read()
    except (OSError, urllib.error.URLError, ValueError):
        return None


def packed(data, size):
    """One file as the answer carries it."""
    return {
        "data": base64.b64encode(zlib.compress(data, 1)).decode("ascii"),
        "size": size,
        "truncated": size > len(data),
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "dict", "required": True},
            "urls": {"type": "dict", "default": {}},
            "max_bytes": {"type": "int", "default": 64 * 1024 * 1024},
        },
        supports_check_mode=True,
    )
    found = {}
    for name, place in module.params["files"].items():
        path = Path(place)
        if path.is_file():
            data, size = read_file(path, module.params["max_bytes"])
            found[name] = packed(data, size)
    for name, url in module.params["urls"].items():
        data = read_url(url)
        if data is not None:
            found[name] = packed(data, len(data))
    module.exit_json(changed=False, files=found)


if __name__ == "__main__":
    main()
