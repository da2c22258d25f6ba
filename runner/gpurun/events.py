"""What can happen in a run, as immutable records, and who may watch.

`execute` emits these and knows no terminal; an observer turns them into a live line, plain lines or a file. Times are
unix seconds and come with the call, so that observers need no clock of their own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, TypeAlias

from gpurun.samples import Sample

Stage = Literal["starting", "serving", "measuring", "stopping", "collecting"]
RunStage = Literal["preflight", "prepare", "measure", "clean-up"]


@dataclass(frozen=True)
class Where:
    """Which sample an event is about. `label` names benchmark and axis point for people, such as `chat@64`."""

    round: int
    variant: str
    label: str
    host: str
    case: str = ""


@dataclass(frozen=True)
class RunStarted:
    """A run begins. `samples` is how many are still to be measured, `reused` how many a resumed run already has."""

    run: str
    campaign: str
    directory: str
    rounds: int
    samples: int
    hosts: tuple[str, ...]
    estimate_s: float | None = None
    reused: int = 0


@dataclass(frozen=True)
class StageStarted:
    """The whole run, or one host, enters a stage; `detail` says what is done, such as `installing llamacpp 0.9.0`."""

    stage: RunStage
    host: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class SampleStage:
    """A sample enters a stage; `detail` is short, such as `ready after 1.4 s`."""

    where: Where
    stage: Stage
    detail: str = ""


@dataclass(frozen=True)
class SampleProgress:
    """News within a stage. `done` of `total` are counted in `unit`; `detail` is free text, such as a log line."""

    where: Where
    done: float | None = None
    total: float | None = None
    unit: str = "requests"
    detail: str = ""


@dataclass(frozen=True)
class SampleFinished:
    """A sample is home, measured or failed. `number` is its primary metric as text, such as `4 812 tok/s`."""

    where: Where
    sample: Sample
    number: str = ""


@dataclass(frozen=True)
class HostLost:
    """A host takes no further part in this run."""

    host: str
    reason: str


@dataclass(frozen=True)
class Notice:
    """Something that a person should know and that changes nothing."""

    message: str
    host: str | None = None


@dataclass(frozen=True)
class RunFinished:
    """The run is over; `status` is done, failed or interrupted."""

    status: str
    exit_code: int


Event: TypeAlias = (
    RunStarted | StageStarted | SampleStage | SampleProgress | SampleFinished | HostLost | Notice | RunFinished
)


class Observer(Protocol):
    """Watches a run. Nothing that an observer does may change the run."""

    def on_event(self, event: Event, now: float) -> None:
        """Something happened at `now`."""

    def tick(self, now: float) -> None:
        """Time passed; called about once or twice a second, whether anything happened or not."""

    def close(self) -> None:
        """The run is over, by whatever way; may be called twice."""


def record(event: Event, now: float) -> dict[str, Any]:
    """An event as one JSON object for `events.jsonl`. A finished sample is named, not repeated: it has its own file."""
    known = {"time": round(now, 3), "event": type(event).__name__, **asdict(event)}
    if isinstance(event, SampleFinished):
        sample, _ = known.pop("sample"), known.pop("number")
        known |= {"status": sample.status, "failure": sample.failure.klass if sample.failure else None}
    return known
