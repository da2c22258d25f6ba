"""Files and answers of a host, packed for one trip home. Standard library only, Python >= 3.9."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

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
    import urllib.error
    import urllib.request  # late: not every sample pays for it

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


def collect(files, urls, max_bytes=64 * 1024 * 1024):
    """Name -> {data, size, truncated} of each file that exists and each address that answers."""
    found = {}
    for name, place in files.items():
        path = Path(place)
        if path.is_file():
            # Of a log, both ends tell the most; of a result, nothing is to be had without its middle.
            data, size = read_file(path, max_bytes * (16 if name.endswith(".json") else 1))
            found[name] = packed(data, size)
    for name, url in urls.items():
        data = read_url(url)
        if data is not None:
            found[name] = packed(data, len(data))
    return found
