"""The kinds of values in a campaign file: what is accepted, and what is said of the rest."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import BeforeValidator, WithJsonSchema

from gpurun.engines import engine_names

PORT_TOKEN = "@GPURUN_PORT@"  # noqa: S105 (the place of the port in argv and env, filled in on the host)

METRICS = (
    *("output_tok_per_s", "total_tok_per_s", "request_per_s"),
    *(f"{name}_{what}_ms" for name in ("ttft", "tpot", "itl", "e2e") for what in ("mean", "p50", "p90", "p99")),
    *("error_rate", "accept_length"),
)
"""What a campaign can judge by: the names that `parsers` gives."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(
    r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s)?(?:(?P<ms>\d+)ms)?"
)
_PERCENTAGE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"[A-Z_][A-Z0-9_]*")
_FLAG = re.compile(r"[^-\s=][^\s=]*")


class Complaint(ValueError):
    """What is wrong with a value, with the names that would be right and the next step; `at` is the key inside."""

    def __init__(self, message: str, *, hint: str | None = None, allowed: Sequence[str] = (), at: str = "") -> None:
        super().__init__(message)
        self.at = at
        self.hint = hint
        self.allowed = tuple(allowed)


def duration(value: object) -> float:
    """`90s`, `15m`, `1h30m`, `500ms` in seconds."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
    if match is not None:
        return sum(float(number) * _UNITS[unit] for unit, number in match.groupdict().items() if number)
    if (isinstance(value, (int, float)) and not isinstance(value, bool)) or re.fullmatch(r"[\d.]+", str(value)):
        raise Complaint("a duration needs a unit", hint=f"write `{value}s` for seconds, or use ms, m, h: `1h30m`")
    raise Complaint("not a duration", hint="write it as `90s`, `15m`, `1h30m` or `500ms`")


def _positive_duration(value: object) -> float:
    seconds = duration(value)
    if seconds <= 0:
        raise Complaint("a time limit must be longer than nothing")
    return seconds


def percentage(value: object) -> float:
    """`2%` as the fraction 0.02."""
    match = _PERCENTAGE.fullmatch(value) if isinstance(value, str) else None
    if match is not None:
        return float(match[1]) / 100
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        hint = f"write `{float(value):g}%` or `{100 * float(value):g}%`, whichever is meant"
        raise Complaint("a percentage needs its unit", hint=hint)
    raise Complaint("not a percentage", hint="write it as `2%` or `0.5%`")


def name(value: object) -> str:
    """A name that becomes a directory name."""
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise Complaint(
        f"the name {value!r} cannot be used: names become directory names",
        hint="use letters, digits, `.`, `_` and `-`, beginning with a letter or digit, at most 64",
    )


def _variant_name(value: object) -> str:
    if value == "baseline":
        raise Complaint("a variant cannot be called `baseline`", hint="the baseline has its own key at the top")
    return name(value)


def text(value: str) -> str:
    """Text that a program can receive, and that gpurun hands on unchanged."""
    if PORT_TOKEN in value:
        raise Complaint(f"the text `{PORT_TOKEN}` has a meaning of its own to gpurun", hint="write `{{ port }}`")
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise Complaint("text with a NUL or half a surrogate pair cannot be given to a program")
    return value


def _plain(value: object) -> object:
    """Checks a flag's value, at any depth."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise Complaint("not a number that a program can be given")
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {text(str(key)): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise Complaint(f"a {type(value).__name__} cannot be a flag's value", hint="put it in quotes")


def _flag_value(value: object) -> object:
    if isinstance(value, list):
        if not value:
            raise Complaint("an empty list gives no argument", hint="`null` removes an inherited flag")
        if any(item is None or isinstance(item, (bool, list)) for item in value):
            raise Complaint("a list holds texts, numbers and maps only", hint="put true, false or null in quotes")
    return _plain(value)


def _flag_key(value: object) -> str:
    if isinstance(value, str) and _FLAG.fullmatch(value):
        return text(value)
    bare = str(value).strip().lstrip("-").split("=")[0].split(" ")[0]
    hint = f"write `{bare}: ...`; gpurun adds the dashes" if bare else "a flag is named without its dashes"
    raise Complaint(f"{value!r} is not the name of a flag", hint=hint)


def _env_key(value: object) -> str:
    if isinstance(value, str) and _VARIABLE.fullmatch(value):
        if value.startswith("GPURUN_"):
            raise Complaint(f"the variable `{value}` is gpurun's own", hint="choose another name")
        return value
    raise Complaint(f"{value!r} is not the name of an environment variable")


def _env_value(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise Complaint("an environment variable is text", hint=f'put it in quotes, such as "{str(value).lower()}"')


def _secret(value: object) -> str:
    if isinstance(value, str) and _SECRET.fullmatch(value):
        return value
    hint = "write the name of the variable only; its value comes from your environment or a credential"
    raise Complaint("a secret is the name of an environment variable in capitals", hint=hint)


def _engine(value: object) -> str:
    if not isinstance(value, str):
        raise Complaint("an engine is `name` or `name==version`")
    engine, equals, version = value.partition("==")
    if engine not in engine_names():
        raise Complaint(f"there is no engine `{engine}`", allowed=engine_names())
    if equals and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+!_-]*", version):
        raise Complaint(f"`{version}` is not a version", hint=f"write `{engine}` or `{engine}==1.2.3`")
    return value


def _metric(value: object) -> object:
    if value in METRICS:
        return value
    raise Complaint(f"there is no metric `{value}`", allowed=METRICS)


def _wheel(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.+!]*", value):
        return value
    raise Complaint("a wheel is pinned as `name==version`")


def _sha256(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[0-9a-fA-F]{64}", value):
        return value.lower()
    raise Complaint("a sha256 is 64 hexadecimal digits", hint="`sha256sum FILE` prints it")


def _url(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"https?://[^\s/@]+/\S*", value):
        file = unquote(urlsplit(value).path).rpartition("/")[2]
        if file not in ("", ".", ".."):
            return text(value)
    raise Complaint("not the http(s) address of a file", hint="write no user or password into it")


def _endpoint(value: object) -> object:
    if value is False or (isinstance(value, str) and value.startswith("/")):
        return value
    raise Complaint("a path of the server begins with `/`", hint="`false` leaves this check out")


def _relative_file(value: object) -> str:
    if isinstance(value, str) and value and not value.startswith("/") and ".." not in value.split("/"):
        return text(value)
    raise Complaint("a file of a model is named by its path inside it, without `..`")


_PATTERN_DURATION = r"^(\d+(\.\d+)?h)?(\d+(\.\d+)?m)?(\d+(\.\d+)?s)?(\d+ms)?$"

Duration = Annotated[
    float, BeforeValidator(_positive_duration), WithJsonSchema({"type": "string", "pattern": _PATTERN_DURATION})
]
Percentage = Annotated[
    float, BeforeValidator(percentage), WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)?\s*%$"})
]
_NAME_SCHEMA = WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"})
Name = Annotated[str, BeforeValidator(name), _NAME_SCHEMA]
VariantName = Annotated[str, BeforeValidator(_variant_name), _NAME_SCHEMA]
FlagKey = Annotated[str, BeforeValidator(_flag_key)]
FlagValue = Annotated[
    Any,
    BeforeValidator(_flag_value),
    WithJsonSchema({"type": ["string", "number", "boolean", "null", "array", "object"]}),
]
EnvKey = Annotated[str, BeforeValidator(_env_key)]
EnvValue = Annotated[str | None, BeforeValidator(_env_value), WithJsonSchema({"type": ["string", "integer", "null"]})]
Secret = Annotated[str, BeforeValidator(_secret), WithJsonSchema({"type": "string", "pattern": f"^{_SECRET.pattern}$"})]
EngineName = Annotated[
    str,
    BeforeValidator(_engine),
    WithJsonSchema({"type": "string", "pattern": f"^({'|'.join(engine_names())})(==.+)?$"}),
]
MetricName = Annotated[str, BeforeValidator(_metric), WithJsonSchema({"type": "string", "enum": list(METRICS)})]
Text = Annotated[str, BeforeValidator(lambda value: text(value) if isinstance(value, str) else value)]
Wheel = Annotated[str, BeforeValidator(_wheel)]
Sha256 = Annotated[str, BeforeValidator(_sha256)]
Url = Annotated[str, BeforeValidator(_url)]
Endpoint = Annotated[
    Any,
    BeforeValidator(_endpoint),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": "^/"}, {"const": False}]}),
]
RelativeFile = Annotated[str, BeforeValidator(_relative_file)]
