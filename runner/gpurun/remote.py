"""The results store: runs at a URL (`results.store`), where they outlive the machine that measured them. The only
importer of fsspec.

    <store>/<campaign>/<run-id>/hosts-<hash of their names>/
      manifest.json campaign.yml plan.json events.jsonl result.json report.html report.md SHA256SUMS
      samples/<round>/<case-id>/<host>/ what the sample left, SHA256SUMS

A part is what one job has measured, on the hosts of its plan: jobs that share a run have no file in common, and whoever
reads the run merges them. A file is read back and compared after it was written. SHA256SUMS, the last one of a folder,
names those that are there: a file that it does not name is not.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from gpurun import slices
from gpurun.errors import NoSuchRunError, NotReadyError
from gpurun.manifest import Manifest
from gpurun.references import RunSummary, choose, find
from gpurun.store import RunStore, replacing, safe_name
from gpurun.tree import digest

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_T = TypeVar("_T")
VARIABLE = "GPURUN_RESULTS_STORE"
# What a store takes from the environment, and what of that is never written down.
_PREFIXES = ("AWS_", "GPURUN_STORE_")
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GPURUN_STORE_PASSWORD")
_PASSWORD, _KEY, _KNOWN_HOSTS = ("GPURUN_STORE_PASSWORD", "GPURUN_STORE_KEY_FILE", "GPURUN_STORE_KNOWN_HOSTS")
_LISTING, _PUSHED = "SHA256SUMS", ".pushed"
_OF_RUN = ("manifest.json", "campaign.yml", "plan.json", "events.jsonl", "result.json", "report.html", "report.md")
_CONNECT_S, _READ_S = 5, 60
_LONGEST_WAIT_S = 16.0


def credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with which a store is reached."""
    return {name: value for name, value in environment.items() if name.startswith(_PREFIXES)}


def part(run: RunStore) -> str:
    """Where in a store the part of a run is that was measured on the hosts of its plan."""
    manifest = run.manifest
    return f"{manifest.campaign}/{manifest.run}/hosts-{digest(sorted(run.plan['hosts']))[:8]}"


class Remote:
    """A results store. What passes is tried `tries` times, with waits of 1, 2, 4, ... s in between.

    Whatever fails is a NotReadyError that names the store. Credentials come from the environment (docs/reference.md).
    """

    def __init__(self, url: str, *, tries: int = 5) -> None:
        self.url = url.rstrip("/")
        self._tries = tries
        self._files: AbstractFileSystem | None = None

    def push(self, run: RunStore, hosts: Collection[str] | None = None) -> int:
        """Bring what the store lacks of a run, of these hosts' samples only. Returns how many files were written.

        Several processes may push at once, each for hosts of its own.
        """
        target_of_run, planned, written = part(run), run.plan["hosts"], 0
        for place in run.sample_folders():
            host = place.name.partition("~")[0]
            if host in planned and (hosts is None or host in hosts):
                target = f"{target_of_run}/{place.relative_to(run.directory).as_posix()}"
                mark = place / _PUSHED  # which also says where to: a sample that was set aside has another place
                if not (mark.is_file() and mark.read_text(encoding="utf-8") == f"{self.url}/{target}"):
                    names = [path.name for path in place.iterdir() if not path.name.startswith(".")]
                    written += self._push_folder(place, names, target)
                    mark.write_text(f"{self.url}/{target}", encoding="utf-8")
        with _alone(run.directory / ".pushing", wait=hosts is None) as mine:
            if mine:
                written += self._push_folder(run.directory, _OF_RUN, target_of_run)
        return written

    def put(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Write files into a folder of the store, each read back and compared."""
        for name, content in files.items():
            self._retry(partial(_put, path=self._path(folder, name), content=content))

    def runs(self) -> list[RunSummary]:
        """Every run, newest first, as `list_runs` tells those of a directory."""
        found = []
        for campaign in self._names():
            for run in self._names(campaign):
                if parts := self._parts(campaign, run):
                    known = slices.merge_manifests([manifest for _, manifest in parts])
                    samples = {path for part, _ in parts for path in self._samples(f"{campaign}/{run}/{part}")}
                    count = sum("~" not in path for path in samples)
                    told = (known.status_now, known.started_at, known.ended_at, count)
                    found.append(RunSummary(run, campaign, *told, f"{self.url}/{campaign}/{run}"))
        return sorted(found, key=lambda run: (run.started_at or "", run.id), reverse=True)

    def find(
        self,
        results_dir: Path,
        reference: str,
        secrets: Sequence[str] = (),
        hosts: Collection[str] | None = None,
    ) -> RunStore:
        """A run of the store by reference (as `references.find` has it), as it lies in `results_dir`: fetched (only
        what these hosts have measured), unless it was measured from there. NoSuchRunError where it is not one run,
        another GpurunError where what was stored is damaged."""
        run = choose(self.runs(), reference, self.url)
        place = results_dir / safe_name(run.campaign, "campaign") / safe_name(run.id, "run")
        if (place / "manifest.json").is_file() and RunStore.open(place).manifest.copy_of is None:
            return RunStore.open(place, secrets)
        parts = [one for one in self._parts(run.campaign, run.id) if hosts is None or one[1].hosts.keys() & set(hosts)]
        if not parts:
            raise NoSuchRunError(f"run {run.id} has nothing of these hosts: {', '.join(hosts or ())}", where=self.url)
        with replacing(place, keep=False) as fresh:
            self._fetch(f"{run.campaign}/{run.id}", parts, fresh, hosts)
            shutil.rmtree(place, ignore_errors=True)  # an earlier copy
        return RunStore.open(place, secrets)

    def _fetch(
        self, run: str, parts: Sequence[tuple[str, Manifest]], place: Path, hosts: Collection[str] | None
    ) -> None:
        """The parts of a run, oldest first, as one run's directory."""
        place.mkdir(parents=True)
        plans, events, texts = [], [], []
        for part, _ in parts:
            listed = self._listing(f"{run}/{part}")
            of_run = {name: self._get(f"{run}/{part}", name, listed[name]) for name in _OF_RUN if name in listed}
            plans.append(json.loads(of_run["plan.json"]))
            texts.append(of_run["campaign.yml"])
            events += [json.loads(line) for line in of_run.get("events.jsonl", b"").splitlines()]
            for folder in self._samples(f"{run}/{part}"):
                number, case, host = _sample_parts(folder)
                if hosts is not None and host.partition("~")[0] not in hosts:
                    continue
                listed = self._listing(f"{run}/{part}/{folder}")
                files = {name: self._get(f"{run}/{part}/{folder}", name, sha) for name, sha in listed.items()}
                there = place / "samples" / number / case / host
                if not slices.worse(files["sample.json"], there / "sample.json"):
                    shutil.rmtree(there, ignore_errors=True)
                    there.mkdir(parents=True)
                    for name, content in files.items():
                        (there / safe_name(name, "file")).write_bytes(content)
        manifest = slices.merge_manifests([known for _, known in parts]).model_copy(update={"copy_of": self.url})
        whole = RunStore(place)
        whole.write_manifest(manifest)
        whole.write_campaign(texts[-1].decode())
        whole.write_plan(slices.merge_plans(plans))
        for event in sorted(events, key=lambda one: float(one["time"])):
            whole.append_event(event)

    def _parts(self, campaign: str, run: str) -> list[tuple[str, Manifest]]:
        """The parts of a run and their manifests, by the time they began."""
        found = []
        for part in self._names(f"{campaign}/{run}"):
            listed = self._listing(f"{campaign}/{run}/{part}") if part.startswith("hosts-") else {}
            if {"manifest.json", "plan.json", "campaign.yml"} <= listed.keys():
                raw = self._get(f"{campaign}/{run}/{part}", "manifest.json", listed["manifest.json"])
                found.append((part, Manifest.model_validate_json(raw)))
        return sorted(found, key=lambda one: one[1].started_at)

    def _samples(self, part: str) -> list[str]:
        """The folders of a part's samples that are whole, as `samples/<round>/<case>/<host>`."""
        root = self._path(part, "samples")
        found: list[str] = self._retry(lambda there: there.find(root), absent=[])
        whole = [path.rpartition("/")[0] for path in found if path.endswith(f"/{_LISTING}")]
        return sorted(path[path.rindex("/samples/") + 1 :] for path in whole)

    def _names(self, folder: str = "") -> list[str]:
        found: list[str] = self._retry(lambda there: there.ls(self._path(folder), detail=False), absent=[])
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def _push_folder(self, place: Path, names: Collection[str], target: str) -> int:
        files = {name: (place / name).read_bytes() for name in sorted(names) if (place / name).is_file()}
        wanted, there = {name: _sha256(content) for name, content in files.items()}, self._listing(target)
        if there == wanted:
            return 0
        kept = {name: sha for name, sha in there.items() if wanted.get(name) == sha}
        if there.keys() - kept.keys():  # what is about to change is not there for the time
            self.put(target, {_LISTING: _listing(kept)})
        new = {name: content for name, content in files.items() if name not in kept}
        self.put(target, new)
        self.put(target, {_LISTING: _listing(wanted)})
        return len(new)

    def _listing(self, folder: str) -> dict[str, str]:
        path = self._path(folder, _LISTING)
        lines = self._retry(lambda there: there.cat_file(path), absent=b"").decode().splitlines()
        return {name: sha for sha, _, name in (line.partition("  ") for line in lines)}

    def _get(self, folder: str, name: str, sha: str) -> bytes:
        """A file that a listing names; it is read again where it differs from what that says."""
        path = self._path(folder, name)

        def get(there: AbstractFileSystem) -> bytes:
            content: bytes = there.cat_file(path)
            if _sha256(content) != sha:
                raise OSError(f"{folder}/{name} is not what was stored: its checksum differs")
            return content

        return self._retry(get)

    def _path(self, *names: str) -> str:
        address = urlsplit(self.url)
        root = f"{address.netloc}{address.path}" if address.scheme == "s3" else unquote(address.path)
        return "/".join([root.rstrip("/"), *filter(None, names)])

    def _retry(self, action: Callable[[AbstractFileSystem], _T], *, absent: _T | None = None) -> _T:
        """What `action` gives; `absent` where there is no such file."""
        for number in range(self._tries):
            try:
                self._files = self._files or _connect(self.url)
                return action(self._files)
            except NotReadyError:
                raise
            except Exception as error:  # each of the libraries under fsspec raises classes of its own
                if isinstance(error, FileNotFoundError) and absent is not None:
                    return absent
                if number + 1 == self._tries or isinstance(error, (FileNotFoundError, PermissionError)):
                    why = f"the results store failed: {str(error) or type(error).__name__}"
                    hint = "look at its address, the network and the credentials in the environment"
                    raise NotReadyError(why, where=self.url, hint=hint) from error
                self._files = None
                time.sleep(min(2.0**number, _LONGEST_WAIT_S))
        raise AssertionError("a store is tried at least once")


def locate(results_dir: Path, reference: str, url: str | None) -> RunStore:
    """A run of the store where one is given, else, or where that does not have it, of the results directory."""
    with contextlib.suppress(NoSuchRunError):
        if url:
            return Remote(url).find(results_dir, reference)
    return find(results_dir, reference)


def bring_up_to_date(run: RunStore, url: str) -> None:
    """Have the store at `url` hold what it lacks of a run: of a copy, only the report on all its parts."""
    known, remote = run.manifest, Remote(url)
    if known.copy_of is not None:
        reports = {name: (run.directory / name).read_bytes() for name in ("report.html", "report.md")}
        remote.put(f"{known.campaign}/{known.run}", reports)
    else:
        run.set_status(known.status, ended_at=known.ended_at, exit_code=known.exit_code, store=remote.url)
        remote.push(run)


def _connect(url: str) -> AbstractFileSystem:
    """The file system that a store is on. NotReadyError for what no repetition cures."""
    address = urlsplit(url)
    try:
        if address.scheme == "file":
            from fsspec.implementations.local import LocalFileSystem

            return LocalFileSystem(auto_mkdir=True, skip_instance_cache=True)
        return _s3() if address.scheme == "s3" else _sftp(address.hostname, address.port, address.username)
    except ImportError as error:
        hint = "install it: pip install 'gpurun[store]'"
        raise NotReadyError(f"this kind of results store needs {error.name}", where=url, hint=hint) from None


def _s3() -> AbstractFileSystem:
    from s3fs import S3FileSystem

    # Endpoint, region, keys and profiles are the library's own business. What is written is read back here, so that
    # checksums which not every compatible service knows are not asked for.
    config = {"connect_timeout": _CONNECT_S, "read_timeout": _READ_S, "retries": {"max_attempts": 1}}
    config |= {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"}
    files = S3FileSystem(config_kwargs=config, use_listings_cache=False, skip_instance_cache=True)
    files.retries = 1
    return files


def _sftp(host: str | None, port: int | None, user: str | None) -> AbstractFileSystem:
    import asyncssh
    from sshfs import SSHFileSystem

    known = [os.environ[_KNOWN_HOSTS]] if os.environ.get(_KNOWN_HOSTS) else []
    usual = [Path("~/.ssh/known_hosts").expanduser(), Path("/etc/ssh/ssh_known_hosts")]
    options: dict[str, Any] = {"connect_timeout": _CONNECT_S, "login_timeout": 2 * _CONNECT_S, "port": port or 22}
    options |= {"username": user} if user else {}
    options |= {"client_keys": [os.environ[_KEY]]} if os.environ.get(_KEY) else {}
    options |= {"password": os.environ[_PASSWORD]} if os.environ.get(_PASSWORD) else {}
    # No key at all is trusted where there is no such file: sshfs would take any.
    options["known_hosts"] = known or [str(path) for path in usual if path.is_file()] or b""
    try:
        return SSHFileSystem(host, skip_instance_cache=True, **options)
    except asyncssh.HostKeyNotVerifiable as error:
        hint = f"put its key, once you have checked it, into ~/.ssh/known_hosts or the file that {_KNOWN_HOSTS} names"
        raise NotReadyError(
            f"the key of the results store's host is not known: {error}", where=host, hint=hint
        ) from None


def _put(there: AbstractFileSystem, path: str, content: bytes) -> None:
    there.pipe_file(path, content)
    if there.cat_file(path) != content:
        raise OSError(f"{path} reads otherwise than it was written")


def _listing(shas: Mapping[str, str]) -> bytes:
    """As sha256sum writes and checks it."""
    return "".join(f"{sha}  {name}\n" for name, sha in sorted(shas.items())).encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sample_parts(folder: str) -> tuple[str, str, str]:
    """Round, case and host of a sample's folder. ConfigError where they are no plain names."""
    number, case, host = folder.split("/")[1:]
    safe_name(host.partition("~")[0], "host")
    return safe_name(number, "round"), safe_name(case, "case"), host


@contextlib.contextmanager
def _alone(path: Path, *, wait: bool) -> Iterator[bool]:
    """Whether no other process of this machine is at it; with `wait`, as soon as none is."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
