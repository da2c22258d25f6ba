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
import errno
import json
import math
import os
import re
import secrets as randomness
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpurun.errors import ConfigError, GpurunError, NotReadyError
from gpurun.manifest import Manifest, RunStatus
from gpurun.redact import redact_bytes, redact_tree
from gpurun.samples import Sample

_LIST_THEM = "`gpurun runs` lists what there is; --results DIR looks elsewhere"
_NAME = re.compile(r"[^\s/\\.~\x00-\x1f\x7f][^/\\~\x00-\x1f\x7f]*")


@dataclass(frozen=True)
class RunSummary:
    """One line of `gpurun runs`. `status` is `unreadable` where the manifest cannot be read."""

    run: str
    campaign: str
    status: str
    started_at: str
    ended_at: str | None
    samples: int
    directory: Path


def new_run_id(now: float) -> str:
    """A name such as 20261130-1204-a1f3 for a run that starts at `now` (unix seconds), in local time."""
    return f"{time.strftime('%Y%m%d-%H%M', time.localtime(now))}-{randomness.token_hex(2)}"


def iso(now: float) -> str:
    """Unix seconds as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


class RunStore:
    """One run's directory. `secrets` are values that are replaced in whatever is written."""

    def __init__(self, directory: Path, secrets: Sequence[str] = ()) -> None:
        self.directory = directory
        self._secrets = tuple(secrets)

    @classmethod
    def create(
        cls,
        results_dir: Path,
        campaign_name: str,
        run_id: str,
        campaign_text: str,
        manifest: Manifest,
        secrets: Sequence[str] = (),
    ) -> RunStore:
        """A new run's directory with campaign and manifest. NotReadyError where it cannot be written, or exists."""
        directory = results_dir / safe_name(campaign_name, "campaign") / safe_name(run_id, "run")
        with _writing(directory):
            directory.parent.mkdir(parents=True, exist_ok=True)
            directory.mkdir()
        store = cls(directory, secrets)
        store._write("campaign.yml", campaign_text.encode())
        store._write("manifest.json", store._json(manifest.model_dump(mode="json", by_alias=True)))
        return store

    @classmethod
    def open(cls, directory: Path, secrets: Sequence[str] = ()) -> RunStore:
        """An existing run. GpurunError where there is none."""
        if not (directory / "manifest.json").is_file():
            raise GpurunError("not a run's directory: it has no manifest.json", where=str(directory), hint=_LIST_THEM)
        return cls(directory, secrets)

    @property
    def manifest(self) -> Manifest:
        """As it stands on the disk now."""
        path = self.directory / "manifest.json"
        try:
            return Manifest.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            why = str(error).splitlines()
            raise GpurunError(f"cannot read this run's manifest: {' '.join(why[:3])}", where=str(path)) from error

    @property
    def campaign_text(self) -> str:
        """The campaign file as it was given."""
        return self._read("campaign.yml").decode()

    @property
    def plan(self) -> dict[str, Any]:
        """The stored plan. GpurunError where the run ended before it had one."""
        return self._document("plan.json")

    def set_status(
        self, status: RunStatus, *, now: float | None = None, exit_code: int | None = None, **changes: Any
    ) -> Manifest:
        """Bring the manifest up to date: the status, its time where the run ended, and other fields by name."""
        ended = None if status == "running" or now is None else iso(now)
        fields = {"status": status, "ended_at": ended, "exit_code": exit_code, **changes}
        manifest = Manifest.model_validate({**self.manifest.model_dump(by_alias=True), **fields})
        self._write("manifest.json", self._json(manifest.model_dump(mode="json", by_alias=True)))
        return manifest

    def write_campaign(self, text: str) -> None:
        """The campaign that a resumed run goes on with; a different earlier one is kept beside it."""
        self._write_keeping("campaign.yml", text.encode())

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """The plan; a different earlier one (of a resumed run) is kept beside it."""
        self._write_keeping("plan.json", self._json(plan))

    def write_result(self, document: Mapping[str, Any]) -> None:
        """The result document; a different earlier one (of a resumed run) is kept beside it."""
        self._write_keeping("result.json", self._json(document))

    def append_event(self, record: Mapping[str, Any]) -> None:
        """One line to `events.jsonl`, in one write, so that lines never mix and only the last can be cut short."""
        line = json.dumps(redact_tree(record, self._secrets), default=str, sort_keys=True) + "\n"
        path = self.directory / "events.jsonl"
        with _writing(path):
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)

    def write_sample(self, sample: Sample, files: Mapping[str, bytes | Path] | None = None) -> Path:
        """Bring a sample home: its record and its files (content, or a path to copy from). Returns its directory.

        Several processes may write different samples of one run. Names of files are plain names.
        """
        place = self.sample_dir(sample)
        files = dict(files or {})
        numbers = {name: value for name, value in sample.metrics.items() if math.isfinite(value)}  # JSON has no NaN
        names = sorted(safe_name(name, "file") for name in files)
        record = sample.model_copy(update={"files": names, "metrics": numbers})
        fresh = place.with_name(f".{place.name}.{os.getpid()}-{randomness.token_hex(4)}")
        with _writing(place):
            fresh.mkdir(parents=True)
            try:
                for name, content in files.items():
                    self._copy(content, fresh / name)
                _put(fresh / "sample.json", self._json(record.model_dump(mode="json", by_alias=True)))
                _sync(fresh)
                _step_aside(place)
                fresh.rename(place)
                _sync(place.parent)
            except BaseException:
                shutil.rmtree(fresh, ignore_errors=True)
                raise
        return place

    def set_aside(self, sample: Sample) -> None:
        """Keep a sample under another name, so that it can be measured again."""
        _step_aside(self.sample_dir(sample))

    def sample_dir(self, sample: Sample) -> Path:
        """Where a sample is, or will be."""
        return self._place(sample.round, sample.case, sample.host)

    def sample(self, number: int, case: str, host: str) -> Sample:
        """One sample that is home. GpurunError where it is not, or cannot be read."""
        return _read_sample(self._place(number, case, host) / "sample.json")

    def samples(self) -> list[Sample]:
        """Every sample that is home, by round, then case, then host. GpurunError names a file that cannot be read."""
        found = [_read_sample(path) for path in _sample_files(self.directory)]
        return sorted(found, key=lambda sample: (sample.round, sample.case, sample.host))

    def _place(self, number: int, case: str, host: str) -> Path:
        return self.directory / "samples" / str(number) / safe_name(case, "case") / safe_name(host, "host")

    def _document(self, name: str) -> dict[str, Any]:
        try:
            document = json.loads(self._read(name))
        except ValueError as error:
            raise GpurunError(f"not valid JSON: {error}", where=str(self.directory / name)) from error
        assert isinstance(document, dict)
        return document

    def _read(self, name: str) -> bytes:
        path = self.directory / name
        try:
            return path.read_bytes()
        except OSError as error:
            raise GpurunError(f"this run has no readable {name}: {error.strerror}", where=str(path)) from error

    def _json(self, document: Mapping[str, Any]) -> bytes:
        tree = redact_tree(document, self._secrets)
        return (json.dumps(tree, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n").encode()

    def _write(self, name: str, content: bytes) -> None:
        path = self.directory / name
        fresh = path.with_name(f".{name}.{os.getpid()}-{randomness.token_hex(4)}")
        with _writing(path):
            try:
                _put(fresh, redact_bytes(content, self._secrets))
                fresh.replace(path)
                _sync(self.directory)
            except BaseException:
                fresh.unlink(missing_ok=True)
                raise

    def _write_keeping(self, name: str, content: bytes) -> None:
        path = self.directory / name
        if path.exists() and path.read_bytes() == redact_bytes(content, self._secrets):
            return
        with _writing(path):
            _step_aside(path)
        self._write(name, content)

    def _copy(self, content: bytes | Path, target: Path) -> None:
        if isinstance(content, bytes):
            _put(target, redact_bytes(content, self._secrets))
            return
        with content.open("rb") as source, target.open("xb") as copy:
            if self._secrets:
                copy.writelines(redact_bytes(line, self._secrets) for line in source)
            else:
                shutil.copyfileobj(source, copy)
            copy.flush()
            os.fsync(copy.fileno())


def list_runs(results_dir: Path) -> list[RunSummary]:
    """Every run under a results directory, newest first. A damaged one is listed as `unreadable`, not hidden."""
    found = []
    for path in results_dir.glob("*/*/manifest.json"):
        directory = path.parent
        count = sum(1 for _ in _sample_files(directory))
        try:
            manifest = RunStore(directory).manifest
        except GpurunError:
            found.append(RunSummary(directory.name, directory.parent.name, "unreadable", "", None, count, directory))
            continue
        status, started, ended = manifest.status_now, manifest.started_at, manifest.ended_at
        found.append(RunSummary(manifest.run, manifest.campaign, status, started, ended, count, directory))
    return sorted(found, key=lambda run: (run.started_at, run.run), reverse=True)


def find(results_dir: Path, reference: str, secrets: Sequence[str] = ()) -> RunStore:
    """A run by id, by either end of its id, by its directory, or `last`. GpurunError where that is not one run."""
    if (Path(reference) / "manifest.json").is_file():
        return RunStore.open(Path(reference), secrets)
    runs = list_runs(results_dir)
    if not runs:
        hint = "`gpurun bench --config FILE` makes one; --results DIR looks elsewhere"
        raise GpurunError("there are no runs here yet", where=str(results_dir), hint=hint)
    if reference == "last":
        return RunStore.open(runs[0].directory, secrets)
    exact = [run for run in runs if reference in (run.run, f"{run.campaign}/{run.run}")]
    alike = exact or [run for run in runs if run.run.startswith(reference) or run.run.endswith(reference)]
    if reference and len(alike) == 1:
        return RunStore.open(alike[0].directory, secrets)
    if reference and alike:
        names = ", ".join(f"{run.campaign}/{run.run}" for run in alike[:5])
        raise GpurunError(f"`{reference}` could be {len(alike)} runs: {names}", where=str(results_dir))
    raise GpurunError(f"there is no run `{reference}`", where=str(results_dir), hint=_LIST_THEM)


def safe_name(name: str, kind: str) -> str:
    """`name`, where it is one harmless path component. ConfigError otherwise: separators, `..`, control characters."""
    if not _NAME.fullmatch(name) or len(name.encode()) > 200:
        raise ConfigError(f"{name!r} cannot be the name of a {kind}", hint="use letters, digits, dots and hyphens")
    return name


def _sample_files(directory: Path) -> Iterator[Path]:
    for path in directory.glob("samples/*/*/*/sample.json"):
        if not path.parent.name.startswith(".") and "~" not in path.parent.name:
            yield path


def _read_sample(path: Path) -> Sample:
    try:
        return Sample.model_validate_json(path.read_bytes())
    except OSError as error:
        raise GpurunError(f"cannot read a sample: {error.strerror}", where=str(path)) from error
    except ValidationError as error:
        raise GpurunError(f"cannot read a sample: {' '.join(str(error).splitlines()[:3])}", where=str(path)) from error


def _put(path: Path, content: bytes) -> None:
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


def _step_aside(path: Path) -> None:
    """Give what is at `path` the first free name `NAME~1`, `NAME~2`, ..."""
    if path.exists():
        number = 1
        while (older := path.with_name(f"{path.name}~{number}")).exists():
            number += 1
        path.rename(older)


_CURES = {
    errno.EEXIST: "nothing is ever overwritten; start the run again for a new id",
    errno.ENOSPC: "free some space, or choose another place with --results DIR",
    errno.EDQUOT: "free some space, or choose another place with --results DIR",
}


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"cannot write results: {(error.strerror or str(error)).lower()}"
        cure = _CURES.get(error.errno or 0, "choose a directory that you may write to with --results DIR")
        raise NotReadyError(what, where=str(error.filename or path), hint=cure) from error
