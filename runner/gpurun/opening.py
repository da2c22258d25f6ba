"""How a run begins, for the command line and the playbooks' action plugins: a campaign is read, and a run planned and
opened, or an earlier one gone on with. Nothing here talks to a host.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpurun import events, fields, remote, steps
from gpurun import secrets as secret
from gpurun.cases import Case, check
from gpurun.config import Campaign
from gpurun.errors import ConfigError, NoSuchRunError, NotReadyError
from gpurun.findings import Finding
from gpurun.load import load_file, load_text
from gpurun.manifest import Controller, Manifest
from gpurun.paths import find_campaign
from gpurun.plan import Plan, build
from gpurun.plan import load_hosts as planned_load_hosts
from gpurun.references import find
from gpurun.remote import Remote
from gpurun.steps import PASSING
from gpurun.store import RunStore, iso, new_run_id


def read_campaign(
    file: Path | str | None = None,
    *,
    text: str | None = None,
    data: Mapping[str, Any] | str | None = None,
    overrides: Sequence[str] = (),
    variants: Sequence[str] = (),
) -> tuple[Campaign, list[Case]]:
    """A campaign and its cases, from exactly one of: a file, its text, what a variable holds (text, or the mapping)."""
    given = {"gpurun_campaign_file": file, "gpurun_campaign_text": text, "gpurun_campaign": data}
    names = [name for name, value in given.items() if value]  # a survey's question that nobody answered is empty
    if len(names) != 1:
        told = f"several campaigns were given: {', '.join(names)}" if names else "no campaign was given"
        raise ConfigError(told, hint=f"set one of {', '.join(given)}")
    if file:
        document = load_file(file)
    else:
        # A mapping has lost its text; JSON is YAML, and gives complaints a position all the same.
        written = text or (data if isinstance(data, str) else json.dumps(data, indent=1))
        document = load_text(str(written), names[0])
    return check(document, overrides, variants)


def campaign_of(args: Mapping[str, Any], variables: Mapping[str, Any]) -> tuple[Campaign, list[Case]]:
    """The campaign that a task was given, by its arguments `file`, `set` and `variants` (lists, or texts of lines), or
    by the variables gpurun_campaign_text and gpurun_campaign. These are read as they were given, never as templates: a
    campaign has templates of its own."""
    lines = {
        name: value.splitlines() if isinstance(value := args.get(name) or [], str) else value
        for name in ("set", "variants")
    }
    return read_campaign(
        find_campaign(args["file"]) if args.get("file") else None,
        text=variables.get("gpurun_campaign_text"),
        data=variables.get("gpurun_campaign"),
        overrides=lines["set"],
        variants=[name.strip() for name in lines["variants"]],
    )


def load_group(campaign: Campaign) -> str:
    """The group or pattern of the hosts that send the load, where the inventory has it."""
    return campaign.load_hosts or "load_hosts"


def load_hosts(campaign: Campaign, facts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Server host -> the other host that sends its load. ConfigError where the campaign names hosts that are not there,
    or that cannot do it."""
    if campaign.load_hosts and not any("load" in known for known in facts.values()):
        message = f"the inventory has no host for `load_hosts: {campaign.load_hosts}`"
        raise ConfigError(message, hint="name a group or host that it has")
    return planned_load_hosts(facts)


def secret_values(names: Iterable[str], environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The secrets that a campaign names, from the environment (docs/reference.md). ConfigError lists those that are
    missing."""
    known = os.environ if environment is None else environment
    values = {name: secret.value(name, known) for name in names}
    missing = [name for name, value in values.items() if not value]
    if missing:
        raise ConfigError(
            f"the campaign names secrets that are not set: {', '.join(missing)}",
            hint="set them in the environment, for example with `read -rs NAME; export NAME`",
        )
    return values


def hidden(secrets: Mapping[str, str]) -> list[str]:
    """The values that are left out of whatever is written: a campaign's secrets and the store's credentials."""
    return [*secrets.values(), *filter(None, map(os.environ.get, remote.SECRETS))]


def store_url(campaign: Campaign, given: str | None = None) -> str | None:
    """Where the samples of a run are pushed to: as is `given` (by an option, or by the variable that stands for it),
    else as the campaign says."""
    try:
        return fields.store_url.check(given) if given else campaign.results.store
    except fields.Complaint as complaint:
        raise ConfigError(str(complaint), hint=complaint.hint) from None


def make_plan(
    campaign: Campaign,
    cases: Sequence[Case],
    facts: Mapping[str, Mapping[str, Any]],
    run: str | None = None,
    forced: Sequence[str] = (),
    lost: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> Plan:
    """The plan of a run on the hosts with these facts: of a new one, unless `run` names one to go on with. `forced`
    and `lost` as `build` has them."""
    return build(campaign, cases, facts, run or new_run_id(time.time()), forced, lost)


def find_earlier(
    campaign: Campaign,
    results_dir: Path,
    reference: str,
    url: str | None,
    secrets: Mapping[str, str],
    hosts: Collection[str] | None = None,
) -> RunStore:
    """The run to go on with: of the results directory, else of the results store, from there what these hosts have
    measured. NoSuchRunError where there is none, ConfigError where it is another campaign's."""
    try:
        earlier = find(results_dir, reference, hidden(secrets))
    except NoSuchRunError:
        if url is None:
            raise
        earlier = Remote(url).find(results_dir, reference, hidden(secrets), hosts)
    known = earlier.manifest
    if known.campaign != campaign.name:
        hint = f"`gpurun bench --resume {known.run}` goes on with it; without --resume, a new run of this one begins"
        raise ConfigError(f"run {known.run} is one of campaign `{known.campaign}`, not of `{campaign.name}`", hint=hint)
    return earlier


def begin(
    campaign: Campaign,
    cases: Sequence[Case],
    facts: Mapping[str, Mapping[str, Any]],
    *,
    results_dir: Path,
    controller: Controller,
    command: Sequence[str],
    secrets: Mapping[str, str],
    url: str | None,
    forced: Sequence[str] = (),
    earlier: RunStore | None = None,
    run: str | None = None,
    retry_failed: bool = False,
    lost: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> tuple[RunStore, events.RunStarted, list[events.Notice]]:
    """Plan a run and create its directory, or go on with an earlier one. `run` is the id of a new one, where several
    jobs share it; `lost` are hosts that cannot be used, with the reason and how to proceed. Returns it, and what to say
    of its beginning and of what preflight found, which is in its events already."""
    forced = list(dict.fromkeys((*(earlier.plan.get("forced", ()) if earlier else ()), *forced)))
    plan = make_plan(campaign, cases, facts, earlier.manifest.run if earlier else run, forced, lost)
    text = campaign.document.text
    kept = 0
    if earlier is None:
        store = open_run(
            plan,
            campaign_text=text,
            results_dir=results_dir,
            controller=controller,
            facts=facts,
            command=command,
            secrets=hidden(secrets),
            url=url,
        )
    else:
        store = earlier
        kept = resume_run(
            store,
            plan,
            campaign_text=text,
            controller=controller,
            retry_failed=retry_failed,
            facts=facts,
            url=url or store.manifest.store,
        )
    todo = sum(len(steps.pending(store, host)) for host in facts)
    total_s, place = plan.estimate.total_s * todo / max(1, plan.estimate.samples), str(store.directory)
    began = events.RunStarted(plan.run, plan.campaign, place, plan.rounds, todo, tuple(facts), total_s, kept)
    notices = notices_of(plan.findings)
    steps.note(store, began)
    told: list[events.Event] = [events.HostLost(host, why) for host, (why, _) in lost.items()]
    for event in [*told, *notices]:
        steps.note(store, event)
    return store, began, notices


def notices_of(findings: Sequence[Finding]) -> list[events.Notice]:
    """What to say of what preflight found: whatever is refused or forced, or is a reason to think twice."""
    told = []
    for each in findings:
        if each.severity != "note":
            who = ", ".join(each.variants)
            what = f"{who + ': ' if who else ''}{each.verb}: {each.message} ({each.rule}); {each.advice}"
            told.append(events.Notice(what, each.hosts[0] if len(each.hosts) == 1 else None))
    return told


def open_run(
    plan: Plan,
    *,
    campaign_text: str,
    results_dir: Path,
    controller: Controller,
    facts: Mapping[str, Mapping[str, Any]],
    command: Sequence[str] = (),
    secrets: Sequence[str] = (),
    url: str | None = None,
) -> RunStore:
    """Create the run's directory with manifest, campaign and plan, also in the results store at `url`, before anything
    on a host is touched. NotReadyError where they cannot be written."""
    manifest = Manifest(
        run=plan.run,
        campaign=plan.campaign,
        started_at=iso(time.time()),
        controller=controller,
        command=list(command),
        hosts={host: dict(known) for host, known in facts.items()},
        engines=dict(plan.engines),
        forced=plan.forced,
        store=url,
    )
    store = RunStore.create(results_dir, campaign_text, manifest, secrets)
    store.write_plan(plan.model_dump(mode="json", by_alias=True))
    _record_refused(store, plan)
    _first_push(store)
    return store


def resume_run(
    store: RunStore,
    plan: Plan,
    *,
    campaign_text: str,
    controller: Controller,
    retry_failed: bool = False,
    facts: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    url: str | None = None,
) -> int:
    """Go on with a run. Returns how many samples are kept: those of the same content, measured or failed for good.

    What failed for a passing cause (with `retry_failed` for any that was not expected), or was measured with other
    settings, is set aside and measured again. ConfigError where the run is still at work on this machine.
    """
    before = store.manifest
    if before.status_now == "running" and before.controller.host == controller.host:
        raise ConfigError(f"run {before.run} is still running (pid {before.controller.pid})", hint="wait for its end")
    content = {planned.id: planned.content for planned in plan.samples}
    kept = 0
    for sample in store.samples():
        # What preflight refused is looked at anew: it may be forced now, or the host may have changed.
        lost = sample.failure
        again = lost is not None and (lost.klass in PASSING or lost.phase == "preflight")
        again = again or (retry_failed and lost is not None and not lost.expected)
        if content.get(sample.id) in (sample.content, "") and not again:
            kept += 1
        elif sample.id in content:
            store.set_aside(sample)
    store.write_campaign(campaign_text)
    store.write_plan(plan.model_dump(mode="json", by_alias=True))
    _record_refused(store, plan)
    hosts = {**before.hosts, **{host: dict(known) for host, known in facts.items()}}
    store.set_status("running", controller=controller, hosts=hosts, forced=plan.forced, store=url, copy_of=None)
    _first_push(store)
    return kept


def _first_push(store: RunStore) -> None:
    """A store that takes nothing is told while nothing is lost; one that fails later never costs a measurement."""
    try:
        if url := store.manifest.store:
            Remote(url).push(store)
    except NotReadyError as error:
        store.set_status("failed", now=time.time(), exit_code=int(error.exit_code))
        error.hint = "nothing was touched on a host: mend the store's address or credentials, or go without it"
        raise


def _record_refused(store: RunStore, plan: Plan) -> None:
    """What is not tried is recorded at once; what has a sample keeps it."""
    home = {sample.id for sample in store.samples()}
    for planned in plan.samples:
        if planned.refused is not None and planned.id not in home:
            why = planned.refused
            steps.not_measured(store, planned.model_dump(), why["class"], "preflight", why["proof"], why["advice"])
