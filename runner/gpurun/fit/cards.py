"""GPUs by name: `8x RTX PRO 6000`, or what nvidia-smi calls them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpurun.complaints import nearest
from gpurun.errors import ConfigError, Problem
from gpurun.fit.sizes import knowledge

_NOISE = re.compile(r"\b(nvidia|geforce|tesla|quadro|gpu|hbm[23]e?|sxm[2-6]?)\b|[^a-z0-9]")


@dataclass(frozen=True)
class Gpus:
    """So many cards of one kind. `memory_mib` is nvidia-smi's memory.total, of the smallest; `cuda_gib` what CUDA
    offers of it, where that is known."""

    count: int
    name: str
    memory_mib: float
    cuda_gib: float | None = None


def read_gpus(text: str) -> Gpus:
    """Cards as they are given on a command line. ConfigError names the nearest card."""
    found = re.fullmatch(r"\s*(?:(\d+)\s*[x\u00d7*]\s*)?(\S.*?)(?:\s+[x\u00d7*]\s*(\d+))?\s*", text, re.IGNORECASE)
    count = int(found[1] or found[3] or 1) if found and not (found[1] and found[3]) else 0
    if found is None or count < 1:
        raise ConfigError(f"`--gpu {text}` names no card", hint='say it like "8x RTX PRO 6000"')
    card = card_named(found[2])
    if card is not None and card["memory_mib"] <= 0:
        raise ConfigError(f"`--gpu {text}` has no memory", hint="for a card that gpurun does not know: `--gpu 80GiB`")
    if card is None:
        names = tuple(str(each["name"]) for each in knowledge("cards"))
        spelled = {
            alias: str(each["name"]) for each in knowledge("cards") for alias in (each["name"], *each["aliases"])
        }
        turned = re.fullmatch(r"(\d+)\s+(.+)|(.+?)[x\u00d7*](\d+)", found[2], re.IGNORECASE)
        if turned and card_named(turned[2] or turned[3]):
            hint = f'say `--gpu "{turned[1] or turned[4]}x {turned[2] or turned[3]}"`'
            raise ConfigError(f"`--gpu {text}` names no card", hint=hint)
        near = spelled.get(nearest(found[2], spelled) or "")
        hint = "for another card give its memory: `--gpu 80GiB`, or `--gpu 4x24564MiB` as nvidia-smi says it"
        raise ConfigError([Problem(f"`{found[2]}` is no card that gpurun knows", None, names, near, hint)])
    return Gpus(count, card["name"], float(card["memory_mib"]), card.get("cuda_gib"))


def card_named(name: str) -> Mapping[str, Any] | None:
    """The card of the table with that name, or of that memory (`80GiB`)."""
    size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(MiB|GiB|GB)", name.strip(), re.IGNORECASE)
    if size:
        mib = float(size[1]) * {"mib": 1, "gib": 1024, "gb": 1e9 / 2**20}[size[2].lower()]
        return {"name": name.strip(), "memory_mib": mib}
    wanted = _plain(name)
    for card in knowledge("cards"):
        if wanted in {_plain(each) for each in (card["name"], *card["aliases"])}:
            return dict(card)
    return None


def gpus_of(facts: Sequence[Mapping[str, Any]]) -> Gpus | None:
    """The cards of a host, as the facts module found them; None where it has none, or their memory is not known.

    That of a card which shares the host's memory is the table's: nvidia-smi does not tell it.
    """
    name = str(facts[0].get("name") or "GPU") if facts else ""
    card = card_named(name)
    other = card["memory_mib"] if card else None
    sizes = [float(size) for gpu in facts if (size := gpu.get("memory_total_mib") or other)]
    if not sizes or len(sizes) < len(facts):
        return None
    same = card is not None and abs(card["memory_mib"] - min(sizes)) < 0.01 * min(sizes)
    return Gpus(len(sizes), name, min(sizes), card.get("cuda_gib") if card and same else None)


def _plain(name: str) -> str:
    return _NOISE.sub("", name.lower())
