"""`gpurun init`: an inventory and a campaign to begin with."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from gpurun.commands import options


@click.command("init")
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--from-command",
    "shell",
    cls=options.Option,
    metavar="TEXT",
    help="write the campaign that says the same as this shell command (or YAML of a container), which launches a "
    "server; -: read standard input",
)
def command(directory: Path, shell: str | None) -> None:
    """Write a commented inventory and campaign into DIRECTORY (default: here). What is there already stays as it is."""
    import json
    import shlex
    from importlib import resources

    from gpurun.config import campaign_schema
    from gpurun.errors import ConfigError

    templates = resources.files("gpurun") / "data" / "init"
    files = {name: (templates / name).read_text(encoding="utf-8") for name in ("inventory.yml", "campaign.yml")}
    to_fill_in: list[str] = []
    if shell is not None:
        from gpurun.from_command import campaign_from

        try:
            text = (sys.stdin.buffer.read() if shell == "-" else os.fsencode(shell)).decode()
        except UnicodeDecodeError:
            raise ConfigError("the command is not UTF-8 text") from None
        files["campaign.yml"], launch = campaign_from(text)
        to_fill_in = launch.open
        if (directory / "campaign.yml").exists():
            hint = "name another folder, such as `gpurun init FOLDER --from-command ...`"
            raise ConfigError(f"{directory / 'campaign.yml'} is there already", hint=hint)
    files["campaign.schema.json"] = json.dumps(campaign_schema(), indent=2) + "\n"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            try:
                with (directory / name).open("x", encoding="utf-8") as file:
                    file.write(content)
                click.echo(f"wrote {directory / name}")
            except FileExistsError:
                click.echo(f"kept  {directory / name}, which was there already")
    except OSError as error:
        raise ConfigError(f"cannot write here: {error.strerror}", hint=f"the folder was {directory}") from None
    inventory, campaign = (shlex.quote(str(directory / name)) for name in ("inventory.yml", "campaign.yml"))
    if to_fill_in:
        click.echo(f"to fill in: {', '.join(to_fill_in)}")
    if shell is not None:
        click.echo(f"next: gpurun validate {campaign}")
        return
    click.echo(f"next: gpurun doctor -i {inventory}, then: gpurun bench -c {campaign} -i {inventory}")
