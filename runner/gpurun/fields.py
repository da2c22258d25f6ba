"""The kinds of values in a campaign file: what is accepted, and what is said of the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from gpurun.data import table
from gpurun.engines import engine_names
from gpurun.tools import tool_names

METRICS = (
    *("output_tok_per_s", "total_tok_per_s", "request_per_s"),
    *(f"{name}_{what}_ms" for name in ("ttft", "tpot", "itl", "e2e") for what in ("mean", "p50", "p90", "p99")),
    *("error_rate", "accept_length", "energy_j_per_tok"),
)
"""What a campaign can judge by: the names that `parsers` gives."""

MESSAGES: dict[str, dict[str, Any]] = table("messages")
PINNED = re.compile(r"(^|(^|@)sha256:)[0-9a-f]{64}$")  # of images; Podman tells an id without its kind
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]+)?"  # no more digits: a float has an end, and so has the time of a systemd unit
_DURATION = rf"^(?:({_NUMBER})h)?(?:({_NUMBER})m)?(?:({_NUMBER})s)?(?:([0-9]{{1,9}})ms)?$"
_PERCENTAGE = rf"^({_NUMBER})\s*%$"
_LONGEST_S = 366 * 24 * 3600.0


class Complaint(ValueError):
    """What is wrong with a value, with the names that would be right and the next step; `at` is the key inside."""

    def __init__(self, message: str, *, hint: str | None = None, allowed: Sequence[str] = (), at: str = "") -> None:
        super().__init__(message)
        self.at, self.hint, self.allowed = at, hint, tuple(allowed)


class _Form:
    """Text of a form that data/messages.yml describes; the JSON Schema has the same pattern."""

    def __init__(self, name: str) -> None:
        self.form = MESSAGES["forms"][name]

    def check(self, value: str) -> str:
        if not re.search(self.form["pattern"], value) or "\n" in value:
            raise Complaint(self.form["says"].format(value), hint=self.form.get("hint"))
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": self.form["pattern"]}


def duration(value: object) -> float:
    """`90s`, `15m`, `1h30m`, `500ms` in seconds."""
    match = re.fullmatch(_DURATION, value) if isinstance(value, str) and value else None
    if match is not None:
        units = (3600, 60, 1, 0.001)
        seconds = sum(float(number) * unit for number, unit in zip(match.groups(), units, strict=True) if number)
        if seconds > _LONGEST_S:
            raise Complaint("longer than a year", hint="write the longest time that you would wait, such as `12h`")
        return seconds
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


def _flag_key(value: str) -> str:
    if not re.fullmatch(r"[^-\s=][^\s=]*", value):
        bare = re.split(r"[=\s]", value.strip().lstrip("-"))[0]
        hint = f"write `{bare}: ...`; gpurun adds the dashes" if bare else "a flag is named without its dashes"
        raise Complaint(f"{value!r} is not the name of a flag", hint=hint)
    return value


def _flag_value(value: object) -> object:
    if isinstance(value, list) and not value:
        raise Complaint("an empty list gives no argument", hint="`null` removes an inherited flag")
    if isinstance(value, list) and any(item is None or isinstance(item, (bool, list)) for item in value):
        raise Complaint("a list holds texts, numbers and maps only", hint="put true, false or null in quotes")
    return value


def _env_value(value: object) -> object:
    if isinstance(value, (bool, float, list, dict)):
        hint = "" if isinstance(value, (list, dict)) else f', such as "{str(value).lower()}"'
        raise Complaint("an environment variable is text", hint=f"put it in quotes{hint}")
    return str(value) if isinstance(value, int) else value


def _engine(value: str) -> str:
    engine, equals, version = value.partition("==")
    _one_of("engine", engine_names())(engine)
    if equals and not re.fullmatch(r"(?=.*\d)[A-Za-z0-9][A-Za-z0-9.+!_-]*", version):
        raise Complaint(f"`{version}` is not a version", hint=f"write `{engine}` or `{engine}==1.2.3`")
    return f"{engine}=={version[1:]}" if re.match(r"v\d", version) else value  # as tags have it


def _one_of(what: str, names: Sequence[str]) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value not in names:
            raise Complaint(f"there is no {what} `{value}`", allowed=names)
        return value

    return check


def pattern_with_group(name: str, pattern: str) -> None:
    """Complain unless `pattern` is a regular expression with exactly one group."""
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise Complaint(f"the pattern of `{name}` cannot be read: {error}", at="metrics") from None
    if groups != 1:
        hint = "the group is the number: `throughput: ([0-9.]+)`"
        raise Complaint(f"the pattern of `{name}` needs exactly one group", hint=hint, at="metrics")


def _url(value: str) -> str:
    file = unquote(urlsplit(value).path).rpartition("/")[2] if re.fullmatch(r"https?://[^\s/@]+/\S*", value) else ""
    if file in ("", ".", ".."):
        raise Complaint("not the http(s) address of a file", hint="write no user or password into it")
    return value


def _endpoint(value: object) -> object:
    return value if value is False else _Form("endpoint").check(str(value))


def _schema(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern})


Duration = Annotated[float, BeforeValidator(_time_limit), _schema(_DURATION)]
Percentage = Annotated[float, BeforeValidator(percentage), _schema(_PERCENTAGE)]
Name = Annotated[str, _Form("name")]
VariantName = Annotated[str, _Form("name"), _Form("not_baseline")]
FlagKey = Annotated[str, AfterValidator(_flag_key)]
FlagValue = Annotated[Any, BeforeValidator(_flag_value)]
EnvKey = Annotated[str, _Form("env_key"), _Form("not_ours")]
EnvValue = Annotated[str | None, BeforeValidator(_env_value), WithJsonSchema({"type": ["string", "integer", "null"]})]
Secret = Annotated[str, _Form("secret")]
EngineName = Annotated[str, AfterValidator(_engine), _schema(f"^({'|'.join(engine_names())})(==.+)?$")]
TOOLS = list(tool_names())
ToolName = Annotated[str, AfterValidator(_one_of("load tool", TOOLS)), WithJsonSchema({"enum": TOOLS})]
MetricName = Annotated[str, AfterValidator(_one_of("metric", METRICS)), WithJsonSchema({"enum": list(METRICS)})]
AbsolutePath = Annotated[str, _Form("absolute_path")]
Mount = Annotated[str, _Form("mount")]
MemorySize = Annotated[str, _Form("memory_size")]
Wheel = Annotated[str, _Form("wheel")]
Sha256 = Annotated[str, _Form("sha256"), AfterValidator(str.lower)]
Url = Annotated[str, AfterValidator(_url)]
store_url = _Form("store_url")
StoreUrl = Annotated[str, store_url]
Endpoint = Annotated[Any, AfterValidator(_endpoint), WithJsonSchema({"type": ["string", "boolean"]})]
RelativeFile = Annotated[str, _Form("relative_file")]
