"""What PCI ids, os-release, branches and kernels mean for drivers: data/provisioning.yml, looked up. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpurun.data import table
from gpurun.text import numbers


def system_of(release: Mapping[str, Any]) -> Mapping[str, Any] | None:
    words = [release["id"], *str(release.get("like") or "").split()]
    for system in knowledge()["systems"]:
        version = str(release["version"])
        same = version if system["match"] != "rhel" else version.partition(".")[0]
        # An Ubuntu is also like a Debian, and a derivative of either has versions of its own.
        fits = system["match"] == words[0] or (system["match"] == "rhel" and "rhel" in words)
        if fits and same == system["version"]:
            return dict(system)
    return None


def gpus_of(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = []
    for device in facts["pci"]:
        if device["class"] in ("0300", "0302"):
            found.append(next((a for a in knowledge()["architectures"] if among(device["device"], a["ids"])), None))
    return [one for one in found if one is not None]


def fabric_of(facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for fabric in knowledge()["fabrics"]:
        for device in facts["pci"]:
            ids = fabric.get("bridges" if device["class"] == "0680" else "gpus", ())
            if among(device["device"], ids):
                return dict(fabric)
    return None


def among(identity: str, ranges: Iterable[str]) -> bool:
    value = int(identity, 16)
    return any(int(low, 16) <= value <= int(high, 16) for low, _, high in (one.partition("-") for one in ranges))


def names(gpus: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(gpu["name"] for gpu in gpus))


def branch_of(branch: int) -> Mapping[str, Any]:
    return dict(knowledge()["branches"].get(str(branch), {}))


def bad_kernel(version: str | None, kernel: str) -> Mapping[str, Any] | None:
    for bad in knowledge()["known_bad"] if version else ():
        old = numbers(str(version))[:1] == (bad["branch"],) and numbers(str(version)) <= numbers(bad["driver"])
        if old and numbers(kernel) >= numbers(bad["kernel"]):
            return dict(bad)
    return None


def knowledge() -> dict[str, Any]:
    known: dict[str, Any] = table("provisioning")
    return known
