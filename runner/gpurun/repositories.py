"""Repositories of packages: what they define, which versions they have as a whole, and what keeps one. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpurun.text import numbers

Index = Mapping[str, Sequence[str]]


@dataclass
class Choice:
    """A version and the packages of it. `family`: every package of the repository that has this version.

    `lacking` says which packages the repository lacks, `incomplete` names a newer version that lacks some; both are
    about the version that was asked for or would have been taken.
    """

    version: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
    family: dict[str, str] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)
    incomplete: str = ""


def upstream(version: str) -> str:
    """`580.126.20` of `3:580.126.20-1.el9`."""
    return re.sub(r"^\d+:", "", version).partition("-")[0]


def resolve(
    index: Index, choices: Sequence[Sequence[str]], branch: int, version: str, is_bad: Callable[[str], bool]
) -> Choice:
    """The packages of a driver in one version: `version`, or ("" and `latest`) the newest whole one of the branch.

    Each choice lists the names that one package may have; `?` before a name: it may lack; `~`: any version of it does.
    Versions that are known to be bad are passed over, where another is there.
    """
    exact = version not in ("", "latest")
    candidates = [version] if exact else [one for one in _versions(index, choices) if numbers(one)[0] == branch]
    candidates.sort(key=lambda one: (not is_bad(one), numbers(one)), reverse=True)
    incomplete = Choice()
    for candidate in candidates:
        found = _in_version(index, choices, candidate)
        if not found.lacking:
            return Choice(candidate, found.packages, found.family, [], incomplete.incomplete)
        if not incomplete.lacking:
            incomplete = Choice(None, {}, {}, found.lacking, f"{candidate} lacks {', '.join(found.lacking)}")
    return incomplete


def best_available(index: Index, choices: Sequence[Sequence[str]], limit: int = 6) -> list[str]:
    """The newest versions that the repository has of the driver's main package, of any branch."""
    return sorted(_versions(index, choices), key=numbers, reverse=True)[:limit]


def _versions(index: Index, choices: Sequence[Sequence[str]]) -> list[str]:
    # By the package whose name has no branch in it, or has this one: its versions are the driver's.
    names = choices[0] if choices else ()
    return list({upstream(version) for name in names for version in index.get(name, ())})


def _in_version(index: Index, choices: Sequence[Sequence[str]], version: str) -> Choice:
    family = {name: found for name in index if (found := _release(index[name], version))}
    packages, lacking = {}, []
    for choice in choices:
        for name in choice:
            plain = name.lstrip("?~")
            found = _release(index.get(plain, ()), None if name.startswith("~") else version)
            if found:
                packages[plain] = found
                break
        else:
            if not choice[0].startswith("?"):
                lacking.append(choice[0].lstrip("~"))
    return Choice(version, packages, family, lacking)


def _release(versions: Sequence[str], version: str | None) -> str | None:
    """The newest packaging of a version."""
    fitting = [one for one in versions if version is None or upstream(one) == version]
    return newest(fitting) if fitting else None


def newest(versions: Iterable[str]) -> str:
    return max(versions, key=numbers)


def specs(manager: str, packages: Mapping[str, str]) -> list[str]:
    return [f"{name}{'=' if manager == 'apt' else '-'}{version}" for name, version in packages.items()]


def pin_text(manager: str, packages: Mapping[str, str]) -> str:
    """The lines that keep every package of a driver at its version, in apt's preferences or dnf's list of locks."""
    if manager == "dnf":
        return "".join(f"{name}-{version}.*\n" for name, version in sorted(packages.items()))
    stanzas = []
    for version in sorted(set(packages.values())):
        names = " ".join(sorted(name for name, one in packages.items() if one == version))
        stanzas.append(f"Package: {names}\nPin: version {version}\nPin-Priority: 1001\n")
    return "\n".join(stanzas)


def without_repository(text: str, urls: Iterable[str]) -> str:
    """A file that defines repositories, with what defines one of `urls` made a comment: a line, stanza or section."""
    places = [re.escape(re.sub("^https?:", "", url)) for url in urls]
    defines = re.compile(rf"(?mi)^(?:deb\s|uris\s*:|baseurl\s*=).*https?:(?:{'|'.join(places)})/?(?:\s|$)")
    parts = re.split(r"(?m)(^\s*\n|^(?=\[)|(?<=\n)(?=deb\s))", text)
    return "".join(re.sub(r"(?m)^(?=[^#\n])", "# gpurun: ", part) if defines.search(part) else part for part in parts)
