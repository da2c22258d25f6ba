"""Files over HTTP: streamed, resumed where they broke off, hashed, and never begun where the disk is too small."""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request

from ansible.module_utils.gpurun_worker import Trouble

_CHUNK = 1 << 20
_TIMEOUT_S = 60
_TRIES = 5  # in a row without a single new byte
_REPORT_S = 0.5
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_MARGIN_MIN, _MARGIN_MAX = 16 << 20, 1 << 30


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A token goes to the host that it is for, and not to where that host sends us."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and _origin(newurl) != _origin(req.full_url):
            request.remove_header("Authorization")
        return request


def _origin(url):
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


class Web:
    """Requests with one token for one origin. `meanings` turns a status into words: (status, headers) -> Trouble."""

    def __init__(self, token=None, origin=None, meaning=None):
        self._opener = urllib.request.build_opener(_Redirects)
        self._token, self._origin, self._meaning = token, origin, meaning

    def open(self, url, headers=None):
        """The answer to a GET of an http(s) address. OSError where there is none."""
        headers = {"User-Agent": "gpurun", **(headers or {})}
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 (a campaign's URL is http or https)
        if self._token and _origin(url) == _origin(self._origin):
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            return self._opener.open(request, timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            with error:
                if error.code >= 500 or error.code in (408, 416, 429):
                    raise
                trouble = self._meaning(error.code, error.headers) if self._meaning else None
                raise trouble or Trouble(
                    "bad_model", f"{_plain(url)} answers {error.code} {error.reason}", "", "check the address"
                ) from None

    def json(self, url):
        """A JSON answer, and the address of its next page or None."""
        for attempt in range(_TRIES):
            try:
                with self.open(url) as answer:
                    return json.load(answer), _next_page(answer.headers.get("Link", ""))
            except (OSError, http.client.HTTPException, ValueError) as error:
                if attempt == _TRIES - 1:
                    raise unreachable(url, error) from None
                time.sleep(2.0**attempt / 4)
        return None, None

    def fetch(self, url, target, report, size=None):
        """Download to `target`, going on from what is there of it. `report(bytes=, total_bytes=)` twice a second.

        `size` is what the file must have, where that is known. Whether the content is right is for a checksum to say.
        """
        failures = 0
        while True:
            done = target.stat().st_size if target.exists() else 0
            try:
                with self.open(url, {"Range": f"bytes={done}-"} if done else {}) as answer:
                    resumed = answer.headers.get("Content-Range", "").startswith(f"bytes {done}-")
                    begin = done if done and resumed else 0
                    length = answer.headers.get("Content-Length")
                    total = begin + int(length) if length is not None else size
                    need_space(target, (total or 0) - begin)
                    end = _stream(answer, target, begin, lambda at, total=total: report(bytes=at, total_bytes=total))
                if total is None or end >= total:
                    return
                problem = f"the connection ended at {end} of {total} bytes"
            except urllib.error.HTTPError as error:
                problem = error
                if error.code == 416:
                    if error.headers.get("Content-Range") == f"bytes */{done}":
                        return  # all of it is there
                    target.unlink()
            except (OSError, http.client.HTTPException) as error:
                if getattr(error, "errno", None) in DISK_FULL:
                    raise
                problem = error
            moved = target.exists() and target.stat().st_size > done
            failures = 0 if moved else failures + 1
            if failures >= _TRIES:
                raise unreachable(url, problem)
            time.sleep(2.0**failures / 8)


def _stream(answer, target, begin, report):
    """Append the answer's body at `begin`; returns where it ends."""
    last = 0.0
    with target.open("r+b" if begin else "wb") as out:
        out.seek(begin)
        while True:
            data = answer.read(_CHUNK)
            if not data:
                return out.tell()
            out.write(data)
            if time.monotonic() - last > _REPORT_S:
                last = time.monotonic()
                report(out.tell())


def sha256_of(path, report):
    """Checksum of a file."""
    digest, last = hashlib.sha256(), time.monotonic()
    with path.open("rb") as stream:
        while True:
            data = stream.read(_CHUNK)
            if not data:
                return digest.hexdigest()
            digest.update(data)
            if time.monotonic() - last > _REPORT_S:
                last = time.monotonic()
                report(line=f"checking {path.name}", bytes=stream.tell(), total_bytes=path.stat().st_size)


def need_space(target, count):
    """Trouble (disk_full) unless `count` more bytes fit beside `target`, with a margin of 1 %, 16 MiB to 1 GiB."""
    state = os.statvfs(target.parent)
    free = state.f_bavail * state.f_frsize
    needed = count + min(_MARGIN_MAX, max(_MARGIN_MIN, count // 100))
    if needed > free:
        proof = f"{needed / 2**20:.0f} MiB are needed with a margin, {free / 2**20:.0f} MiB are free"
        advice = "free some space, or set `gpurun_home` to a folder on a larger disk"
        raise Trouble("disk_full", f"no space for {target.name} in {target.parent}", proof, advice)


def unreachable(url, error):
    """Trouble that says that an address gave nothing."""
    reason = getattr(error, "reason", None) or error
    advice = "check the network of this host, and HTTPS_PROXY or SSL_CERT_FILE where it needs them"
    return Trouble("bad_model", f"{_plain(url)} cannot be fetched", str(reason), advice)


def _plain(url):
    """An address without its query, which may be a signature."""
    return url.partition("?")[0]


def _next_page(link):
    for part in link.split(","):
        address, _, rest = part.partition(";")
        if 'rel="next"' in rest:
            return address.strip().strip("<>")
    return None
