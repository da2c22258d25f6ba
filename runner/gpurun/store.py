"""The results directory: written atomically, never overwritten, readable after a `kill -9` at any moment.

    results/<campaign>/<run-id>/
      manifest.json campaign.yml plan.json events.jsonl result.json
      samples/<round>/<case-id>/<host>/ sample.json and what else the sample left

A file is written under a temporary name, flushed to the disk and renamed. A sample is a directory, and is renamed as
one: it is there whole or not at all. What would be replaced (a sample repeated by a resumed run) is kept as `NAME~1`,
`NAME~2`, ... Modes follow the umask: logs may hold what the user does not want to share.
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import re
import secrets as randomness
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gpurun.assess import Assessment, assess
from gpurun.errors import ConfigError, GpurunError, NotReadyError
from gpurun.manifest import Manifest, RunStatus
from gpurun.redact import redact_bytes, redact_tree
from gpurun.samples import Sample

_Model = TypeVar("_Model", bound=BaseModel)
RUN_ID = re.compile(r"\d{8}-\d{4}-[0-9a-f]{4}")  # as `new_run_id` makes them
LIST_THEM = "`gpurun runs` lists what there is; --results DIR looks elsewhere"
_HALF_WRITTEN = re.compile(r"\..+\.(\d+)-[0-9a-f]{8}")  # as `replacing` names it, with the writer's process id
_NAME = re.compile(r"[^\s/\\.~\x00-\x1f\x7f][^/\\~\x00-\x1f\x7f]*")


def new_run_id(now: float) -> str:
    """A name such as 20261130-1204-a1f3 for a run that starts at `now` (unix seconds), in local time."""
    return f"{time.strftime('%Y%m%d-%H%M', time.localtime(now))}-{randomness.token_hex(2)}"


def iso(now: float) -> str:
    """Unix seconds as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


class RunStore:
    """One run's directory. `secrets` are values that are replaced in whatever is written.

    What cannot be read is a GpurunError, what cannot be written a NotReadyError, both with the path.
    """

    def __init__(self, directory: Path, secrets: Sequence[str] = ()) -> None:
        self.directory = directory
        self._secrets = tuple(secrets)

    @classmethod
    def create(cls, results_dir: Path, campaign_text: str, manifest: Manifest, secrets: Sequence[str] = ()) -> RunStore:
        """A new run's directory with campaign and manifest."""
        directory = results_dir / safe_name(manifest.campaign, "campaign") / safe_name(manifest.run, "run")
        with _writing(directory):
            directory.mkdir(parents=True)
        store = cls(directory, secrets)
        store.write_campaign(campaign_text)
        store.write_manifest(manifest)
        return store

    @classmethod
    def open(cls, directory: Path, secrets: Sequence[str] = ()) -> RunStore:
        """An existing run."""
        if not (directory / "manifest.json").is_file():
            raise GpurunError("not a run's directory: it has no manifest.json", where=str(directory), hint=LIST_THEM)
        return cls(directory, secrets)

    @property
    def manifest(self) -> Manifest:
        """As it stands on the disk now."""
        return _model(Manifest, self.directory / "manifest.json", "this run's manifest")

    @property
    def plan(self) -> dict[str, Any]:
        """The stored plan; a run that ended early may have none."""
        path = self.directory / "plan.json"
        try:
            plan = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise GpurunError(f"this run has no readable plan.json: {error}", where=str(path)) from error
        samples = plan.get("samples") if isinstance(plan, dict) else None
        if not (
            isinstance(plan, dict) and isinstance(samples, list) and all(isinstance(each, dict) for each in samples)
        ):
            raise GpurunError("this run has no readable plan.json: it has no list of samples", where=str(path))
        return plan

    def set_status(self, status: RunStatus, *, now: float | None = None, **changes: Any) -> None:
        """Bring the manifest up to date: the status, its time where the run ended, and other fields by name."""
        ended = None if status == "running" or now is None else iso(now)
        fields = {"status": status, "ended_at": ended, "exit_code": None, **changes}
        manifest = Manifest.model_validate({**self.manifest.model_dump(by_alias=True), **fields})
        self.write_manifest(manifest)

    def write_manifest(self, manifest: Manifest) -> None:
        """The manifest, in place of an earlier one."""
        self._write("manifest.json", self._json(manifest), keep=False)

    def write_campaign(self, text: str) -> None:
        """The campaign; as with plan and result, a different earlier one (of a resumed run) is kept beside it."""
        self._write("campaign.yml", redact_bytes(text.encode(), self._secrets))

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """The plan."""
        self._write("plan.json", self._json(plan))

    def write_result(self, document: Mapping[str, Any]) -> None:
        """The result document."""
        self._write("result.json", self._json(document))

    def write_derived(self, name: str, text: str) -> Path:
        """What can be made again from the rest, such as a report: it takes the place of an earlier one."""
        self._write(name, redact_bytes(text.encode(errors="surrogateescape"), self._secrets), keep=False)
        return self.directory / name

    def append_event(self, record: Mapping[str, Any]) -> None:
        """One line to `events.jsonl`, in one write, so that lines never mix and only the last can be cut short."""
        line = json.dumps(redact_tree(record, self._secrets), default=str, sort_keys=True) + "\n"
        path = self.directory / "events.jsonl"
        with _writing(path), path.open("ab", buffering=0) as file:
            file.write(line.encode())

    def write_sample(self, sample: Sample, files: Mapping[str, bytes] | None = None) -> Path:
        """Bring a sample home: its record and its files, by plain names. Returns its directory.

        Several processes may write different samples of one run.
        """
        place, files = self._place(sample.id), files or {}
        numbers = {name: value for name, value in sample.metrics.items() if math.isfinite(value)}  # JSON has no NaN
        names = sorted(safe_name(name, "file") for name in files)
        with replacing(place) as fresh:
            fresh.mkdir()
            for name, content in files.items():
                put(fresh / name, redact_bytes(content, self._secrets))
            record = sample.model_copy(update={"files": names, "metrics": numbers})
            put(fresh / "sample.json", self._json(record))
            _sync(fresh)
        return place

    def file(self, sample: Sample, name: str) -> Path:
        """One of a sample's files."""
        return self._place(sample.id) / safe_name(name, "file")

    def set_aside(self, sample: Sample) -> None:
        """Keep a sample under another name, so that it can be measured again."""
        _step_aside(self._place(sample.id))

    def put_back(self, sample: Sample) -> None:
        """Undo the `set_aside` of a sample; what has taken its place since is set aside instead."""
        place = self._place(sample.id)
        for older in place.parent.glob(f"{glob.escape(place.name)}~*"):
            if _model(Sample, older / "sample.json", "a sample") == sample:
                _step_aside(place)
                older.rename(place)
                return

    def aside(self, sample_id: str) -> list[Sample]:
        """What was measured of this sample and set aside."""
        place = self._place(sample_id)
        found = sorted(place.parent.glob(f"{glob.escape(place.name)}~*/sample.json"))
        return [_model(Sample, path, "a sample") for path in found]

    def attempts(self, sample_id: str) -> int:
        """How many times this sample was measured and set aside."""
        place = self._place(sample_id)
        return len(list(place.parent.glob(f"{glob.escape(place.name)}~*")))

    def kept(self, sample_id: str, name: str) -> bytes | None:
        """A file of a sample that is home; None where there is none."""
        path = self._place(sample_id) / safe_name(name, "file")
        return path.read_bytes() if path.is_file() else None

    def sample(self, sample_id: str) -> Sample:
        """One sample that is home."""
        return _model(Sample, self._place(sample_id) / "sample.json", "a sample")

    def samples(self) -> list[Sample]:
        """Every sample that is home, by round, then repeat, then case, then host."""
        found = [_model(Sample, path, "a sample") for path in sample_files(self.directory)]
        return sorted(found, key=lambda sample: (sample.round, sample.repeat, sample.case, sample.host))

    def sample_folders(self) -> list[Path]:
        """The directories of the samples that are home, and of those that were set aside."""
        files = self.directory.glob("samples/*/*/*/sample.json")
        return sorted(path.parent for path in files if not path.parent.name.startswith("."))

    def judged(self) -> Assessment:
        """The run as it is judged by what is stored."""
        of, facts = self.manifest.run, self.manifest.hosts
        return assess(self.plan, self.samples(), self.directory, of, facts, self.settings())

    def settings(self) -> dict[str, Any]:
        """What servers were asked for and resolved to (`asked`, `resolved`), by the id of the sample at their start."""
        found = {}
        for path in sorted(self.directory.glob("samples/*/*/*/settings.json")):
            if _NAME.fullmatch(path.parent.name):
                with contextlib.suppress(OSError, ValueError):
                    found["/".join(path.parts[-4:-1])] = json.loads(path.read_bytes())
        return found

    def _place(self, sample_id: str) -> Path:
        parts = zip(sample_id.split("/", 2), ("round", "case", "host"), strict=True)
        return self.directory.joinpath("samples", *(safe_name(part, kind) for part, kind in parts))

    def _json(self, document: Mapping[str, Any] | BaseModel) -> bytes:
        if isinstance(document, BaseModel):
            document = document.model_dump(mode="json", by_alias=True)
        tree = redact_tree(document, self._secrets)
        return (json.dumps(tree, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n").encode()

    def sweep(self) -> None:
        """Remove what killed writers have left half written, of a run that is not under way."""
        left = [] if self.manifest.status_now == "running" else list(self.directory.rglob(".*"))
        for path in left:
            written = _HALF_WRITTEN.fullmatch(path.name)
            if written and not Path("/proc", written[1]).exists():
                _remove(path)

    def _write(self, name: str, content: bytes, *, keep: bool = True) -> None:
        path = self.directory / name
        if not (path.exists() and path.read_bytes() == content):
            with replacing(path, keep=keep) as fresh:
                put(fresh, content)


def safe_name(name: str, kind: str) -> str:
    """`name`, where it is one harmless path component. ConfigError otherwise: separators, `..`, control characters."""
    if not _NAME.fullmatch(name) or not name.isprintable() or len(name.encode()) > 200:
        raise ConfigError(f"{name!r} cannot be the name of a {kind}", hint="use letters, digits, dots and hyphens")
    return name


def sample_files(directory: Path) -> list[Path]:
    files = directory.glob("samples/*/*/*/sample.json")
    return [path for path in files if _NAME.fullmatch(path.parent.name)]  # neither set aside nor half written


def _model(model: type[_Model], path: Path, what: str) -> _Model:
    try:
        return model.model_validate_json(path.read_bytes())
    except OSError as error:
        raise GpurunError(f"cannot read {what}: {error.strerror or error}", where=str(path)) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        why = f"`{place}`: {first['msg']}" if place else first["msg"]
        hint = f"put {path.parent} elsewhere; `gpurun bench --resume RUN` measures such a sample again"
        raise GpurunError(f"{what} is damaged: {why}", where=str(path), hint=hint) from error


@contextlib.contextmanager
def replacing(target: Path, *, keep: bool = True) -> Iterator[Path]:
    """A name beside `target`: what is put there takes its place in the end. `keep`: what was there is set aside."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}-{randomness.token_hex(4)}")
    with _writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield fresh
            if keep:
                _step_aside(target)
            fresh.replace(target)
            _sync(target.parent)
        finally:
            _remove(fresh)  # where it could not be moved


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)  # a directory, or else a file
    with contextlib.suppress(OSError):
        path.unlink()


def _step_aside(path: Path) -> None:
    """Keep what is at `path`, if anything is, under the first free name `NAME~1`, `NAME~2`, ...

    A file stays until it is replaced, so that a run has its plan at every moment; a sample may be missing for one.
    """
    number = 1
    while (older := path.with_name(f"{path.name}~{number}")).exists():
        number += 1
    if path.is_dir():
        path.rename(older)
    elif path.exists():
        shutil.copy2(path, older)


def put(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "choose a directory with space that you may write to: --results DIR"
        if isinstance(error, FileExistsError):
            hint = "nothing is ever overwritten; start the run again for a new id"
        what = f"cannot write results: {(error.strerror or str(error)).lower()}"
        raise NotReadyError(what, where=str(error.filename or path), hint=hint) from error
