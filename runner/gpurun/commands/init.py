"""`gpurun init`: an inventory and a campaign to begin with."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("init")
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path))
def command(directory: Path) -> None:
    """Write a commented inventory and campaign into DIRECTORY (default: here). What is there already stays as it is."""
    import json
    import shlex
    from importlib import resources

    from gpurun.config import campaign_schema
    from gpurun.errors import ConfigError

    templates = resources.files("gpurun") / "data" / "init"
    files = {name: (templates / name).read_text(encoding="utf-8") for name in ("inventory.yml", "campaign.yml")}
    files["campaign.schema.json"] = json.dumps(campaign_schema(), indent=2) + "\n"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            try:
                with (directory / name).open("x", encoding="utf-8") as file:
                    file.write(text)
                click.echo(f"wrote {directory / name}")
            except FileExistsError:
                click.echo(f"kept  {directory / name}, which was there already")
    except OSError as error:
        raise ConfigError(f"cannot write here: {error.strerror}", hint=f"the folder was {directory}") from None
    inventory, campaign = (shlex.quote(str(directory / name)) for name in ("inventory.yml", "campaign.yml"))
    click.echo(f"next: gpurun doctor -i {inventory}, then: gpurun bench -c {campaign} -i {inventory}")
