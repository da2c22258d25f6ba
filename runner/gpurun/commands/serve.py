"""`gpurun serve`: start one variant and leave it up."""

from __future__ import annotations

from typing import Any

import click

from gpurun.commands import options


@click.command("serve")
@options.config
@click.option("--variant", metavar="NAME", help="which variant; default: the baseline")
@options.inventory
@options.limit
@options.overrides
@options.force
@options.wait
@options.duration("--for", "life_s", default="1h", told="the host ends it after this time")
@options.as_json
@options.color
def command(
    config: str, variant: str | None, overrides: tuple[str, ...], as_json: bool, color: Any, **asked: Any
) -> None:
    """Start the server of one variant on the hosts, wait until it is ready, and leave it up for looking around.

    It holds its hosts, so that no run disturbs it, until `gpurun stop` or its time limit ends it.
    """
    from dataclasses import asdict

    from gpurun import opening, paths
    from gpurun.samples import BASELINE
    from gpurun.serve import serve
    from gpurun.terminal import Terminal
    from gpurun.text import fill

    if not asked["life_s"]:
        raise click.BadParameter("a server needs some time, such as 1h", param_hint="--for")
    wanted = [] if variant in (None, BASELINE) else [str(variant)]
    campaign, cases = opening.read_campaign(paths.find_campaign(config), overrides=overrides, variants=wanted)
    case = next(case for case in cases if case.variant == (variant or BASELINE))
    run, served = serve(campaign, case, Terminal(color).observer(), **asked)
    hosts = (("-i", asked["inventory"]), ("--limit", asked["limit"]))
    stop = ["gpurun", "stop", run, *(str(word) for option in hosts if option[1] for word in option)]
    if as_json:
        servers = [asdict(one) for one in served]
        options.print_json({"schema": "gpurun.serve/1", "run": run, "stop": stop, "servers": servers})
        return
    click.echo(fill("serve.txt.j2", served=served, variant=case.variant, stop=stop))
