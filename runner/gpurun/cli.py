"""The command line. The only place that ends the process; each verb is imported when it is called."""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import io
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import click

from gpurun import __version__
from gpurun.errors import ExitCode, GpurunError, InterruptedRunError

# Names and one-liners stand here so that --help imports nothing else.
VERBS = {
    "init": "Write a commented inventory and campaign to begin with.",
    "doctor": "Check this machine and every host; each finding has a fix.",
    "provision": "Bring hosts to a working driver; plans and refuses first.",
    "bench": "Run a campaign: every variant measured, or its failure explained.",
    "plan": "Show what a campaign would do: settings, argv, order, time.",
    "fit": "Predict whether a model fits on cards, without hosts.",
    "validate": "Check campaign files; no host is touched.",
    "runs": "List, filter and show stored runs.",
    "compare": "Compare a run's variants again, or two runs.",
    "report": "Write the report of a run, or one page on several.",
    "export": "Write a run's results as CSV, Parquet, JSON or JUnit XML.",
    "explain": "Say why a server failed, from its log.",
    "serve": "Start one variant and leave it up, for looking around.",
    "stop": "End whatever a run left on the hosts.",
    "schema": "Print the JSON Schema of the campaign file.",
}


class LazyGroup(click.Group):
    """Loads `gpurun.commands.<verb>` only when that verb is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"gpurun.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(f"No such command '{args[0]}'.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "GPURUN"})
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
def gpurun() -> None:
    """Prepare GPU hosts with Ansible, and measure which LLM server settings are really faster.

    Every option of a verb can also be set by a variable: GPURUN_BENCH_INVENTORY is --inventory of bench.

    Exit codes: 0 done, 1 a case failed, 2 usage or configuration (nothing touched), 3 a host failed, 4 this machine is
    not ready, 5 nothing was measured, 6 a regression, 70 a bug in gpurun, 130/143 interrupted.
    """


def _report_bug(error: BaseException) -> str:
    """One line for the person, the rest into a file that can be pasted into an issue; returns the line."""
    with tempfile.NamedTemporaryFile("w", prefix="gpurun-bug-", suffix=".md", delete=False) as log:
        log.write(f"gpurun {__version__}, Python {sys.version}, {sys.platform}\n\n```\n")
        log.write("".join(traceback.format_exception(error)))
        log.write("```\n")
    message = f"a bug in gpurun: {type(error).__name__}: {error}"
    click.echo(f"error: {message}\n  --> {log.name}\nhint: please report it with that file", err=True)
    return message


def _of_the_machine(error: OSError) -> str | None:
    """What no call could do here, where that is why this one failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"cannot write {error.filename or 'what is to be told'}: {error.strerror}"
    try:
        os.getcwd()  # noqa: PTH109 (the call that fails)
    except OSError:
        return "the folder that gpurun was started in is gone: go to another one"
    return None


_YES = ("1", "true", "t", "yes", "y", "on")  # what click takes for a flag's yes in a variable


def _as_document(code: ExitCode, message: str, error: GpurunError | None = None) -> int:
    """With `--json`, an error is also one JSON document on stdout: a program that reads it never parses text."""
    variables = ("_".join(["GPURUN", *sys.argv[1:end], "JSON"]).upper() for end in (2, 3))
    if "--json" in sys.argv or any(os.environ.get(name, "").strip().lower() in _YES for name in variables):
        import json

        told = error.document() if error else {"code": int(code), "message": message, "hint": None, "where": None}
        document = {**((error and error.result) or {}), "error": told}
        with contextlib.suppress(OSError):  # nobody reads, or the disk is full
            click.echo(json.dumps(document, indent=2, sort_keys=True))
    return int(code)


def guarded(call: Callable[[], Any]) -> int:
    """Run `call` and turn what it raises into a message on stderr and an exit code."""
    try:
        result = call()
    except GpurunError as error:
        click.echo(error.render(), err=True)
        return _as_document(error.exit_code, error.message, error)
    except click.ClickException as error:
        error.show()
        return _as_document(ExitCode.CONFIG, error.format_message())
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return _as_document(ExitCode.INTERRUPTED, "interrupted")
    except (BrokenPipeError, SystemExit):  # `gpurun runs | head`: the reader has what it wanted; click exits then
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.DONE)
    except Exception as error:
        if isinstance(error, OSError) and (told := _of_the_machine(error)):
            click.echo(f"error: {told}", err=True)
            return _as_document(ExitCode.NOT_READY, told)
        return _as_document(ExitCode.BUG, _report_bug(error))
    return result if isinstance(result, int) else int(ExitCode.DONE)


def _terminated(*_: object) -> None:
    raise InterruptedRunError("terminated", terminated=True)


def main() -> None:
    """Entry point of the `gpurun` program. A verb returns its exit code, or None for 0."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file's name may be any bytes, a locale may lack any letter
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _terminated)  # verbs that conduct a run have a way of their own
    sys.exit(guarded(lambda: gpurun.main(prog_name="gpurun", standalone_mode=False)))
