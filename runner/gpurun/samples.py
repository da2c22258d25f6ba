"""What a measurement is: samples, failures, metrics. Pure data, schema-versioned, one JSON file per sample."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

SAMPLE_SCHEMA: Final = "gpurun.sample/1"
BASELINE: Final = "baseline"
REPEATED: Final = "each load is measured {} times on one server, which counts once: they do not see how starts differ"
AGAIN: Final = "baseline-again"  # the second baseline of `compare.noise_floor`, which is no variant of the file

FailureClass = Literal[
    "bad_flag",
    "bad_parallelism",
    "bad_model",
    "fit",
    "oom_gpu",
    "oom_host",
    "unsupported_arch",
    "driver_mismatch",
    "missing_dependency",
    "port_in_use",
    "gpu_busy",
    "comm_error",
    "comm_hang",
    "limits",
    "disk_full",
    "start_timeout",
    "start_hang",
    "engine_dead",
    "client_error",
    "invalid_measurement",
    "preflight_refused",
    "host_unreachable",
    "interrupted",
    "unknown",
]
Phase = Literal["preflight", "start", "weights", "kv", "graphs", "warmup", "serving", "stop"]
Status = Literal["measured", "failed", "skipped"]


class Record(BaseModel):
    """Base of everything that is written to a results directory: unknown keys are an error, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def klass(**more: Any) -> Any:
    """A field named `class`, which Python keeps for itself."""
    return Field(**more, validation_alias=AliasChoices("class", "klass"), serialization_alias="class")


class Failure(Record):
    """Why a sample has no number: class and phase words, the log line that proves it, and the next step.

    `line` is the number of the proof line in the log (from 1) where there is one. `expected` is true when the variant
    declared this class with `expect:`, so that it does not count against the run.
    """

    klass: FailureClass = klass()
    phase: Phase
    proof: str = ""
    advice: str = ""
    expected: bool = False
    line: int | None = None


class Timing(Record):
    """Where the wall time of a sample went, in seconds. None where that step did not happen in this sample.

    A stored one may have more: earlier versions of gpurun wrote `server_stop_s`, always null.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    wall_s: float | None = None
    server_start_s: float | None = None
    load_s: float | None = None


class Sample(Record):
    """One measured case in one round on one host (a contract: `sample.json`).

    `metrics` has units in its names (`output_tok_per_s`, `ttft_p50_ms`, ...). `content` is the hash of all that
    determines the result, so that a resumed run reuses only what was measured with the same content.
    """

    schema_: Literal["gpurun.sample/1"] = Field(default=SAMPLE_SCHEMA, alias="schema")
    run: str
    variant: str
    benchmark: str
    case: str
    axes: dict[str, Any] = Field(default_factory=dict)
    round: int
    repeat: int = 1
    host: str
    status: Status
    metrics: dict[str, float] = Field(default_factory=dict)
    failure: Failure | None = None
    taints: list[str] = Field(default_factory=list)
    content: str = ""
    engine: dict[str, Any] = Field(default_factory=dict)
    timing: Timing = Field(default_factory=Timing)
    started_at: str = ""
    prediction: dict[str, Any] | None = None  # of the memory of a server that was started for it, beside what it said
    caches: str | None = (
        None  # of a server that had other load before: "emptied", or why they were not; None: not tried
    )
    files: list[str] = Field(default_factory=list)

    @property
    def id(self) -> str:
        """Where it lies below `samples/`; no other sample of its run has it."""
        return sample_id(self.round, self.repeat, self.case, self.host)


def sample_id(number: int, repeat: int, case: str, host: str) -> str:
    """Of a round's sample on a host; `repeat` counts the measurements of the case on one and the same server."""
    return f"{number}{f'.{repeat}' if repeat > 1 else ''}/{case}/{host}"
