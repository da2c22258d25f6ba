"""Values as nvidia-smi prints them: numbers with units, switches, and its many ways of saying that there is none."""

from __future__ import annotations

import re

_ABSENT = frozenset(
    {
        "",
        "n/a",
        "[n/a]",
        "not supported",
        "[not supported]",
        "not available",
        "[not available]",
        "none",
        "not found",
        "[not found]",
        "requested functionality has been deprecated",
        "[requested functionality has been deprecated]",
        "insufficient permissions",
        "[insufficient permissions]",
        "no permission",
        "function not found",
        "[function not found]",
    }
)
_ERRORS = frozenset({"err!", "[err!]", "unknown error", "[unknown error]", "gpu is lost", "[gpu is lost]"})
_NUMBER = re.compile(r"^([-+]?\d+(?:\.\d+)?)\s*(\S*)$")

# What one of each unit is in the unit that our field names carry: MiB, W, MHz.
_SCALE = {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024, "MB": 1, "GB": 1024, "mW": 0.001, "W": 1, "kHz": 0.001, "MHz": 1}


def is_error(raw: str | None) -> bool:
    """True for `ERR!` and its kin: the driver could not read that value, which is a sign of a sick GPU."""
    return raw is not None and raw.strip().lower() in _ERRORS


def text(raw: str | None) -> str | None:
    """The value as text; None where nvidia-smi says in any of its words that there is none."""
    if raw is None:
        return None
    stripped = " ".join(raw.split())
    return None if stripped.lower() in _ABSENT or is_error(stripped) else stripped


def number(raw: str | None) -> float | int | None:
    """The number before the unit, in MiB, W or MHz where it has such a unit; None where there is no number.

    `16x` (a link width) and `38 %` are numbers too.
    """
    value = text(raw)
    match = _NUMBER.match(value) if value else None
    if match is None:
        return None
    digits, unit = match.groups()
    scale = _SCALE.get(unit, 1)
    if "." not in digits and scale == 1:
        return int(digits)
    scaled = float(digits) * scale
    return int(scaled) if scale in (1024,) and scaled.is_integer() else scaled


def whole(raw: str | None) -> int | None:
    """The same, rounded to an integer."""
    value = number(raw)
    return None if value is None else round(value)


def switch(raw: str | None) -> bool | None:
    """Enabled/Disabled, Active/Not Active, Yes/No, On/Off as a truth value; None for anything else."""
    value = (text(raw) or "").lower()
    if value in ("enabled", "active", "yes", "on"):
        return True
    if value in ("disabled", "not active", "no", "off"):
        return False
    return None


def bus_id(raw: str | None) -> str | None:
    """A PCI address in the kernel's form, `0000:06:00.0`: four domain digits, lower case."""
    value = text(raw)
    match = re.match(r"^(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])$", value or "")
    if match is None:
        return None
    domain = int(match.group(1) or "0", 16)
    return f"{domain:04x}:{match.group(2)}:{match.group(3)}.{match.group(4)}".lower()
