"""Walks the plan: preflight, prepare, one playbook run per round, judge; and cleans up after itself, whatever happens.

It knows no terminal (it talks to an observer) and no ansible-runner (it talks to a Controller). Every sample is on the
disk before the next begins; what is left to do is always read from there.
"""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpurun import events, opening, reachability, steps
from gpurun.assess import Assessment
from gpurun.cases import Case
from gpurun.config import Campaign
from gpurun.errors import ExitCode, GpurunError, HostError, InterruptedRunError, NotReadyError
from gpurun.manifest import Controller as Conductor
from gpurun.playbooks import News, Outcome, Playbook, TaskEvent
from gpurun.remote import credentials
from gpurun.result import FailOn
from gpurun.samples import FailureClass, Sample
from gpurun.session import Session
from gpurun.store import RunStore

_RETURN_S = 60.0  # how long a host may be out of reach in the middle of a run
_TICK_S = 0.5
_STAGES: Mapping[str, events.Stage] = {
    "Start the server": "starting",
    "Send the load": "measuring",
    "Bring the sample home": "collecting",
}


@dataclass(frozen=True)
class BenchOptions:
    """What `gpurun bench` was asked for."""

    inventory: Path | None = None
    limit: str | None = None
    results: Path | None = None
    fail_on: FailOn = "failure"
    wait: float = 0.0  # seconds, for a host that another run holds
    resume: str | None = None
    retry_failed: bool = False
    force: Sequence[str] = ()  # rules of preflight that do not count
    command: Sequence[str] = ()
    store: str | None = None  # where samples are pushed to; default: as the campaign says


@dataclass(frozen=True)
class BenchResult:
    """A finished run: its directory, the `--json` document, the judgement, the exit code, and what the results store
    lacks."""

    store: RunStore
    document: dict[str, Any]
    report: Assessment
    exit_code: ExitCode
    not_stored: str


def bench(campaign: Campaign, cases: Sequence[Case], options: BenchOptions, observer: events.Observer) -> BenchResult:
    """Run a campaign from beginning to end.

    Raises HostError where no host can be used, InterruptedRunError after a clean stop on request, ConfigError where the
    facts of the hosts show that the campaign cannot be planned.
    """
    secrets = {name for case in cases for name in case.server.secrets or []}
    more = credentials(os.environ) if opening.store_url(campaign, options.store) or options.resume else {}
    of_the_run: dict[str, Any] = {"_wait_s": options.wait, "_options": options}
    with _Run.on(campaign, cases, observer, options.inventory, options.limit, secrets, more, **of_the_run) as run:
        return run.whole()


@dataclass
class _Turn:
    """One host's round in progress, and its samples that are not home yet."""

    host: str
    number: int
    waiting: list[dict[str, Any]]


@dataclass(eq=False)
class _Run(Session):
    """One run in progress."""

    _options: BenchOptions = BenchOptions()
    _home: dict[str, events.Where] = field(default_factory=dict)  # each host's latest sample that is home
    _dead: set[str] = field(default_factory=set)  # hosts whose present server did not become ready: no load follows
    _away: dict[str, float] = field(default_factory=dict)  # since when a host does not answer
    _quarantined: dict[str, str] = field(default_factory=dict)  # hosts whose GPU memory is not back: why

    def whole(self) -> BenchResult:
        """Everything, in order."""
        results_dir = self._options.results or Path(self._campaign.results.dir)
        earlier, url = None, opening.store_url(self._campaign, self._options.store)
        if self._options.resume is not None:
            earlier = opening.find_earlier(self._campaign, results_dir, self._options.resume, url, self._secrets)
        facts = self._preflight(loads=True)
        store, began, notices = opening.begin(
            self._campaign,
            self._cases,
            facts,
            results_dir=results_dir,
            controller=Conductor.this(),
            command=self._options.command,
            secrets=self._secrets,
            url=url,
            forced=self._options.force,
            earlier=earlier,
            retry_failed=self._options.retry_failed,
            lost={host: self._why_lost(host) for host in self._lost},
        )
        self._store, hosts = store, tuple(facts)
        self._show(began)
        for notice in notices:
            self._show(notice)
        try:
            if any(steps.pending(store, host) for host in hosts):
                self._prepare(hosts)
                self._measure(hosts)
        except GpurunError as error:
            self._clean_up(hosts)
            raise self._cut_short(error) from None
        except BaseException:
            self._clean_up(hosts)
            store.set_status("failed", now=time.time(), exit_code=int(ExitCode.BUG))
            raise
        self._clean_up(hosts, purge=True)
        if self._interrupts.count > 1:
            raise self._cut_short(self._interrupted())
        closed = steps.close_run(store, fail_on=self._options.fail_on, host_failed=bool(self._lost))
        self._show(events.RunFinished("done", int(closed.exit_code)))
        return BenchResult(store, *closed)

    def _measure(self, hosts: Sequence[str]) -> None:
        """Each host at its own pace: a playbook run for each of its rounds, side by side with those of the others."""
        news: News = queue.Queue()
        turns: dict[Playbook, _Turn] = {}
        idle = dict.fromkeys(hosts, 0.0)  # when each host takes its next turn
        while turns or (idle and not self._interrupts.count):
            self._tick()
            if self._interrupts.count:
                for playbook in turns:
                    playbook.cancel()
                if self._interrupts.count > 1:
                    break
            for host in [] if self._interrupts.count else [host for host in idle if time.monotonic() >= idle[host]]:
                del idle[host]
                turns |= self._take_turn(host, news)
            with contextlib.suppress(queue.Empty):
                playbook, event = news.get(timeout=_TICK_S)
                if event is not None:
                    self._on_task(event, turns[playbook].waiting)
                else:
                    turn = turns.pop(playbook)
                    self._end_turn(turn, playbook.outcome)
                    idle[turn.host] = time.monotonic() + (_TICK_S if turn.host in self._away else 0)
        if self._interrupts.count:
            raise self._interrupted()

    def _take_turn(self, host: str, news: News) -> dict[Playbook, _Turn]:
        """Start the next round of a host; nothing if it is done, or lost."""
        pending = steps.pending(self._store, host)
        if host in self._lost:
            steps.settle(self._store, host, over=True)
            self._skip_lost(steps.pending(self._store, host))
        if not pending or host in self._lost:
            return {}
        number = pending[0]["round"]
        variables = self._variables(gpurun_rounds=[number])
        playbook = self._controller.start("measure", variables, hosts=[host], news=news)
        return {playbook: _Turn(host, number, [planned for planned in pending if planned["round"] == number])}

    def _end_turn(self, turn: _Turn, outcome: Outcome) -> None:
        """A playbook that breaks on one sample costs that sample. A lost connection costs nothing, if it comes back in
        time: jobs go on without it, and the next turn takes them up. Whatever else ends the run."""
        host, now = turn.host, time.monotonic()
        if host in outcome.unreachable:
            since = self._away.setdefault(host, now)
            if now - since > _RETURN_S:
                self._note_lost(outcome, unreachable_only=True)
            elif since == now:
                why = reachability.explain(outcome.unreachable[host], host).message
                self._emit(events.Notice(f"{why}; trying again for {_RETURN_S:g} s", host))
        elif host in outcome.failed:
            why = outcome.failed[host]
            self._emit(events.Notice(f"a task failed: {why}", host))
            for planned in steps.pending(self._store, host)[:1]:  # none: it broke after the last one was home
                self._lose(planned, "unknown", why, "this is not a failure of the server; see `events.jsonl`")
        elif outcome.status not in ("successful", "canceled"):
            raise HostError(f"the playbook could not run: {outcome.output.strip() or outcome.status}")
        # Last, and only on a host that goes on: what is set aside is not the sample that broke, nor lost with its host.
        if outcome.status != "canceled" and host not in self._lost and host not in outcome.unreachable:
            for notice in steps.end_round(self._store, host, turn.number):
                self._show(notice)

    def _on_task(self, event: TaskEvent, waiting: list[dict[str, Any]]) -> None:
        task = event.task.rpartition(" : ")[2]
        if task == "Stop the server":  # that of the sample before, which is home already
            if event.kind == "start" and event.host in self._home:
                self._emit(events.SampleStage(self._home[event.host], "stopping"))
            left = (event.result.get("job") or {}).get("gpu_memory_left") if event.kind == "ok" else None
            if left and event.host not in self._lost:
                self._lost[event.host] = self._quarantined[event.host] = left
                self._emit(events.HostLost(event.host, left))
            return
        if not waiting:
            return
        where = steps.where(waiting[0])
        if event.kind in ("ok", "retry") and task in _STAGES:
            self._away.pop(event.host, None)  # it answers again
        if event.kind == "start" and task in _STAGES and not (task == "Send the load" and event.host in self._dead):
            self._emit(events.SampleStage(where, _STAGES[task]))
        elif event.kind == "retry" or (event.kind == "ok" and task in _STAGES and "job" in event.result):
            self._on_job(where, event.result.get("job") or {})
        if event.kind == "ok" and event.result.get("not_stored"):
            self._emit(events.Notice(event.result["not_stored"], event.host))
        if event.kind == "ok" and task == "Bring the sample home":
            planned = waiting.pop(0)
            sample = self._store.sample(planned["id"])
            self._home[event.host] = where
            self._show(events.SampleFinished(where, sample, _headline(sample, self._campaign.compare.primary)))

    def _on_job(self, where: events.Where, job: Mapping[str, Any]) -> None:
        (self._dead.add if job.get("status") == "failed" else self._dead.discard)(where.host)
        progress = job.get("progress") or {}
        if job.get("status") == "ready":
            seconds = float(job["ready_at"]) - float(job["started_at"])
            self._emit(events.SampleStage(where, "serving", f"ready after {seconds:.1f} s"))
            return
        counted = progress.get("progress_file") or {}
        unit = "warm-up requests" if counted.get("warming") else "requests"
        last = str(progress.get("last_line") or "")
        self._emit(events.SampleProgress(where, counted.get("done"), counted.get("total"), unit, last))

    def _skip_lost(self, pending: Sequence[dict[str, Any]]) -> None:
        for planned in pending:
            if planned["host"] in self._quarantined:
                sample = steps.quarantined(self._store, planned, self._quarantined[planned["host"]])
                self._show(events.SampleFinished(steps.where(planned), sample))
                continue
            self._lose(planned, "host_unreachable", *self._why_lost(planned["host"]))

    def _why_lost(self, host: str) -> tuple[str, str]:
        trouble = reachability.explain(self._lost[host], host)
        return trouble.message, f"{trouble.fix or 'cure that'}; then use --resume"

    def _lose(self, planned: dict[str, Any], klass: FailureClass, proof: str, advice: str) -> None:
        sample = steps.not_measured(self._store, planned, klass, "serving", proof, advice)
        self._show(events.SampleFinished(steps.where(planned), sample))

    def _cut_short(self, error: GpurunError) -> GpurunError:
        """Store what is there of a run that ends with `error`, and let the error say so."""
        with contextlib.suppress(OSError):
            steps.settle(self._store, over=True)
        if isinstance(error, InterruptedRunError):
            done, count = len(self._store.samples()), len(self._store.plan["samples"])
            error.message = f"interrupted after {done} of {count} samples"
            error.hint = f"the run is kept in {self._store.directory}; `gpurun bench --resume {self._run_id}` goes on"
            if self._interrupts.count > 1:
                error.hint = self._cut_off()
        with contextlib.suppress(NotReadyError):  # a full disk, say: the error that came first is told
            error.result = steps.close_run(self._store, cut_short=error).document
        return error


def _headline(sample: Sample, metric: str) -> str:
    """The primary metric as people read it in a progress line: `81.5 tok/s`."""
    if metric not in sample.metrics:
        return ""
    return f"{sample.metrics[metric]:.4g} {metric.removeprefix('output_').replace('_per_', '/').replace('_', ' ')}"
