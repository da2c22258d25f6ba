"""Calls of uv, and what its complaints mean."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from ansible.module_utils.gpurun_worker import Trouble

_LAST_LINES = 12
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

# Pattern of uv's output, class, what it means, what to do. The first that matches counts.
MEANINGS = (
    (
        r"No space left on device|os error 28|Disk quota exceeded",
        "disk_full",
        "there is no space left on the disk",
        "free some space, or set `gpurun_home` to a folder on a larger disk",
    ),
    (
        r"certificate|UnknownIssuer|tls|TLS",
        "missing_dependency",
        "the package index's certificate is not trusted on this host",
        "set SSL_CERT_FILE to the certificates that your network uses",
    ),
    (
        r"dns error|failed to lookup|Connection refused|error sending request|[Tt]imed? ?out|Could not connect"
        r"|Failed to fetch|Network is unreachable|Connection reset|network connectivity is disabled|tunnel",
        "missing_dependency",
        "the package index cannot be reached",
        "check the network; set UV_DEFAULT_INDEX to a mirror, HTTPS_PROXY to a proxy, or UV_FIND_LINKS to a folder of "
        "wheels (variables of your shell for this machine, `uv_environment` for others)",
    ),
    (
        r"no wheels with a matching|requires-python|Python ABI|Python implementation|platform tag|Requires-Python",
        "missing_dependency",
        "there is no build of this version for this host's Python or processor",
        "choose another version in the campaign, or another Python for the environment",
    ),
    (
        r"\S+\.so\S*: cannot open shared object file",
        "missing_dependency",
        "a library of the system is missing",
        "install the package that has it, such as libgomp1 (libgomp on the RPM family)",
    ),
    (
        r"network was disabled",
        "missing_dependency",
        "a package is in no folder of wheels, and the network is switched off (UV_OFFLINE)",
        "put it into the folder that UV_FIND_LINKS names",
    ),
    (
        r"No solution found|not found in the package registry|there is no version",
        "missing_dependency",
        "the package index does not have this version",
        "check the version in the campaign, and which index is used",
    ),
    (
        r"[Hh]ash mismatch",
        "missing_dependency",
        "a package is not the one that was asked for (its hash differs)",
        "check the package index; someone may have tampered with it",
    ),
    (
        r"Permission denied|os error 13",
        "limits",
        "this user may not write there",
        "set `gpurun_home` to a folder that this user may write",
    ),
)


def find_uv(asked):
    """The uv to use: the one asked for if it runs here, else one on PATH."""
    wanted = str(Path(asked).expanduser())
    reasons = []
    for path in filter(None, (wanted, shutil.which("uv"))):
        try:
            subprocess.run([path, "--version"], check=True, capture_output=True, timeout=60)
            return path
        except (OSError, subprocess.SubprocessError) as error:
            reasons.append(f"{path}: {error}")
    machine = os.uname().machine
    raise Trouble(
        "missing_dependency",
        f"no uv that runs on this host ({machine})",
        "; ".join(reasons),
        f"the controller's uv may be for another processor; install uv for {machine} on the host's PATH",
    )


def environment(cache):
    """Our environment with uv's settings; what pip was told (index, certificates) holds for uv too."""
    env = {**os.environ, "UV_NO_PROGRESS": "1", "NO_COLOR": "1", "UV_NO_PROJECT": "1"}
    env.pop("VIRTUAL_ENV", None)
    env.setdefault("UV_CACHE_DIR", cache)
    named = {"UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"} & set(env)
    if not named and env.get("PIP_INDEX_URL"):
        env["UV_DEFAULT_INDEX"] = env["PIP_INDEX_URL"]
    if not named and env.get("PIP_EXTRA_INDEX_URL"):
        env["UV_INDEX"] = env["PIP_EXTRA_INDEX_URL"]
    if env.get("PIP_CERT"):
        env.setdefault("SSL_CERT_FILE", env["PIP_CERT"])
    return env


def run(argv, cwd, env, what, report):
    """Run a command of uv's; its last line is reported as progress. Trouble says what its failure means."""
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=_die_with_parent,  # safe: the worker has one thread
    )
    lines = []
    for raw in process.stdout:
        line = _without_passwords(raw.decode("utf-8", "replace").rstrip())
        if line.strip():
            lines = [*lines[-(4 * _LAST_LINES) :], line]
            report(what=what, line=line.strip())
    if process.wait():
        raise explain(lines, what, process.returncode)


def explain(lines, what, exit_code):
    """Trouble that says in words why uv failed."""
    text = "\n".join(lines)
    proof = "\n".join([line for line in lines if not line.startswith("Using Python ")][-_LAST_LINES:])
    for pattern, klass, meaning, advice in MEANINGS:
        if re.search(pattern, text):
            return Trouble(klass, f"{what}: {meaning}", proof, advice)
    return Trouble("missing_dependency", f"{what}: uv failed with exit code {exit_code}", proof, "")


def _without_passwords(text):
    return re.sub(r"(https?://)[^/@\s]+@", r"\1***@", text)


def _die_with_parent():
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
