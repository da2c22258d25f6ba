#!/usr/bin/python
"""What works on a host, tried for real: see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpurun_verify
short_description: What of driver, CUDA and engines works on a host, tried for real
description:
  - Versions of the driver, counts of GPUs, a CUDA context on each, the fabric, CUDA's compiler with a kernel compiled
    and run, and every engine that gpurun has installed.
  - Changes nothing. What does not work is a result, not a failure; the action of the same name judges it.
options:
  home: {description: Folder of gpurun on the host., type: str, default: ~/.gpurun}
  root: {description: Where /sys and /proc are read., type: str, default: /}
  machine: {description: As of gpurun_system., type: str, default: auto}
  arch: {description: "What to compile for where there is no GPU, such as sm_120.", type: str, default: sm_120}
  checks:
    description: Engine -> command that must succeed where it is installed, with C(FOLDER) for its environment.
    type: dict
    default: {}
  services: {description: Units whose state is told., type: list, elements: str, default: []}
  limit_s: {description: Seconds that each try gets., type: float, default: 120}
author: gpurun
"""

EXAMPLES = r"""
- name: Try
  gpurun_verify:
    checks: {vllm: [FOLDER/bin/python, -c, import vllm.version]}
"""

RETURN = r"""
found:
  description: C(system) (of gpurun_system), C(nvidia_smi), C(cuda), C(services), C(fabric), C(nvcc), C(engines).
  returned: always
  type: dict
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible.module_utils import gpurun_cuda, gpurun_host, gpurun_system


def run(argv, limit_s, cwd="/"):
    """What a command prints, and why it failed: None where it did not."""
    try:
        done = subprocess.run(
            argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {limit_s:g} s"
    except OSError as error:
        return "", str(error)
    return done.stdout, None if done.returncode == 0 else (done.stderr + done.stdout).strip()[-2000:] or "it failed"


def nvidia_smi(limit_s):
    """Versions and fabric states of the GPUs, as nvidia-smi tells them; null without one."""
    program = gpurun_host.find_command("nvidia-smi")
    if program is None:
        return None
    said, error = run([program, "--query-gpu=driver_version", "--format=csv,noheader"], limit_s)
    fabric, _ = run([program, "--query-gpu=fabric.state,fabric.status", "--format=csv,noheader"], limit_s)
    rows = [line.strip() for line in said.splitlines() if line.strip()] if error is None else []
    return {"error": error, "versions": rows, "fabric": [line.strip() for line in fabric.splitlines() if "," in line]}


def compiled(home, arch, folder, limit_s):
    """The kernel for an architecture, by the CUDA that is there: (path or None, why not)."""
    source, target = Path(folder, "kernel.cu"), Path(folder, f"{arch}.cubin")
    source.write_text(gpurun_cuda.KERNEL, encoding="utf-8")
    _, error = run([f"{home}/bin/nvcc", f"-arch={arch}", "-cubin", "-o", str(target), str(source)], limit_s, folder)
    return (target, None) if error is None else (None, error)


def nvcc(place, cuda, arch, limit_s):
    """CUDA's compiler: version, what was compiled and for what, and `cuda` again with the kernel run."""
    home = gpurun_host.cuda_home(place)
    if home is None:
        return None, cuda
    said, error = run([f"{home}/bin/nvcc", "--version"], limit_s)
    version = re.search(r"\bV(\d[\d.]+)", said)
    found = {"home": home, "version": version and version.group(1), "error": error, "compiled": []}
    cubins = {}
    with tempfile.TemporaryDirectory() as folder:
        for one in sorted({device["arch"] for device in cuda["devices"]} or {arch}) if error is None else ():
            path, found["error"] = compiled(home, one, folder, limit_s)
            if path is not None:
                found["compiled"].append(one)
                cubins[one] = path.read_bytes()
    if cubins and cuda["devices"]:
        cuda = gpurun_cuda.apart(lambda: gpurun_cuda.probe(cubins), limit_s)
    return found, cuda


def engines(place, checks, limit_s):
    """Every engine that is installed as a whole: its version, and why its check fails."""
    for marker in sorted(place.glob("engines/*/.complete")):
        folder = marker.parent
        name, _, version = folder.name.partition("-")
        argv = [word.replace("FOLDER", str(folder)) for word in checks.get(name) or ()]
        error = run(argv, limit_s, str(folder))[1] if argv else None
        note = json.loads(marker.read_text(encoding="utf-8")).get("note", "")
        yield {"name": name, "version": version, "error": error, "note": note}


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "str", "default": "~/.gpurun"},
            "root": {"type": "str", "default": "/"},
            "machine": {"type": "str", "default": "auto"},
            "arch": {"type": "str", "default": "sm_120"},
            "checks": {"type": "dict", "default": {}},
            "services": {"type": "list", "elements": "str", "default": []},
            "limit_s": {"type": "float", "default": 120.0},
        },
        supports_check_mode=True,
    )
    given, limit_s = module.params, module.params["limit_s"]
    place = Path(given["home"]).expanduser()
    compiler, cuda = nvcc(place, gpurun_cuda.apart(gpurun_cuda.probe, limit_s), given["arch"], limit_s)
    found = {
        "system": gpurun_system.collect(given["root"], given["machine"], ["^nvidia"], []),
        "nvidia_smi": nvidia_smi(limit_s),
        "cuda": cuda,
        "services": {name: run(["systemctl", "is-active", name], limit_s)[0].strip() for name in given["services"]},
        "nvcc": compiler,
        "engines": list(engines(place, given["checks"], limit_s)),
    }
    module.exit_json(changed=False, found=found)


if __name__ == "__main__":
    main()
