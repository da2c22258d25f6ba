"""`gpurun validate`."""

from __future__ import annotations

import click

from gpurun.cases import read_campaign
from gpurun.commands import options
from gpurun.errors import ConfigError, Problem
from gpurun.paths import find_campaign


@click.command("validate")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@options.overrides
def command(files: tuple[str, ...], overrides: tuple[str, ...]) -> None:
    """Check campaign files in every way that needs no host. All complaints come at once; nothing is touched."""
    problems: list[Problem] = []
    for name in files:
        try:
            campaign, cases = read_campaign(find_campaign(name), overrides)
        except ConfigError as error:
            problems += error.problems
        else:
            click.echo(f"{name}: campaign {campaign.name} is right, {len(cases)} cases")
    if problems:
        raise ConfigError(problems)
