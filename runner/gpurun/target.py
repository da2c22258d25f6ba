"""A host as provisioning sees it: facts and wishes, and what follows from both. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpurun.errors import ConfigError
from gpurun.hardware import bad_kernel, branch_of, fabric_of, gpus_of, knowledge, names, system_of
from gpurun.repositories import Choice, best_available, resolve, upstream
from gpurun.text import numbers

Facts = Mapping[str, Any]
_TOOLKIT = "cuda-toolkit-13-"


@dataclass(frozen=True)
class Wanted:
    """What a host should have. `version`: an exact driver, `latest` of the branch, or "" (keep it while it fits)."""

    driver: bool = True
    branch: int = 580
    version: str = ""
    flavour: str = "open"
    mode: str = "compute"
    reboot: str = "if_required"
    toolkit: bool = False
    cuda: str = ""  # such as 13.0; "": none
    cuda_from: str = "repository"  # or `wheels`, which are the login user's
    remove: tuple[str, ...] = ()
    url: str = ""
    toolkit_url: str = ""
    keyring_sha256: str = ""
    without_gpu: bool = False


def check_wishes(branch: str, cuda: str) -> None:
    """ConfigError for what can be no driver branch, or no version of CUDA 13."""
    if branch != "none" and not branch.isdigit():
        raise ConfigError(f"`{branch}` is no driver branch", hint="give a number such as 580, or none")
    if cuda and not re.fullmatch(r"13\.\d+", cuda):
        raise ConfigError(f"`{cuda}` is no version of CUDA 13", hint="give one such as 13.0")


class Target:
    """Facts and wishes, and what follows from both."""

    def __init__(self, facts: Facts, wanted: Wanted, index: Mapping[str, Any] | None) -> None:
        self.facts, self.wanted, self.index = facts, wanted, index
        self.system = system_of(facts["os"])
        self.family = knowledge()["packages"].get((self.system or {}).get("packages"), {})
        self.gpus = gpus_of(facts)
        self.fabric = fabric_of(facts)
        self.packages: Mapping[str, Mapping[str, str]] = facts["packages"]
        self.tools = [name for name in (self.fabric or {}).get("tools", ()) if name not in self.packages]
        self.repo_arch = knowledge()["arch"].get(facts["arch"])
        base = (wanted.url or knowledge()["url"]).rstrip("/")
        self.url = f"{base}/{(self.system or {}).get('repository', '')}/{self.repo_arch}"
        self.choices = self._choices()
        self.current = self._current()
        self.foreign = sorted(
            name
            for name, one in self.packages.items()
            if re.search(knowledge()["driver_pattern"], name)
            and not re.search(knowledge()["maker_pattern"], one["maker"])
        )
        self.interrupted = "before" in facts["ledger"].get("driver", {})
        self.kept = self._kept()
        self.changes = wanted.driver and not wanted.remove and facts["machine"] == "full" and not self._satisfied()
        self.cuda_package = self._cuda_package()
        self.adds_cuda = bool(self.cuda_package) and not self._has_cuda()
        self.headers, self.lacking_headers = self._system_packages(self._headers())
        self.compiler, self.lacking_compiler = self._system_packages(self._compilers())
        self.chosen: Choice | None = None
        self.fabric_chosen: Choice | None = None
        if index is not None and not index["error"]:
            self._resolve(index["packages"])

    def known(self) -> dict[str, Any]:
        """What the rules of data/provisioning.yml may use."""
        facts, wanted, branch = self.facts, self.wanted, branch_of(self.wanted.branch)
        unsuited = [gpu for gpu in self.gpus if wanted.flavour not in gpu["modules"]]
        suited = [set(gpu["modules"]) for gpu in self.gpus]
        old = [gpu for gpu in self.gpus if wanted.branch > gpu.get("last", 9999)]
        new = [gpu for gpu in self.gpus if wanted.branch < gpu.get("first", 0)]
        idle = knowledge()["idle_users"]
        data, there = knowledge(), (self.index or {}).get("system", {})
        needs = Counter(data["disk_mib"] if self.changes else {})
        needs.update(data["cuda"]["disk_mib"] if self.adds_cuda else {})
        free = {place: (size or 0) >> 20 for place, size in facts["disk_free"].items()}
        return {
            **facts,
            "wanted": wanted,
            "index": self.index,
            "changes": self.changes,
            "adds_cuda": self.adds_cuda,
            "cuda_package": self.cuda_package,
            "available_cuda": [name for name in (self.index or {}).get("packages", ()) if name.startswith(_TOOLKIT)],
            "system": self.system,
            "supported": list(
                dict.fromkeys(f"{s['match']} {s['version']}" for s in knowledge()["systems"] if "packages" in s)
            ),
            "repo_arch": self.repo_arch,
            "url": self.url,
            "gpus": self.gpus,
            "branch_modules": branch.get("modules", ["open", "proprietary"]),
            "wrong_modules": names(unsuited),
            "right_modules": sorted(set.intersection(*suited)) if suited else [],
            "too_old": names(old),
            "last_branch": min((gpu["last"] for gpu in old), default=None),
            "too_new": names(new),
            "first_branch": max((gpu["first"] for gpu in new), default=None),
            "no_cuda13": names(gpu for gpu in self.gpus if not gpu["cuda13"]),
            "lacking_headers": self.lacking_headers,
            "lacking_compiler": self.lacking_compiler,
            "lacking_needs": [name for name in self.needs() if there.get(name) is False],
            "bad_kernel": self.chosen and bad_kernel(self.chosen.version, facts["kernel"]),
            "low_disk": [
                {"place": place, "free_mib": free[place], "needs_mib": least}
                for place, least in needs.items()
                if free.get(place, least) < least
            ],
            "foreign": [] if self.kept else self.foreign,
            "busy": [one for one in facts["users"] if one["command"] not in idle],
            "version": self.chosen.version if self.chosen else None,
            "driver_version": (self.chosen and self.chosen.version) or self.current,
            "incomplete": self.chosen.incomplete if self.chosen else "",
            "available": best_available((self.index or {}).get("packages", {}), self.choices) if self.index else [],
            "fabric": self.fabric or {},
            "lacking_fabric": self._lacking_fabric(),
        }

    def summary(self) -> str:
        """Such as `Debian GNU/Linux 12, x86_64, 8 x Blackwell, driver 580.95.05`."""
        count = {name: sum(gpu["name"] == name for gpu in self.gpus) for name in names(self.gpus)}
        told = ", ".join(f"{n} x {name}" for name, n in count.items()) or "no NVIDIA GPU"
        kind = "" if self.facts["machine"] == "full" else f", in a container ({self.facts['container']})"
        driver = self.facts["module"]["loaded"] or "none"
        name = self.facts["os"]["name"] or self.facts["os"]["id"]
        return f"{name}, {self.facts['arch']}{kind}, {told}, driver {driver}"

    def _choices(self) -> list[list[str]]:
        """The driver's packages in the branch: for each the names that it may have, `?` before those that may lack."""
        wanted = self.wanted
        for era in self.family.get("driver", ()):
            if era.get("from", 0) <= wanted.branch <= era.get("until", 9999):
                key = wanted.mode if wanted.flavour == "open" else f"{wanted.mode}_proprietary"
                return [[name.replace("BRANCH", str(wanted.branch)) for name in choice] for choice in era[key]]
        return []

    def _current(self) -> str | None:
        """The version in which all of the driver's packages are installed; None where they are not, or differ."""
        found = set()
        for choice in self.choices:
            names = [name for name in choice if self.packages.get(name, {}).get("state") == "installed"]
            if names:
                found.add(upstream(self.packages[names[0]]["version"]))
            elif not choice[0].startswith("?"):
                return None
        return found.pop() if len(found) == 1 else None

    def _kept(self) -> bool:
        """Whether somebody else's driver does what is wanted, and stays."""
        module = self.facts["module"]
        return bool(
            (self.foreign or self.facts["runfile"])
            and module["loaded"]
            and module["loaded"] == self.facts["userspace"]
            and numbers(module["loaded"])[0] == self.wanted.branch
            and module["open"] == (self.wanted.flavour == "open")
            and self.wanted.version in ("", module["loaded"])
        )

    def _cuda_package(self) -> str:
        """The package that was asked for, or ""."""
        wanted = self.wanted
        if not wanted.cuda or wanted.cuda_from != "repository" or wanted.remove:
            return ""
        major, _, minor = wanted.cuda.partition(".")
        return str(knowledge()["cuda"]["package"]).replace("MAJOR", major).replace("MINOR", minor)

    def _has_cuda(self) -> bool:
        installed = self.packages.get(self.cuda_package, {}).get("state") == "installed"
        return installed and "before" not in self.facts["ledger"].get("cuda", {})

    def _satisfied(self) -> bool:
        if self.kept:
            return True
        if self.current is None or self.interrupted:
            return False
        if numbers(self.current)[0] != self.wanted.branch:
            return False
        if self.wanted.version == "latest" and self.index is not None and not self.index["error"]:
            newest = resolve(self.index["packages"], self.choices, self.wanted.branch, "latest", self._bad)
            return newest.version in (None, self.current)
        return self.wanted.version in ("", self.current)

    def half_made(self) -> list[str]:
        """The driver's packages, where their installation broke off and their manager does not say so: to rpm one is
        installed before its script has built the module, and before what it replaces is gone."""
        whole = self.current is not None and self.current == self.facts["module"]["on_disk"]
        family = self.chosen.family if self.chosen else {}
        return sorted(family.keys() & self.packages.keys()) if self.interrupted and not whole else []

    def _headers(self) -> list[str]:
        kernel = self.facts["kernel"]
        names = [name.replace("KERNEL", kernel) for name in self.family.get("headers", ())]
        return [] if self.facts["kernels"].get(kernel, {}).get("headers") else names

    def meta_headers(self) -> list[str]:
        """The package that brings the headers of every kernel to come."""
        meta = self.family.get("headers_meta", {})
        name = next((name for pattern, name in meta.items() if re.search(pattern, self.facts["kernel"])), None)
        return [name] if name and name not in self.packages else []

    def needs(self) -> list[str]:
        """Packages that the driver's ask for and that neither are there nor lie beside them."""
        known = {*self.packages, *(self.index or {}).get("packages", ())}
        return [name for name in self.family.get("needs", ()) if name not in known]

    def _compilers(self) -> list[str]:
        needed = [
            name.replace("COMPILER", str(self.facts["kernel_compiler"])) for name in self.family.get("compiler", ())
        ]
        present = {*self.facts["compilers"], *(["gcc-c++"] if self.facts["cxx"] else []), "None"}
        return [name for name in needed if name not in present]

    def _system_packages(self, names: list[str]) -> tuple[list[str], list[str]]:
        """Of packages that the system's own repositories must have: which to install, and which cannot be had."""
        there = (self.index or {}).get("system", {})
        usable = [name for name in names if there.get(name) is not False]
        return usable, [] if usable else names

    def _bad(self, version: str) -> bool:
        return bad_kernel(version, self.facts["kernel"]) is not None

    def _resolve(self, packages: Mapping[str, list[str]]) -> None:
        wanted, version = self.wanted, self.wanted.version
        if not version and self.current and numbers(self.current)[0] == wanted.branch:
            version = self.current
        self.chosen = resolve(packages, self.choices, wanted.branch, version, self._bad)
        if self.fabric and (self.chosen.version or self.current):
            driver = str(self.chosen.version or self.current)
            self.fabric_chosen = resolve(packages, self.fabric_choices(), wanted.branch, driver, lambda _: False)

    def fabric_choices(self) -> list[list[str]]:
        """The same as `_choices` for what connects the GPUs."""
        names, own = knowledge()["fabric_packages"], knowledge()["own_version"]
        return [
            [("~" if key in own else "") + name.replace("BRANCH", str(self.wanted.branch)) for name in names[key]]
            for key in (self.fabric or {}).get("packages", ())
        ]

    def differs(self, packages: Mapping[str, str]) -> bool:
        """Whether to install these versions would change anything."""
        return any(self.packages.get(name, {}).get("version") != version for name, version in packages.items())

    def _lacking_fabric(self) -> list[str]:
        there = (self.index or {}).get("system", {})
        lacking = self.fabric_chosen.lacking if self.fabric_chosen else []
        return [*lacking, *(name for name in self.tools if there.get(name) is False)]

    def fabric_missing(self) -> bool:
        """Whether a package of the fabric is missing, or not of the driver's version."""
        versions = {name: upstream(one["version"]) for name, one in self.packages.items()}
        return bool(self.tools) or any(
            not any(
                name.lstrip("~") in versions and (name.startswith("~") or versions[name] == self.current)
                for name in choice
            )
            for choice in self.fabric_choices()
        )
