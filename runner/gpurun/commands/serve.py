"""`gpurun serve`: start one variant and leave it up."""

from __future__ import annotations

from pathlib import Path

import click

from gpurun.commands import options


@click.command("serve")
@options.config
@click.option("--variant", metavar="NAME", help="which variant; default: the baseline")
@options.inventory
@options.limit
@options.overrides
@options.force
@click.option(
    "--for",
    "life",
    cls=options.Option,
    metavar="DURATION",
    default="1h",
    show_default=True,
    help="the host ends it after this time",
)
@options.as_json
@options.color
def command(
    config: str,
    variant: str | None,
    inventory: Path | None,
    limit: str | None,
    overrides: tuple[str, ...],
    force: tuple[str, ...],
    life: str,
    as_json: bool,
    color: str,
) -> None:
    """Start the server of one variant on the hosts, wait until it is ready, and leave it up for looking around.

    It holds its hosts, so that no run disturbs it, until `gpurun stop` or its time limit ends it.
    """
    import json
    import shlex
    import time
    from dataclasses import asdict

    from gpurun import opening, paths
    from gpurun.fields import Complaint, duration
    from gpurun.samples import BASELINE
    from gpurun.serve import serve
    from gpurun.terminal import Terminal

    try:
        life_s = duration(life)
    except Complaint as complaint:
        raise click.BadParameter(f"{complaint}: {complaint.hint}", param_hint="--for") from None
    wanted = [] if variant in (None, BASELINE) else [str(variant)]
    campaign, cases = opening.read_campaign(paths.find_campaign(config), overrides=overrides, variants=wanted)
    case = next(case for case in cases if case.variant == (variant or BASELINE))
    observer = Terminal(color).observer()  # type: ignore[arg-type]
    run, served = serve(campaign, case, observer, inventory=inventory, limit=limit, life_s=life_s, force=force)
    stop = [
        "gpurun",
        "stop",
        run,
        *(["-i", str(inventory)] if inventory else []),
        *(["--limit", limit] if limit else []),
    ]
    if as_json:
        document = {"schema": "gpurun.serve/1", "run": run, "stop": stop, "servers": [asdict(one) for one in served]}
        click.echo(json.dumps(document, indent=2, sort_keys=True))
        return
    for one in served:
        click.echo(f"{one.host}: {case.variant} serves on {one.url}")
        click.echo(f"  process   {one.pid}" + (f", unit {one.unit}" if one.unit else ""))
        click.echo(f"  command   {shlex.join(one.argv)}")
        click.echo(f"  log       {one.log}")
        if one.effective:
            click.echo(f"  settings  {one.url}{one.effective}")
        if one.tunnel:
            click.echo(f"  from here {shlex.join(one.tunnel)}")
        click.echo(f"  until     {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(one.until))}")
    click.echo(f"stop with: {shlex.join(stop)}")
