"""From what is on a host, and what is wanted there, to steps with reasons, or to why it cannot work. Pure.

What is known about GPUs, systems, branches and packages is in data/provisioning.yml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpurun.hardware import branch_of, gpus_of, knowledge
from gpurun.repositories import newest, pin_text, specs, without_repository
from gpurun.target import Facts, Target, Wanted
from gpurun.template import holds, render
from gpurun.text import numbers

HOME_COMPONENTS = ("cuda", "engine")  # which lie, also or only, in gpurun's folder of the login user
PIN = {"apt": "/etc/apt/preferences.d/gpurun-nvidia", "dnf": "/etc/dnf/plugins/versionlock.list"}


@dataclass(frozen=True)
class Step:
    """One thing that would be done, by which role, and why."""

    role: str
    what: str
    why: str


@dataclass(frozen=True)
class Refusal:
    """Why it cannot work; `fix` is the next step."""

    check: str
    say: str
    fix: str


@dataclass
class Decision:
    """What is to be done on a host. `look` is what of the repository must be known first; decide again with it."""

    summary: str
    steps: list[Step] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    look: dict[str, Any] | None = None
    manager: str = ""
    repository: dict[str, Any] = field(default_factory=dict)
    driver: dict[str, Any] = field(default_factory=dict)
    fabric: dict[str, Any] = field(default_factory=dict)
    toolkit: dict[str, Any] = field(default_factory=dict)
    cuda: dict[str, Any] = field(default_factory=dict)
    remove: dict[str, Any] = field(default_factory=dict)


def decide(
    facts: Facts, wanted: Wanted, index: Mapping[str, Any] | None = None, *, is_controller: bool = False
) -> Decision:
    """What to do on a host; `facts` are gpurun_system's, `index` is gpurun_index's answer, None before it was asked."""
    host = Target(facts, wanted, index)
    decision = Decision(host.summary(), manager=facts["manager"])
    if wanted.remove:
        _decide_removal(decision, host)
    else:
        _decide_driver(decision, host)
        _decide_toolkit(decision, host)
        _decide_cuda(decision, host)
    removes = any(step.role == "driver" for step in decision.steps) and bool(wanted.remove)
    known = {**host.known(), "is_controller": is_controller, "removes": removes}
    for rule in knowledge()["refusals"]:
        if holds(rule["when"], known):
            decision.refusals.append(Refusal(rule["check"], render(rule["say"], known), render(rule["fix"], known)))
    return decision


def refusal_text(refusals: Sequence[Refusal]) -> str:
    """For the end of a task; empty where nothing is refused."""
    if not refusals:
        return ""
    said = "; ".join(f"{one.check}: {one.say}" for one in refusals)
    return f"{said}\nhint: {'; '.join(dict.fromkeys(one.fix for one in refusals))}"


def expected_reboot(decision: Decision, facts: Facts) -> list[str]:
    """Why a host will need a reboot when the steps are done, as far as that can be known before."""
    loaded, version = facts["module"]["loaded"], decision.driver.get("version")
    if not any(step.role == "driver" for step in decision.steps):
        return []
    if facts["module"]["nouveau"]:
        return ["nouveau is loaded, which the driver cannot replace while it runs"]
    return [f"driver {loaded} is loaded, and stays so until then"] if loaded and loaded != version else []


def reboot_reasons(facts: Facts, wanted: Wanted) -> list[str]:
    """Why a host needs a reboot, now that everything is installed (or removed)."""
    module, reasons = facts["module"], []
    if wanted.remove:
        return ["the removed driver is still loaded"] if "driver" in wanted.remove and module["loaded"] else []
    if not wanted.driver or facts["machine"] != "full":
        return []
    if module["nouveau"]:
        reasons.append("nouveau is loaded, which the driver cannot replace while it runs")
    if module["loaded"] and module["on_disk"] and module["loaded"] != module["on_disk"]:
        reasons.append(f"driver {module['loaded']} is loaded, {module['on_disk']} is installed")
    elif not module["loaded"] and module["on_disk"] and not module["nouveau"]:
        reasons.append("the driver's module could not be loaded into the running kernel")
    return reasons


def problems(facts: Facts, wanted: Wanted) -> list[str]:
    """What is wrong with the driver of a host on which everything was done, rebooted where need be."""
    module, found = facts["module"], []
    if not wanted.driver or wanted.remove or not (gpus_of(facts) or module["loaded"]):
        return []
    if not module["loaded"]:
        found.append("the module nvidia is not loaded: `dmesg` and the log of DKMS tell why")
    versions = {"loaded": module["loaded"], "on disk": module["on_disk"], "libcuda": facts["userspace"]}
    told = {name: version for name, version in versions.items() if version}
    if len(set(told.values())) > 1:
        found.append("versions differ: " + ", ".join(f"{name} {version}" for name, version in told.items()))
    if facts["machine"] == "full":
        if module["loaded"] and module["open"] != (wanted.flavour == "open"):
            found.append(f"the loaded module is {'open' if module['open'] else 'proprietary'}, not {wanted.flavour}")
        kernels = sorted(facts["kernels"], key=numbers)
        if kernels and not facts["kernels"][kernels[-1]]["nvidia"]:
            found.append(f"kernel {kernels[-1]}, which starts next time, has no module nvidia")
    return found


def look_for(wanted: Wanted) -> dict[str, list[str]]:
    """The arguments of the module gpurun_system that are knowledge."""
    data = knowledge()
    addresses = (data["url"], data["toolkit"]["url"], wanted.url or data["url"])
    hosts = [re.sub("^https?://", "", address).partition("/")[0] for address in addresses]
    return {"patterns": data["patterns"], "mention": hosts}


def _decide_driver(decision: Decision, host: Target) -> None:
    facts, wanted = host.facts, host.wanted
    if not wanted.driver:
        return
    if facts["machine"] != "full":
        decision.notes.append("driver packages are never touched in a container")
        return
    if host.kept:
        decision.notes.append(f"driver {facts['module']['loaded']}, installed from elsewhere, does and is kept")
    ended = branch_of(wanted.branch).get("ended")
    if ended:
        decision.notes.append(f"branch {wanted.branch} gets no fixes since {ended}")
    fabric = bool(host.fabric) and not host.kept and (host.changes or host.fabric_missing())
    if not (host.changes or fabric or (wanted.version == "latest" and host.index is None)) or not host.system:
        return
    decision.look = _look(host, [*host.headers, *host.meta_headers(), *host.compiler, *host.tools, *host.needs()])
    if not (host.changes or fabric):
        return
    _decide_repository(decision, host)
    pairs = {**(host.chosen.packages if host.chosen else {})}
    if host.changes:
        built = f"modules for kernel {facts['kernel']} are built here"
        version = host.chosen.version if host.chosen else None
        told = f"driver {version or f'of branch {wanted.branch}'}, {wanted.flavour} modules, {wanted.mode}"
        decision.steps.append(Step("driver", f"install {told}", _why(host)))
        for name in (*host.headers, *host.meta_headers(), *host.compiler):
            decision.steps.append(Step("driver", f"install {name}", built))
    there = (host.index or {}).get("system", {})
    decision.driver = {
        "version": host.chosen.version if host.chosen else None,
        "specs": specs(facts["manager"], pairs) if host.changes else [],
        "differs": host.differs(pairs),
        "before": [*host.headers[:1], *(n for n in host.meta_headers() if there.get(n)), *host.compiler],
        "pin_path": PIN.get(facts["manager"], ""),
        "pin": pin_text(facts["manager"], host.chosen.family) if host.chosen else "",
        "pin_package": host.family.get("versionlock", ""),
        "initramfs": facts["initramfs"],
        "broken": sorted(name for name, one in host.packages.items() if one["state"] != "installed"),
        "anew": host.half_made() if host.chosen and facts["manager"] == "dnf" else [],
    }
    if fabric and host.fabric:
        names = ", ".join([*(choice[0].lstrip("~") for choice in host.fabric_choices()), *host.tools])
        why = f"the GPUs are connected by {host.fabric['name']}"
        decision.steps.append(Step("fabric", f"install {names}, of the driver's version", why))
        pairs = host.fabric_chosen.packages if host.fabric_chosen else {}
        decision.fabric = {
            "specs": [*specs(facts["manager"], pairs), *host.tools],
            "differs": host.differs(pairs) or bool(host.tools),
            "new": any(name not in host.packages for name in pairs),
            "keys": host.fabric["packages"],
        }


def _look(host: Target, system: list[str]) -> dict[str, Any]:
    return {
        "url": host.url,
        "manager": host.facts["manager"],
        "patterns": knowledge()["patterns"],
        "system": system,
    }


def _decide_cuda(decision: Decision, host: Target) -> None:
    if not host.adds_cuda or not host.system:
        return
    decision.look = decision.look or _look(host, [])
    if not decision.repository:
        _decide_repository(decision, host)
    versions = (host.index or {}).get("packages", {}).get(host.cuda_package, ())
    pairs = {host.cuda_package: newest(versions)} if versions else {}
    decision.steps.append(Step("cuda", f"install {host.cuda_package}", f"CUDA {host.wanted.cuda} was asked for"))
    decision.cuda = {
        "specs": specs(host.facts["manager"], pairs),
        "never": knowledge()["driver_pattern"] + "|^cuda-drivers",
        "differs": host.differs(pairs),
    }


def _decide_repository(decision: Decision, host: Target) -> None:
    facts, system = host.facts, host.system or {}
    official = f"{knowledge()['url']}/{system.get('repository')}/{host.repo_arch}"
    name = f"cuda-{system.get('repository')}-{host.repo_arch}"
    own = f"/etc/apt/sources.list.d/{name}.list" if facts["manager"] == "apt" else f"/etc/yum.repos.d/{name}.repo"
    healed = {
        one["path"]: text
        for one in facts["sources"]
        if one["path"] != own and (text := without_repository(one["text"], {official, host.url})) != one["text"]
    }
    present = next((one["text"] for one in facts["sources"] if one["path"] == own), "")
    for path in healed:
        decision.steps.append(
            Step("repository", f"switch off its definition in {path}", "one repository, one definition")
        )
    keyed = facts["manager"] != "apt" or "cuda-keyring" in host.packages
    add = not (keyed and host.url in present)
    if add:
        decision.steps.append(Step("repository", f"add {host.url}", "it has the packages"))
    decision.repository = {
        "add": add,
        "keyed": keyed,
        "url": host.url,
        "official": official,
        "name": name,
        "path": own,
        "key": system.get("key"),
        "keyring": knowledge()["keyring"],
        "keyring_sha256": host.wanted.keyring_sha256,
        "healed": [{"path": path, "text": text} for path, text in healed.items()],
    }


def _decide_toolkit(decision: Decision, host: Target) -> None:
    data = knowledge()["toolkit"]
    missing = [name for name in data["packages"] if name not in host.packages]
    if not host.wanted.toolkit or not missing or host.facts["manager"] not in ("apt", "dnf"):
        return
    if host.facts["machine"] != "full":
        decision.notes.append("the container toolkit belongs on the host of a container, not inside")
        return
    decision.toolkit = {
        "url": host.wanted.toolkit_url or data["url"],
        "arch": data["arch"][host.facts["manager"]].get(host.facts["arch"]),
        "packages": data["packages"],
        "docker": host.facts["docker"],
    }
    decision.steps.append(Step("toolkit", f"install {data['packages'][0]}", "containers with GPUs are wanted"))


def _decide_removal(decision: Decision, host: Target) -> None:
    """Only what the ledger says that gpurun has installed, and that is still there."""
    for component in host.wanted.remove:
        ledger = host.facts["ledger"].get(component, {})
        packages, files = ledger.get("packages", []), ledger.get("files", [])
        if not packages and not files:
            if component in HOME_COMPONENTS:
                continue
            decision.notes.append(f"gpurun has installed no {component} here")
            continue
        told = f"{len(packages)} packages" if len(packages) != 1 else packages[0]
        decision.steps.append(Step(component, f"remove {told} and {len(files)} files", "gpurun has installed them"))
        decision.remove[component] = {"packages": packages, "files": files}


def _why(host: Target) -> str:
    current, wanted = host.current, host.wanted
    if host.interrupted:
        return "an installation was interrupted"
    if current is None:
        installed = host.facts["module"]["on_disk"] or host.facts["module"]["loaded"]
        return f"{installed} is there, with other packages" if installed else "no driver is installed"
    if numbers(current)[0] != wanted.branch:
        return f"{current} of another branch is installed"
    return f"{current} is installed, and {wanted.version} was asked for"
