"""What `bench` and `serve` share: hosts are looked at, prepared, followed through playbooks, and cleaned up."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from gpurun import events, opening, reachability
from gpurun.cases import Case
from gpurun.config import Campaign
from gpurun.errors import ConfigError, HostError, InterruptedRunError, NotReadyError
from gpurun.interrupts import Interrupts
from gpurun.playbooks import Controller, Outcome, Playbook, TaskEvent
from gpurun.samples import Sample
from gpurun.store import RunStore

_PATTERN = re.compile(r"[\s,*?/]|^[!&~@-]")
_STOP_S = 60.0  # the longest that clean-up may take
_PREPARATIONS = ("Take the host", "Install the engine", "Fetch the model", "Install the load tool")


@dataclass(eq=False)
class Session:
    """One call that works on hosts."""

    _campaign: Campaign
    _cases: Sequence[Case]
    _observer: events.Observer
    _interrupts: Interrupts
    _controller: Controller
    _secrets: Mapping[str, str]
    _wait_s: float = 0.0  # how long to wait for a host that another run holds
    _lost: dict[str, str] = field(default_factory=dict)
    _load_hosts: dict[str, str] = field(default_factory=dict)  # server host -> the other host that sends its load
    _forgive: tuple[type[Exception], ...] = ()
    _doing: dict[str, str] = field(default_factory=dict)  # what each host was last told to do
    _store: RunStore = field(init=False)  # from the moment that there is a run

    @classmethod
    @contextlib.contextmanager
    def on(
        cls, campaign: Campaign, cases: Sequence[Case], observer: events.Observer, inventory: Path | None,
        limit: str | None, secrets: Iterable[str] = (), more: Mapping[str, str] | None = None, **own: Any,
    ) -> Iterator[Self]:  # fmt: skip
        """A session on the hosts of an inventory, with the secrets of these names; `more` is for playbooks only."""
        with Interrupts() as interrupts, contextlib.closing(observer):
            known = opening.secret_values(secrets)
            with Controller(inventory, limit=limit, secrets=known, more=more) as controller:
                yield cls(campaign, cases, observer, interrupts, controller, known, **own)

    def _preflight(self, *, loads: bool = False) -> dict[str, Mapping[str, Any]]:
        """The facts of each host; with `loads`, also of the one that sends its load."""
        self._emit(events.StageStarted("preflight"))
        models = [case.server.model.path for case in self._cases if case.server.model and case.server.model.path]
        source: dict[str, Any] = {"gpurun_load_hosts": opening.load_group(self._campaign)} if loads else {}
        source |= {"gpurun_hosts": self._campaign.hosts, "facts_models": list(dict.fromkeys(models))}
        playbook = self._controller.start("preflight", source)
        found = {event.host: event.facts for event in self._follow(playbook) if event.facts is not None}
        if odd := [host for host in (*found, *playbook.outcome.lost) if _PATTERN.search(host)]:
            hint = "call it otherwise in the inventory, and say where it is with `ansible_host`"
            raise ConfigError(f"the host name {odd[0]!r} is a pattern or a path to Ansible", hint=hint)
        self._note_lost(playbook.outcome)
        facts: dict[str, Mapping[str, Any]] = {host: known for host, known in found.items() if host not in self._lost}
        if not facts:
            limit = f"` with `--limit {self._controller.limit}" if self._controller.limit else ""
            raise playbook.outcome.no_hosts(self._campaign.hosts + limit, self._controller.inventory)
        if loads:
            self._load_hosts = opening.load_hosts(self._campaign, facts)
        return facts

    def _with_load_hosts(self, hosts: Sequence[str]) -> list[str]:
        return list(dict.fromkeys([*hosts, *self._load_hosts.values()]))

    def _prepare(self, hosts: Sequence[str]) -> None:
        self._emit(events.StageStarted("prepare"))
        everyone = self._with_load_hosts(hosts)
        playbook = self._controller.start("prepare", self._variables(gpurun_hosts=":".join(everyone)), hosts=everyone)
        told = set()  # a step may be a role's inclusion and its first task, both under one name; a wait is told once
        for event in self._follow(playbook):
            task = event.task.rpartition(" : ")[2]
            if event.kind == "ok" and event.result.get("ended"):
                self._note_ended(event.host, event.result["ended"])
            holder = str((event.result.get("holder") or {}).get("run")) if event.kind == "retry" else ""
            if holder and (event.host, holder) not in told:
                told.add((event.host, holder))
                who = str(event.result.get("msg")).partition("\n")[0]
                self._emit(events.Notice(f"waits for up to {self._wait_s:g} s: {who}", event.host))
            if event.kind == "ok" and event.result.get("failure"):  # of one model among several
                self._emit(events.Notice(str(event.result["failure"]["message"]), event.host))
            if event.kind == "ok" and task in ("Check the flags", "Try an all-reduce"):
                self._note_refused(event.host, event.result)
            if event.kind == "start" and task in _PREPARATIONS and (event.host, task) not in told:
                told.add((event.host, task))
                self._emit(events.StageStarted("prepare", event.host, task.lower()))
        self._note_lost(playbook.outcome)
        for host, other in self._load_hosts.items():
            if other in self._lost:
                self._lost.setdefault(host, self._lost[other])
        if all(host in self._lost for host in hosts):
            message, fix = reachability.told(self._lost)
            hint = fix or "what was installed is kept and reused by the next run"
            raise HostError(f"no host could be prepared: {message}", hint=hint)

    def _note_refused(self, host: str, result: Mapping[str, Any]) -> None:
        """Say which samples preparation refuses, and what else it noticed."""
        labels = {(one["case"], one["host"]): one["label"] for one in self._store.plan["samples"]}
        for one in result.get("refused") or ():
            sample = Sample.model_validate(one)
            where = events.Where(sample.round, sample.variant, labels[sample.case, host], host, sample.case)
            self._show(events.SampleFinished(where, sample))
        for note in result.get("notes") or ():
            self._emit(events.Notice(str(note), host))

    def _note_ended(self, host: str, ended: Sequence[Mapping[str, Any]]) -> None:
        """Say what an earlier run, whose gpurun is gone, had left on a host."""
        whose = ", ".join(sorted({str(one.get("run")) for one in ended}))
        jobs = ", ".join(sorted({str(one.get("job")) for one in ended}))
        self._emit(events.Notice(f"ended what run {whose} had left here: {jobs}", host))

    def _note_lost(self, outcome: Outcome, *, unreachable_only: bool = False) -> None:
        for host, why in (outcome.unreachable if unreachable_only else outcome.lost).items():
            if host not in self._lost:
                self._lost[host] = why
                self._emit(events.HostLost(host, reachability.explain(why, host).message))

    def _clean_up(self, hosts: Sequence[str], *, purge: bool = False) -> None:
        """End whatever this run left on its hosts. `stop.yml` is the clean-up; nothing else is relied on.

        `purge` removes its job directories as well: for when all that matters in them is home.
        """
        if self._interrupts.count > 1:
            return
        self._forgive = (NotReadyError,)  # results that cannot be written must not keep us from cleaning up
        self._emit(events.StageStarted("clean-up"))
        hosts = self._with_load_hosts(hosts)
        variables = {"gpurun_run_id": self._run_id, "gpurun_hosts": ":".join(hosts), "gpurun_purge": purge}
        playbook = self._controller.start("stop", variables, hosts=hosts)
        deadline = time.monotonic() + _STOP_S
        for event in playbook.events():
            self._tick()
            if time.monotonic() > deadline or self._interrupts.count > 1:
                playbook.cancel()
            if event is not None and event.kind == "unreachable":
                why = f"{event.host} is unreachable: what runs there ends at its time limit"
                self._emit(events.Notice(why, event.host))
        for host, why in playbook.outcome.failed.items():
            self._emit(events.Notice(f"the clean-up failed: {why}", host))

    @property
    def _run_id(self) -> str:
        return self._store.manifest.run

    def _variables(self, **more: Any) -> dict[str, Any]:
        return {
            "gpurun_hosts": self._campaign.hosts,
            "gpurun_run_dir": str(self._store.directory.resolve()),
            "gpurun_run_id": self._run_id,
            "server_lock_wait_s": self._wait_s,
            **more,
        }

    def _follow(self, playbook: Playbook) -> Iterator[TaskEvent]:
        """The events of a playbook. An interrupt cancels it; it is read to its end, then that is raised."""
        for event in playbook.events():
            self._tick()
            if self._interrupts.count:
                playbook.cancel()
                if self._interrupts.count > 1:
                    break
            if event is not None:
                yield event
        if self._interrupts.count:
            raise self._interrupted()

    def _interrupted(self) -> InterruptedRunError:
        hint = "nothing was changed on a host"  # until the run has begun
        return InterruptedRunError("interrupted", terminated=self._interrupts.terminated, hint=hint)

    def _cut_off(self) -> str:
        """What a clean-up that was skipped may have left, and the command that ends it."""
        inventory = self._controller.given
        command = f"gpurun stop {self._run_id}" + (f" -i {shlex.quote(str(inventory))}" if inventory else "")
        left = [f"on {host} gpurun was {doing}" for host, doing in sorted(self._doing.items())]
        return f"clean-up was cut off; `{command}` ends what is left" + "".join(f"\n{one}" for one in left)

    def _emit(self, event: events.Event) -> None:
        now = time.time()
        if isinstance(event, events.SampleStage):
            self._doing[event.where.host] = f"{event.stage} `{event.where.variant}`"
        elif isinstance(event, events.StageStarted) and event.host:
            self._doing[event.host] = f"about to {event.detail}"
        if hasattr(self, "_store"):
            with contextlib.suppress(*self._forgive):
                self._store.append_event(events.record(event, now))
        self._show(event, now)

    def _show(self, event: events.Event, now: float | None = None) -> None:
        """To who watches; what the steps of a run tell, they have recorded themselves."""
        now = time.time() if now is None else now
        with contextlib.suppress(OSError):  # a screen that is gone (a closed pipe or terminal) does not end a run
            self._observer.on_event(event, now)

    def _tick(self) -> None:
        with contextlib.suppress(OSError):
            self._observer.tick(time.time())


def look(
    campaign: Campaign, cases: Sequence[Case], observer: events.Observer, inventory: Path | None, limit: str | None
) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """The facts of the hosts that a campaign would run on, and the names of those that tell none. Changes nothing.

    HostError where no host can be used.
    """
    with Session.on(campaign, cases, observer, inventory, limit) as session:
        return session._preflight(loads=True), sorted(session._lost)
