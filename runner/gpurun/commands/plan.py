"""`gpurun plan`."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gpurun.cases import read_campaign
from gpurun.commands import options
from gpurun.errors import ConfigError, ExitCode
from gpurun.facts_file import read_facts
from gpurun.paths import find_campaign
from gpurun.plan import build
from gpurun.plan_text import render_plan


def local_facts() -> dict[str, Any]:
    """What a plan without hosts is made for: this machine, as far as Python knows it, without GPUs."""
    return {
        "host": {
            "name": platform.node(),
            "hostname": platform.node(),
            "cpus": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "arch": platform.machine(),
            "kernel": platform.release(),
            "home": str(Path("~/.gpurun").expanduser()),
        },
        "gpus": [],
    }


@click.command("plan")
@options.config
@options.variants
@options.overrides
@options.force
@options.inventory
@options.limit
@click.option("--facts", type=click.Path(), help="facts of hosts as JSON, instead of an inventory")
@click.option("--save-facts", type=click.Path(path_type=Path), help="write the inventory's facts there, for --facts")
@options.as_json
def command(
    inventory: Path | None, limit: str | None, facts: str | None, save_facts: Path | None, as_json: bool, **asked: Any
) -> int:
    """Show what a campaign would do: merged settings, exact commands, order, server starts, time.

    For the hosts of an inventory, which are looked at and not changed, or those of a file of facts; by default for this
    machine as if it had no GPUs. What preflight would refuse is said, and left out of the order; as a plan is for
    looking, that is no failure. Exit code 3: a host of the inventory cannot be used.
    """
    if bool(facts) + bool(inventory) > 1:
        raise click.UsageError("--facts and --inventory are two ways to say which hosts: give one")
    if (save_facts or limit) and not inventory:
        raise click.UsageError("--save-facts and --limit go with --inventory")
    campaign, cases = read_campaign(find_campaign(asked["config"]), asked["overrides"], asked["variants"])
    known: Mapping[str, Mapping[str, Any]] = read_facts(facts) if facts else {"localhost": local_facts()}
    lost: list[str] = []
    if inventory:
        from gpurun.session import look
        from gpurun.terminal import Terminal

        known, lost = look(campaign, cases, Terminal().observer(), inventory, limit)
    if save_facts:
        try:
            save_facts.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write `{save_facts}`: {error.strerror}") from None
    plan = build(campaign, cases, known, "RUN", forced=asked["force"])
    click.echo(plan.model_dump_json(by_alias=True, indent=2) if as_json else render_plan(plan))
    return int(ExitCode.HOST_FAILED if lost else ExitCode.DONE)
