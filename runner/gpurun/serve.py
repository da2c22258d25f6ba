"""One variant, started on the hosts and left running: `gpurun serve`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpurun import events, opening, reachability
from gpurun.cases import Case
from gpurun.config import Campaign
from gpurun.errors import GpurunError, HostError, InterruptedRunError
from gpurun.manifest import Controller as Conductor
from gpurun.plan import Plan
from gpurun.session import Session


@dataclass(frozen=True)
class Served:
    """A server that is up on a host. `url` counts there; `tunnel` is the command that brings it here, if it is not.

    `effective` is the path under `url` that tells the settings in force; `until` is when the host ends it, in unix
    seconds.
    """

    host: str
    url: str
    pid: int
    unit: str | None
    log: str
    effective: str | None
    argv: list[str]
    until: float
    tunnel: list[str] | None


def serve(
    campaign: Campaign,
    case: Case,
    observer: events.Observer,
    *,
    inventory: Path | None = None,
    limit: str | None = None,
    life_s: float = 3600.0,
    force: Sequence[str] = (),
    wait: float = 0.0,
) -> tuple[str, list[Served]]:
    """Start the server of `case` on the campaign's hosts, and leave it up for `life_s` seconds, its start included;
    `wait` seconds for a host that another run holds.

    Returns, when it is ready, the run's id, by which `gpurun stop` ends it, and what runs where. GpurunError where a
    server does not become ready, HostError where a host cannot be used; nothing is left running then.
    """
    with _Serve.on(campaign, [case], observer, inventory, limit, case.server.secrets or (), _wait_s=wait) as session:
        return session.whole(life_s, force)


class _Serve(Session):
    def whole(self, life_s: float, force: Sequence[str]) -> tuple[str, list[Served]]:
        facts = self._preflight()
        once = self._campaign.model_copy(update={"rounds": 1})
        plan = _for_serving(opening.make_plan(once, self._cases, facts, forced=force), life_s)
        for notice in opening.notices_of(plan.findings):
            self._emit(notice)
        for sample in plan.samples:
            if (why := sample.refused) is not None:
                hint = f"{why['advice']}; `--force {why['rule']}` starts it all the same"
                raise GpurunError(f"{sample.host}: not started: {why['proof']}", hint=hint)
        # The run's directory is needed for as long as it takes to become ready; there are no results to keep.
        self._store = opening.open_run(
            plan,
            campaign_text=self._campaign.document.text,
            results_dir=self._controller.directory,
            controller=Conductor.this().model_copy(update={"pid": None, "pid_start": None}),
            facts=facts,
            secrets=list(self._secrets.values()),
        )
        hosts = tuple(facts)
        try:
            self._refuse_lost()
            self._prepare(hosts)
            self._refuse_lost()
            self._refuse_failed({})
            return plan.run, self._start(hosts, plan)
        except BaseException as error:
            self._clean_up(hosts, purge=isinstance(error, InterruptedRunError))  # else the log is pointed to
            if isinstance(error, InterruptedRunError):
                error.hint = "what was started has been ended"
                if self._interrupts.count > 1:
                    error.hint = self._cut_off()
            raise

    def _start(self, hosts: Sequence[str], plan: Plan) -> list[Served]:
        planned = {sample.host: sample for sample in plan.samples}
        where = {host: events.Where(1, one.variant, one.label, host, one.case) for host, one in planned.items()}
        jobs: dict[str, Mapping[str, Any]] = {}
        reach: dict[str, Mapping[str, Any]] = {}
        for host in hosts:
            self._emit(events.SampleStage(where[host], "starting"))
        playbook = self._controller.start("serve", self._variables(), hosts=hosts)
        for event in self._follow(playbook):
            if event.kind in ("ok", "retry") and "job" in event.result:
                jobs[event.host] = event.result["job"]
                last = str((event.result["job"].get("progress") or {}).get("last_line") or "")
                self._emit(events.SampleProgress(where[event.host], detail=last))
            elif event.kind == "ok" and event.task.endswith("Tell how to reach it"):
                reach[event.host] = event.result["msg"]
        self._note_lost(playbook.outcome)
        self._refuse_lost()
        self._refuse_failed(jobs)
        return [_served(host, jobs[host], reach[host], planned[host].server) for host in hosts]

    def _refuse_failed(self, jobs: Mapping[str, Mapping[str, Any]]) -> None:
        """GpurunError if a server is known not to become ready; `jobs` are those that were started."""
        for sample in self._store.samples():
            if sample.failure is not None:
                failure, job = sample.failure, jobs.get(sample.host)
                why = f"{failure.klass} ({failure.phase}): {failure.proof}"
                raise GpurunError(
                    f"{sample.host}: the server did not become ready: {why}",
                    where=f"{sample.host}:{job.get('dir')}/log" if job else None,
                    hint=failure.advice,
                )

    def _refuse_lost(self) -> None:
        if self._lost:
            message, fix = reachability.told(self._lost)
            raise HostError(message, hint=fix)


def _for_serving(plan: Plan, life_s: float) -> Plan:
    """The plan with the server's life as asked for, and without the tool that would measure it."""
    samples = [sample.model_copy(update={"server": {**sample.server, "life_s": life_s}}) for sample in plan.samples]
    needs = {host: {**need, "tools": []} for host, need in plan.needs.items()}
    return plan.model_copy(update={"samples": samples, "needs": needs})


def _served(host: str, job: Mapping[str, Any], reach: Mapping[str, Any], server: Mapping[str, Any]) -> Served:
    port = job["port"]
    tunnel = None
    if reach["connection"] not in ("local", "ansible.builtin.local"):
        key = ["-i", str(Path(reach["key"]).expanduser())] if reach["key"] else []
        login = f"{reach['user']}@{reach['address']}" if reach["user"] else reach["address"]
        tunnel = ["ssh", *key, *shlex.split(reach["arguments"]), "-p", str(reach["port"]), "-N"]
        tunnel += ["-L", f"{port}:127.0.0.1:{port}", login]
    return Served(
        host=host,
        url=f"http://127.0.0.1:{port}",
        pid=job["pid"],
        unit=job.get("unit"),
        log=f"{job['dir']}/log",
        effective=(server["effective"] or {}).get("path"),
        argv=[word.replace("@GPURUN_PORT@", str(port)) for word in server["argv"]],
        until=time.time() + server["life_s"] - (float(job["ready_at"]) - float(job["started_at"])),
        tunnel=tunnel,
    )
