"""The steps of a run that the command line and the playbooks' action plugins share.

The CLI calls them around its playbook runs, `bench.yml` calls them through the role `run`: open a run, say what a host
needs and still has to measure, bring a sample home, close the run. None of them talks to a host.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpurun import diagnose, events, remote, result, secrets, started, telemetry
from gpurun.assess import Assessment
from gpurun.errors import ExitCode, GpurunError, InterruptedRunError
from gpurun.loads import AFTER
from gpurun.manifest import RunStatus
from gpurun.outcome import outcome, own_files
from gpurun.remote import Remote
from gpurun.report import write as write_report
from gpurun.result import FailOn
from gpurun.samples import BASELINE, Failure, FailureClass, Phase, Sample, Timing
from gpurun.store import RunStore, iso
from gpurun.tree import map_texts

PASSING = ("host_unreachable", "interrupted", "port_in_use", "gpu_busy")  # causes that may be gone the next time
_RETRIED = ("port_in_use", "gpu_busy")  # by itself, once
_LAST_TRIES = 5  # to bring what is left to the results store at the end
_LEASE_SLACK_S = 60.0  # for a server to end after its life


class Closed(NamedTuple):
    """A run that has ended: the `--json` document, the judgement, the exit code, and why the results store lacks a part
    of it (empty: it does not)."""

    document: dict[str, Any]
    report: Assessment
    exit_code: ExitCode
    not_stored: str


def push(store: RunStore, hosts: Sequence[str] | None = None, *, tries: int = 5) -> str:
    """Bring to the run's results store what it lacks (of these hosts' samples). Returns why that cannot be done: it
    never costs a measurement."""
    try:
        if url := store.manifest.store:
            Remote(url, tries=tries).push(store, hosts)
    except (GpurunError, OSError) as error:
        return str(error)
    return ""


def open_store(run_dir: str, environment: Mapping[str, str] | None = None) -> RunStore:
    """The run in `run_dir`, as a playbook's worker sees it: the secrets to leave out are in its environment."""
    known = os.environ if environment is None else environment
    names = {*RunStore.open(Path(run_dir)).plan.get("secrets", ()), *remote.SECRETS, *secrets.handed_over(known)}
    return RunStore.open(Path(run_dir), [value for name in names for value in secrets.values(name, known)])


def needs(store: RunStore, host: str) -> dict[str, Any]:
    """What `host` must have before it measures (`engines`, `models`, `tools`, `images`), and the run's `lock` on it."""
    manifest, plan = store.manifest, store.plan
    lock = {"run": manifest.run, "campaign": manifest.campaign, "controller": manifest.controller.model_dump()}
    if manifest.controller.pid is None or host not in plan["hosts"]:  # nobody renews it, or not while a server starts
        on = [planned for planned in plan["samples"] if host in (planned["host"], planned["load"].get("host"))]
        lives = [planned["server"]["life_s"] for planned in on]
        lock["lease_s"] = max(lives) + _LEASE_SLACK_S
    images = {
        (known["runtime"], known["image"]): None
        for planned in plan["samples"]
        if planned["host"] == host and (known := planned["server"].get("container"))
    }
    images_wanted = [{"runtime": runtime, "image": image} for runtime, image in images]
    return {**plan["needs"][host], "images": images_wanted, "lock": lock}


def wanted_files(
    planned: Mapping[str, Any], server: Mapping[str, Any], load: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Which files and addresses of the server's host make the sample (the arguments of gpurun_collect), and at a start
    the `model` whose sizes are wanted."""
    place = server.get("dir")
    own = {"server.log": "log", "telemetry.csv": "telemetry.csv", "answers.json": "answers.json"} if place else {}
    files = {name: f"{place}/{file}" for name, file in own.items()}
    if load and load.get("dir") and not planned["load"].get("host"):
        files |= {name: f"{load['dir']}/{file}" for name, file in planned["load"]["left"].items()}
    paths = {
        "effective.json": (planned["server"].get("effective") or {}).get("path"),
        AFTER: planned["server"].get("metrics_path") if load else None,
    }
    alive = server.get("status") == "ready"
    urls = {name: f"http://127.0.0.1:{server['port']}{path}" for name, path in paths.items() if alive and path}
    more = started.wanted(planned, server)
    return {"files": files, "urls": {**urls, **more.pop("urls", {})}, **more}


def pending(store: RunStore, host: str, rounds: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """The samples that `host` still has to measure in these rounds (None: all), in order.

    `start` and `stop` mark the first and the last of neighbours that share a server, whatever was measured before.
    """
    home = {sample.id for sample in store.samples()}
    plan = store.plan
    todo = [
        _attempt(planned, store.attempts(planned["id"]), plan.get("scripts", {}))
        for planned in plan["samples"]
        if planned["host"] == host and (rounds is None or planned["round"] in rounds) and planned["id"] not in home
    ]
    jobs = [planned["server"]["job"] for planned in todo]
    for index, planned in enumerate(todo):
        planned["start"] = index == 0 or jobs[index - 1] != jobs[index]
        planned["load"]["reset"] = None if planned["start"] else planned["load"].get("reset")  # else it is empty
        planned["stop"] = index == len(todo) - 1 or jobs[index + 1] != jobs[index]
    return todo


def _attempt(planned: Mapping[str, Any], before: int, scripts: Mapping[str, str]) -> dict[str, Any]:
    """A planned sample as it is handed to the roles: with the text of its script, and with jobs of its own where it was
    tried `before`: a job's name is used once on a host."""
    files = {name: scripts[digest] for name, digest in (planned["load"].get("files") or {}).items()}
    sample: dict[str, Any] = {**planned, "load": {**planned["load"], "files": files}}
    if before:
        old, number = sample["load"]["job"], f"-{before + 1}"
        moved = map_texts(planned["load"], lambda text: text.replace(f"/{old}/", f"/{old}{number}/"))
        sample["load"] = {**moved, "files": files, "job": f"{old}{number}"}
        sample["server"] = {**sample["server"], "job": f"{sample['server']['job']}{number}"}
    return sample


def end_round(store: RunStore, host: str, number: int) -> list[events.Notice]:
    """Set the samples of a host's round aside that are tainted by what may have passed, or that failed for such a
    cause, so that they are measured again, each once. What was measured stands where its second try has failed.

    Returns what to say of it, which is in the run's events already.
    """
    settle(store, host)
    told = []
    for sample in store.samples():
        if (sample.host, sample.round) != (host, number) or store.attempts(sample.id):
            continue
        failure = sample.failure
        if (failure.klass in _RETRIED and not failure.expected) if failure else telemetry.passing(sample.taints):
            store.set_aside(sample)
            why = failure.klass if failure else "; ".join(sample.taints)
            told.append(events.Notice(f"{sample.variant} is measured again, the first time is kept: {why}", host))
            note(store, told[-1])
    return told


def settle(store: RunStore, host: str | None = None, *, over: bool = False) -> None:
    """Put back what was measured and set aside where the second try has failed or, in a run that is `over` (on this
    host), was never made."""
    home = {sample.id: sample for sample in store.samples()}
    for planned in store.plan["samples"]:
        now = home.get(planned["id"])
        if host in (None, planned["host"]) and (over if now is None else now.failure is not None):
            firsts = [one for one in store.aside(planned["id"]) if one.content == planned["content"]]
            for first in [first for first in firsts if first.failure is None][:1]:
                store.put_back(first)


def note(store: RunStore, event: events.Event) -> None:
    """One more event of the run, from now."""
    store.append_event(events.record(event, time.time()))


def _answers(store: RunStore, planned: Mapping[str, Any], variant: str) -> bytes | None:
    """What a variant answered on this sample's host, at its benchmark and point, in the first round that asked."""
    like = ("benchmark", "axes", "host")
    for other in store.plan["samples"]:
        if other["variant"] == variant and all(other[key] == planned[key] for key in like):
            answers = store.kept(other["id"], "answers.json")
            if answers is not None:
                return answers
    return None


def record(
    store: RunStore,
    planned: Mapping[str, Any],
    *,
    server: Mapping[str, Any],
    load: Mapping[str, Any] | None,
    files: Mapping[str, bytes],
    began: float,
) -> Sample:
    """Bring one sample home: parse what the load tool measured, or say why there is nothing to parse.

    `server` and `load` are what gpurun_job said of the two jobs; `files` holds server.log, client.log, raw.json and
    effective.json as far as they exist; `began` is when this sample's first task began (unix seconds, controller).
    """
    files, failure = own_files(files, load), None
    said = files.get("answers.json") or _answers(store, planned, planned["variant"]) or b"{}"
    found = outcome(planned, server, load, {**files, "answers.json": said}, _answers(store, planned, BASELINE))
    if isinstance(found, Failure):
        failure = found.model_copy(update={"expected": found.klass == planned.get("expect")})
    prediction, files = started.keep(planned, store.manifest.hosts.get(planned["host"], {}), files)
    sample = Sample(
        **_identity(store, planned),
        status="measured" if failure is None else "failed",
        prediction=prediction,
        metrics={} if isinstance(found, Failure) else found.metrics,
        failure=failure,
        taints=[] if isinstance(found, Failure) else found.taints,
        engine=planned["server"]["engine"],
        caches=(load or {}).get("reset"),
        timing=Timing(
            wall_s=time.time() - began,
            server_start_s=_seconds(server, "started_at", "ready_at") if planned["start"] else None,
            load_s=_seconds(load or {}, "started_at", "ended_at"),
        ),
        started_at=iso(began),
    )
    store.write_sample(sample, files)
    note(store, events.SampleFinished(where(planned), sample))
    return sample


def not_measured(
    store: RunStore, planned: Mapping[str, Any], klass: FailureClass, phase: Phase, proof: str, advice: str
) -> Sample:
    """Record a sample that could not be tried."""
    expected = klass == planned.get("expect")
    failure = Failure(klass=klass, phase=phase, proof=proof, advice=advice, expected=expected)
    sample = Sample(**_identity(store, planned), status="failed", failure=failure, engine=planned["server"]["engine"])
    store.write_sample(sample)
    note(store, events.SampleFinished(where(planned), sample))
    return sample


def give_up(store: RunStore) -> None:
    """Record what a run that nobody conducts any more has not measured: its host failed or was out of reach."""
    settle(store, over=True)
    for host in store.plan["hosts"]:
        lost, (why, advice) = pending(store, host), out_of_reach(host)
        for planned in lost:
            not_measured(store, planned, "host_unreachable", "serving", why, advice)
        if lost:
            note(store, events.HostLost(host, why))


def out_of_reach(host: str) -> tuple[str, str]:
    """Why a host has measured nothing, where only Ansible's own output tells it, and how to proceed."""
    return f"{host} failed or was out of reach: the job's output says how", "cure that, then go on with this run"


def where(planned: Mapping[str, Any]) -> events.Where:
    """What an event says of a planned sample."""
    return events.Where(planned["round"], planned["variant"], planned["label"], planned["host"], planned["case"])


def quarantined(store: RunStore, planned: Mapping[str, Any], why: str) -> Sample:
    """Record a sample that is not tried, because GPU memory did not come back on its host."""
    found = diagnose.classify("", reason="quarantined", message=why)
    return not_measured(store, planned, "gpu_busy", "stop", found.proof, found.advice)


def close_run(
    store: RunStore,
    *,
    fail_on: FailOn = "failure",
    host_failed: bool = False,
    cut_short: GpurunError | None = None,
) -> Closed:
    """Judge what is home; store result, end and report, also in the results store.

    `cut_short` is the error that ended the run early.
    """
    report = store.judged()
    code = result.exit_code(report.cases, report.samples, report.effects, fail_on=fail_on, host_failed=host_failed)
    code = code if cut_short is None else cut_short.exit_code
    broken: RunStatus = "interrupted" if isinstance(cut_short, InterruptedRunError) else "failed"
    status = "done" if cut_short is None else broken  # whatever its cases did: that is in them, and in the exit code
    document = result.document(store.manifest.run, str(store.directory), status, report.samples, report.effects)
    store.write_result(document)
    store.set_status(status, now=time.time(), exit_code=int(code))
    write_report(store, report)
    note(store, events.RunFinished(status, int(code)))
    why = push(store, tries=_LAST_TRIES if cut_short is None else 1)
    if why and code == ExitCode.DONE:
        code = ExitCode.NOT_READY
        store.set_status(status, now=time.time(), exit_code=int(code))
    return Closed(document, report, code, why)


def summary(store: RunStore, closed: Closed) -> dict[str, Any]:
    """What later jobs need of a run: who it was, what became of it, the verdicts on the primary metric, and where the
    rest is."""
    verdicts: dict[str, dict[str, str]] = {}
    for effect in closed.report.effects:
        if effect.primary:
            verdicts.setdefault(effect.case.variant, {})[effect.case.label] = effect.verdict
    known = store.manifest
    place = remote.part(store) if known.store else None
    return {
        "run": known.run,
        "campaign": known.campaign,
        "status": known.status,
        "exit_code": int(closed.exit_code),
        "why": closed.exit_code.name.lower().replace("_", " "),
        "verdicts": verdicts,
        "dir": str(store.directory),
        "store": known.store,
        "report": f"{known.store}/{place}/report.html" if place else str(store.directory / "report.html"),
    }


def _identity(store: RunStore, planned: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("variant", "benchmark", "case", "axes", "round", "repeat", "host", "content")
    return {"run": store.manifest.run, **{key: planned[key] for key in keys}}


def _seconds(job: Mapping[str, Any], begin: str, end: str) -> float | None:
    if job.get(begin) is None or job.get(end) is None:
        return None
    return float(job[end]) - float(job[begin])
