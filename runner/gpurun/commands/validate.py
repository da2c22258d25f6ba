"""`gpurun validate`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpurun.cases import Case, read_campaign
from gpurun.commands import options
from gpurun.complaints import Complaints
from gpurun.errors import ConfigError, Problem
from gpurun.from_command import FILL_IN
from gpurun.paths import find_campaign
from gpurun.text import plural


@click.command("validate")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option(
    "--engine",
    "engines",
    cls=options.Option,
    multiple=True,
    metavar="NAME==VERSION",
    help="the version whose flags are checked; default: what the campaign pins, else the usual one; repeatable",
)
@options.overrides
def command(files: tuple[str, ...], engines: tuple[str, ...], overrides: tuple[str, ...]) -> None:
    """Check campaign files in every way that needs no host. All complaints come at once; nothing is touched.

    Flags are checked against the options of the engine's version, where gpurun has a list of them.
    """
    problems: list[Problem] = []
    for name in files:
        try:
            campaign, cases = read_campaign(find_campaign(name), overrides)
            for note in [*_check_flags(cases, engines), *_to_fill_in(campaign.document.text)]:
                click.echo(f"{name}: note: {note}", err=True)
        except ConfigError as error:
            problems += error.problems
        else:
            click.echo(f"{name}: campaign {campaign.name} is right, {plural(len(cases), 'case')}")
    if problems:
        raise ConfigError(problems)


def _to_fill_in(text: str) -> list[str]:
    """What `gpurun init` could not know, and nobody has said since."""
    lines = enumerate(text.splitlines(), start=1)
    return [f"line {number} is still to be filled in" for number, line in lines if FILL_IN in line.partition("#")[0]]


def _check_flags(cases: Sequence[Case], engines: Sequence[str]) -> list[str]:
    """Every case's flags against the shipped options; what is worth knowing. ConfigError where they are wrong.

    What is wrong with a variant that expects `bad_flag` is a note.
    """
    from gpurun.check_flags import check_flags, choose_catalogues

    complaints = Complaints()
    notes: dict[str, None] = {}
    chosen, said = choose_catalogues([(case.server, case.engine) for case in cases], engines)
    notes |= dict.fromkeys(said)
    for case in cases:
        for catalogue in chosen.get((case.engine.name, case.server.engine), ()):
            own = Complaints() if case.expect == "bad_flag" else complaints
            notes |= dict.fromkeys(check_flags(case.merged, case.engine, catalogue, own))
            if own is not complaints:
                notes |= {f"`{case.variant}`, as expected: {problem.message}": None for problem in own.problems}
    if complaints.problems:
        raise ConfigError(complaints.sorted())
    return list(notes)
