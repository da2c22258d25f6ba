"""`gpurun schema`."""

from __future__ import annotations

import json

import click

from gpurun.config import campaign_schema


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of the campaign file, for editors and checks in CI."""
    click.echo(json.dumps(campaign_schema(), indent=2))
