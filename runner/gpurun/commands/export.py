"""`gpurun export`: a run's samples for other programs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpurun.commands import options


@click.command("export")
@click.argument("run")
@click.option(
    "--format", "kind", cls=options.Option, required=True, type=click.Choice(["csv", "parquet", "json", "junit"]),
    help="csv and parquet: a row for each sample; json: the result document; junit: a test for each variant",
)  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="default: standard output")
@options.fail_on("failure", "regression", told="junit: regression also fails a variant whose primary metric is worse")
@options.results("results")
def command(run: str, kind: str, output: Path | None, fail_on: str, results: Path) -> None:
    """Write a run's results as CSV, Parquet, JSON or JUnit XML.

    A run is named by its id, either end of it, its directory, or `last`.
    """
    from gpurun import export
    from gpurun.errors import NotReadyError
    from gpurun.references import find

    store = find(results, run)
    if kind == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("parquet is binary: name a file with --output")
    content = export.FORMATS[kind](store.manifest, store.judged(), fail_on == "regression")
    if output is None:
        sys.stdout.buffer.write(content)
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise NotReadyError(f"cannot write the export: {error.strerror}", where=str(output)) from None
    click.echo(output)
