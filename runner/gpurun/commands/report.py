"""`gpurun report`: the page and the log of stored runs, made again."""

from __future__ import annotations

from pathlib import Path

import click

from gpurun.commands import options


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@options.results("results")
@options.store("read the runs from there; a report on one is put there as well, with whatever else it lacks of it")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="write only this: .html or .md")
@click.option("--open", "show", cls=options.Option, is_flag=True, help="show the page in a browser")
def command(runs: tuple[str, ...], results: Path, store: str | None, output: Path | None, show: bool) -> None:
    """Write the report of a run, or one page on several runs that also compares them.

    A run is named by its id, either end of it, its directory, or `last`. One run's report.html and report.md go into
    its directory, a page on several into the results folder. The path is printed.
    """
    from gpurun import remote, report
    from gpurun.errors import NotReadyError
    from gpurun.report.charts import warm_up
    from gpurun.report.view import look

    if output and output.suffix not in (".html", ".md"):
        raise click.BadParameter(f"{output} is neither .html nor .md", param_hint="--output")
    found = [remote.locate(results, name, store) for name in runs]
    stores = list({one.directory.resolve(): one for one in found}.values())
    if output is None or output.suffix == ".html":
        warm_up()
    if output is None and len(stores) == 1:
        page = report.write(stores[0])
        if store:
            remote.bring_up_to_date(stores[0], store)
    else:
        page, views = output or results / "report.html", [look(store) for store in stores]
        markdown = page.suffix == ".md"
        text = "\n".join(map(report.markdown, views)) if markdown else report.page(views)
        try:
            page.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise NotReadyError(f"cannot write the report: {error.strerror}", where=str(page)) from None
    click.echo(page)
    if show:
        click.launch(page.resolve().as_uri())
