"""What was tried on a host (the module gpurun_verify), judged: one check after another. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpurun.engines import engine_names, load_engine
from gpurun.hardware import fabric_of, gpus_of
from gpurun.launch import place_of
from gpurun.template import render_tree

Found = Mapping[str, Any]
SERVICES = {"fabricmanager": "nvidia-fabricmanager", "imex": "nvidia-imex"}


@dataclass(frozen=True)
class Check:
    """`say` is what was found; `fix` the next step where it failed. Skipped: there was nothing to try."""

    check: str
    status: Literal["ok", "failed", "skipped"]
    say: str
    fix: str = ""


def engine_checks() -> dict[str, list[str]]:
    """Engine -> the command that must succeed in its environment, which is called FOLDER."""
    found = {}
    for name in engine_names():
        engine = load_engine(name)
        if engine.install and engine.install.check:
            argv = render_tree(engine.install.check, {"engine": place_of(engine, "VERSION", "HOME")})
            found[name] = [word.replace(f"HOME/engines/{name}-VERSION", "FOLDER") for word in argv]
    return found


def judge(found: Found) -> list[Check]:
    """Every check, in the order in which one builds on another."""
    parts = (_versions, _counts, _contexts, _fabric, _nvcc, _kernels, _engines)
    return [check for part in parts for check in part(found)]


def _versions(found: Found) -> Iterator[Check]:
    system, smi = found["system"], found["nvidia_smi"] or {}
    told = {"module": system["module"]["loaded"], "libcuda": system["userspace"]}
    told["nvidia-smi"] = next(iter(smi.get("versions", ())), None)
    known = {name: version for name, version in told.items() if version}
    say = ", ".join(f"{name} {version or 'none'}" for name, version in told.items())
    if not known:
        yield Check("versions", "skipped", "there is no driver")
    elif len(set(known.values())) > 1:
        yield Check("versions", "failed", f"versions of the driver differ: {say}", "reboot; then install it anew")
    else:
        yield Check("versions", "ok", say)


def _counts(found: Found) -> Iterator[Check]:
    pci, smi = len(gpus_of(found["system"])), found["nvidia_smi"]
    if not pci and smi is None:
        yield Check("count", "skipped", "there is no GPU")
    elif smi is None:
        yield Check("count", "skipped", f"{pci} on the PCI bus; there is no nvidia-smi to count them")
    elif smi["error"] is not None:
        yield Check("count", "failed", f"nvidia-smi: {smi['error']}", "see `dmesg` on the host")
    elif len(smi["versions"]) != pci:
        say = f"{pci} on the PCI bus, {len(smi['versions'])} in nvidia-smi"
        yield Check("count", "failed", say, "see `dmesg` for those that are missing (Xid, power, BAR space)")
    else:
        yield Check("count", "ok", f"{pci} on the PCI bus and in nvidia-smi")


def _contexts(found: Found) -> Iterator[Check]:
    cuda, pci = found["cuda"], len(gpus_of(found["system"]))
    broken = [f"{one['name']}: {one['error']}" for one in cuda["devices"] if one["error"]]
    if cuda["error"] is not None and not pci and not found["system"]["module"]["loaded"]:
        yield Check("context", "skipped", f"there is no GPU ({cuda['error']})")
    elif cuda["error"] is not None or broken:
        say = cuda["error"] or "; ".join(broken)
        yield Check("context", "failed", f"no CUDA context: {say}", _context_fix(say))
    elif len(cuda["devices"]) < pci:
        say = f"{pci} GPUs on the PCI bus, {len(cuda['devices'])} in CUDA"
        yield Check("context", "failed", say, "see CUDA_VISIBLE_DEVICES, MIG, and `dmesg` on the host")
    else:
        yield Check("context", "ok", f"a context on each of {len(cuda['devices'])} GPUs")


def _context_fix(said: str) -> str:
    fixes = {
        "(802)": "the fabric is not up: see nvidia-fabricmanager on the host (not in a container)",
        "(803)": "the libraries are not of the loaded module's version: reboot",
        "(804)": "remove cuda-compat: this GPU has no forward compatibility",
        "libcuda.so.1": "install the driver's libraries; in a container, its host puts them in",
    }
    return next((fix for mark, fix in fixes.items() if mark in said), "see `dmesg` on the host")


def _fabric(found: Found) -> Iterator[Check]:
    fabric = fabric_of(found["system"])
    if fabric is None:
        yield Check("fabric", "skipped", "there is no NVSwitch")
        return
    wanted = [SERVICES[key] for key in fabric["packages"] if key in SERVICES]
    states = {name: found["services"].get(name) or "unknown" for name in wanted}
    rows = (found["nvidia_smi"] or {}).get("fabric", [])
    say = ", ".join([*(f"{name} {state}" for name, state in states.items()), *dict.fromkeys(rows)])
    good = all(state == "active" for state in states.values())
    good = good and all(row.lower().replace(" ", "") in ("completed,success", "n/a,n/a", "[n/a],[n/a]") for row in rows)
    fix = "" if good else f"journalctl -u {' -u '.join(wanted)}; its version must be the driver's"
    yield Check("fabric", "ok" if good else "failed", f"{fabric['name']}: {say}", fix)


def _nvcc(found: Found) -> Iterator[Check]:
    nvcc = found["nvcc"]
    if nvcc is None:
        yield Check("nvcc", "skipped", "there is no CUDA 13 compiler")
    elif nvcc["error"] is not None:
        compiler = re.search(r"\bg(cc|\+\+)", nvcc["error"])
        fix = "install a C++ compiler that this CUDA supports" if compiler else "install CUDA anew"
        yield Check("nvcc", "failed", f"{nvcc['home']}: {nvcc['error']}", fix)
    else:
        yield Check("nvcc", "ok", f"{nvcc['version']} in {nvcc['home']} compiles for {', '.join(nvcc['compiled'])}")


def _kernels(found: Found) -> Iterator[Check]:
    ran = [one["kernel"] for one in found["cuda"]["devices"] if one["kernel"] is not None]
    if not ran:
        yield Check("kernel", "skipped", "there is no GPU, or no compiler, to run one")
    elif all(ran):
        yield Check("kernel", "ok", f"a kernel ran on {len(ran)} GPUs")
    else:
        yield Check("kernel", "failed", "a kernel has computed something wrong", "test the GPU (dcgmi diag)")


def _engines(found: Found) -> Iterator[Check]:
    for one in found["engines"]:
        name = f"{one['name']} {one['version']}"
        if one["error"] is not None:
            yield Check(
                "engine",
                "failed",
                f"{name}: {one['error']}",
                "remove it (--remove engine), install it anew",
            )
        else:
            yield Check("engine", "ok", f"{name} can be imported" + (f"; {one['note']}" if one["note"] else ""))
