"""The kinds of values in a campaign file: what is accepted, and what is said of the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic.fields import FieldInfo

from gpurun.engines import engine_names

METRICS = (
    *("output_tok_per_s", "total_tok_per_s", "request_per_s"),
    *(f"{name}_{what}_ms" for name in ("ttft", "tpot", "itl", "e2e") for what in ("mean", "p50", "p90", "p99")),
    *("error_rate", "accept_length"),
)
"""What a campaign can judge by: the names that `parsers` gives."""

FORMS: dict[str, tuple[str, str | None]] = {}
"""Pattern of a text -> what is said of a text that does not have this form, and the next step."""


class Complaint(ValueError):
    """What is wrong with a value, with the names that would be right and the next step; `at` is the key inside."""

    def __init__(self, message: str, *, hint: str | None = None, allowed: Sequence[str] = (), at: str = "") -> None:
        super().__init__(message)
        self.at, self.hint, self.allowed = at, hint, tuple(allowed)


def _form(pattern: str, message: str, hint: str | None = None) -> FieldInfo:
    """Text of this form; the JSON Schema says the same."""
    FORMS[pattern] = (message, hint)
    field: FieldInfo = Field(pattern=pattern)
    return field


def duration(value: object) -> float:
    """`90s`, `15m`, `1h30m`, `500ms` in seconds."""
    match = re.fullmatch(_DURATION, value) if isinstance(value, str) and value else None
    if match is not None:
        units = (3600, 60, 1, 0.001)
        return sum(float(number) * unit for number, unit in zip(match.groups(), units, strict=True) if number)
    if (isinstance(value, (int, float)) and not isinstance(value, bool)) or re.fullmatch(r"[\d.]+", str(value)):
        raise Complaint("a duration needs a unit", hint=f"write `{value}s` for seconds, or use ms, m, h: `1h30m`")
    raise Complaint("not a duration", hint="write it as `90s`, `15m`, `1h30m` or `500ms`")


def percentage(value: object) -> float:
    """`2%` as the fraction 0.02."""
    match = re.fullmatch(_PERCENTAGE, value) if isinstance(value, str) else None
    if match is not None:
        return float(match[1]) / 100
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        hint = f"write `{float(value):g}%` or `{100 * float(value):g}%`, whichever is meant"
        raise Complaint("a percentage needs its unit", hint=hint)
    raise Complaint("not a percentage", hint="write it as `2%` or `0.5%`")


def _time_limit(value: object) -> float:
    seconds = duration(value)
    if seconds <= 0:
        raise Complaint("a time limit must be longer than nothing")
    return seconds


def _not_baseline(value: str) -> str:
    if value == "baseline":
        raise Complaint("a variant cannot be called `baseline`", hint="the baseline has its own key at the top")
    return value


def _flag_key(value: str) -> str:
    if not re.fullmatch(r"[^-\s=][^\s=]*", value):
        bare = re.split(r"[=\s]", value.strip().lstrip("-"))[0]
        hint = f"write `{bare}: ...`; gpurun adds the dashes" if bare else "a flag is named without its dashes"
        raise Complaint(f"{value!r} is not the name of a flag", hint=hint)
    return value


def _flag_value(value: object) -> object:
    if value == [] and isinstance(value, list):
        raise Complaint("an empty list gives no argument", hint="`null` removes an inherited flag")
    if isinstance(value, list) and any(item is None or isinstance(item, (bool, list)) for item in value):
        raise Complaint("a list holds texts, numbers and maps only", hint="put true, false or null in quotes")
    return value


def _not_ours(value: str) -> str:
    if value.startswith("GPURUN_"):
        raise Complaint(f"the variable `{value}` is gpurun's own", hint="choose another name")
    return value


def _env_value(value: object) -> object:
    if isinstance(value, (bool, float, list, dict)):
        raise Complaint("an environment variable is text", hint=f'put it in quotes, such as "{str(value).lower()}"')
    return str(value) if isinstance(value, int) else value


def _engine(value: str) -> str:
    engine, equals, version = value.partition("==")
    if engine not in engine_names():
        raise Complaint(f"there is no engine `{engine}`", allowed=engine_names())
    if equals and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+!_-]*", version):
        raise Complaint(f"`{version}` is not a version", hint=f"write `{engine}` or `{engine}==1.2.3`")
    return value


def _metric(value: str) -> str:
    if value not in METRICS:
        raise Complaint(f"there is no metric `{value}`", allowed=METRICS)
    return value


def _url(value: str) -> str:
    file = unquote(urlsplit(value).path).rpartition("/")[2] if re.fullmatch(r"https?://[^\s/@]+/\S*", value) else ""
    if file in ("", ".", ".."):
        raise Complaint("not the http(s) address of a file", hint="write no user or password into it")
    return value


def _endpoint(value: object) -> object:
    if value is False or (isinstance(value, str) and value.startswith("/")):
        return value
    raise Complaint("a path of the server begins with `/`", hint="`false` leaves this check out")


def _relative(value: str) -> str:
    if not value or value.startswith("/") or ".." in value.split("/"):
        raise Complaint("a file of a model is named by its path inside it, without `..`")
    return value


_DURATION = r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?"
_PERCENTAGE = r"(\d+(?:\.\d+)?)\s*%"

Duration = Annotated[
    float, BeforeValidator(_time_limit), WithJsonSchema({"type": "string", "pattern": f"^{_DURATION}$"})
]
Percentage = Annotated[
    float, BeforeValidator(percentage), WithJsonSchema({"type": "string", "pattern": f"^{_PERCENTAGE}$"})
]
Name = Annotated[
    str,
    _form(
        r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        "the name {!r} cannot be used: names become directory names",
        "use letters, digits, `.`, `_` and `-`, beginning with a letter or digit, at most 64",
    ),
]
VariantName = Annotated[Name, AfterValidator(_not_baseline)]
FlagKey = Annotated[str, AfterValidator(_flag_key)]
FlagValue = Annotated[
    Any,
    BeforeValidator(_flag_value),
    WithJsonSchema({"type": ["string", "number", "boolean", "null", "array", "object"]}),
]
EnvKey = Annotated[
    str,
    _form(r"^[A-Za-z_][A-Za-z0-9_]*$", "{!r} is not the name of an environment variable"),
    AfterValidator(_not_ours),
]
EnvValue = Annotated[str | None, BeforeValidator(_env_value), WithJsonSchema({"type": ["string", "integer", "null"]})]
Secret = Annotated[
    str,
    _form(
        r"^[A-Z_][A-Z0-9_]*$",
        "a secret is the name of an environment variable in capitals",
        "write the name of the variable only; its value comes from your environment or a credential",
    ),
]
EngineName = Annotated[
    str,
    AfterValidator(_engine),
    WithJsonSchema({"type": "string", "pattern": f"^({'|'.join(engine_names())})(==.+)?$"}),
]
MetricName = Annotated[str, AfterValidator(_metric), WithJsonSchema({"type": "string", "enum": list(METRICS)})]
AbsolutePath = Annotated[str, _form("^/", "an absolute path begins with `/`")]
Wheel = Annotated[
    str, _form(r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.+!]*$", "a wheel is pinned as `name==version`")
]
Sha256 = Annotated[
    str,
    _form("^[0-9a-fA-F]{64}$", "a sha256 is 64 hexadecimal digits", "`sha256sum FILE` prints it"),
    AfterValidator(str.lower),
]
Url = Annotated[str, AfterValidator(_url)]
Endpoint = Annotated[
    Any,
    BeforeValidator(_endpoint),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": "^/"}, {"const": False}]}),
]
RelativeFile = Annotated[str, AfterValidator(_relative)]
