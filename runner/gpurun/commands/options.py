"""Options that several verbs share: one name, one meaning, one variable each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Option(click.Option):
    """Answers to a variable named after the option, whatever the parameter is called: GPURUN_BENCH_SET for `--set`.

    A repeatable one takes a value from each line of its variable: values may hold spaces.
    """

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        name = self.opts[-1].lstrip("-").replace("-", "_").upper()
        return super().resolve_envvar_value(ctx) or os.environ.get(f"{ctx.auto_envvar_prefix}_{name}")

    def value_from_envvar(self, ctx: click.Context) -> Any:
        value = self.resolve_envvar_value(ctx)
        return tuple(value.splitlines()) if value and self.multiple else super().value_from_envvar(ctx)


def _seconds(_context: click.Context, _option: click.Parameter, text: str) -> float:
    from gpurun.fields import Complaint, duration

    try:
        return duration(text)
    except Complaint as complaint:
        raise click.BadParameter(f"{complaint}: {complaint.hint}") from None


def duration(*names: str, default: str, told: str) -> Callable[[_Command], _Command]:
    """A time as the campaign writes it, such as `90s`; its value are seconds."""
    return click.option(
        *names, cls=Option, metavar="DURATION", callback=_seconds, default=default, show_default=True, help=told
    )


wait = duration("--wait", default="0s", told="wait for a host that another run holds")


def print_json(document: Any) -> None:
    """One document on stdout: keys sorted, never NaN."""
    click.echo(json.dumps(document, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False))


def _pass_on(_ctx: click.Context, _option: click.Parameter, names: tuple[str, ...]) -> None:
    """The variable is the one place where playbooks look, whichever verb runs them."""
    if names:
        os.environ[_NAMES] = " ".join(names)


_CHANGE = "change a value of the campaign, typed like the file, such as rounds=3; repeatable (in the variable: by line)"
_NAMES = "GPURUN_PASS_ENV"


class _Config(click.Option):
    def handle_parse_result(self, ctx: click.Context, opts: Any, args: list[str]) -> Any:
        if self.name not in opts and args and Path(args[0]).is_file():
            raise click.UsageError(f"a campaign is given with an option: -c {args[0]}", ctx)
        return super().handle_parse_result(ctx, opts, args)


def config_file(*, required: bool = True, told: str = "the campaign file") -> Callable[[_Command], _Command]:
    """`--config`."""
    return click.option("-c", "--config", cls=_Config, required=required, metavar="FILE", help=told)


config = config_file()
overrides = click.option("--set", "overrides", cls=Option, multiple=True, metavar="KEY=VALUE", help=_CHANGE)
variants = click.option(
    "--variant",
    "variants",
    cls=Option,
    multiple=True,
    metavar="NAME",
    help="only these variants and the baseline; repeatable",
)
force = click.option(
    "--force",
    "force",
    multiple=True,
    metavar="RULE",
    help="do not let this rule of preflight refuse a variant; repeatable, and kept with the run",
)
_pass_env = click.option(
    "--pass-env",
    multiple=True,
    metavar="NAME",
    envvar=_NAMES,
    show_envvar=True,
    expose_value=False,
    callback=_pass_on,
    help="hand this variable to Ansible, for an inventory that needs it; `*` stands for any letters; repeatable",
)
_inventory = click.option(
    "-i", "--inventory", type=click.Path(exists=True, path_type=Path), help="Ansible inventory; default: this machine"
)


def inventory(command: _Command) -> _Command:
    """`--inventory`, and what such an inventory may need of the environment."""
    return _inventory(_pass_env(command))


limit = click.option("--limit", metavar="PATTERN", help="only these hosts of the inventory")
as_json = click.option("--json", "as_json", cls=Option, is_flag=True, help="one JSON document on stdout")
color = click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)


def _store_url(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    from gpurun.fields import Complaint, store_url

    try:
        return store_url.check(value) if value else None
    except Complaint as complaint:
        raise click.BadParameter(f"{complaint}: {complaint.hint}") from None


def store(told: str) -> Callable[[_Command], _Command]:
    """`--store`, which answers to GPURUN_RESULTS_STORE whatever the verb."""
    return click.option(
        "--store", metavar="URL", envvar="GPURUN_RESULTS_STORE", show_envvar=True, callback=_store_url, help=told
    )


def fail_on(*choices: str, told: str) -> Callable[[_Command], _Command]:
    """`--fail-on`: what makes the exit code other than 0."""
    default = "failure" if "failure" in choices else "never"
    return click.option("--fail-on", type=click.Choice(choices), default=default, show_default=True, help=told)


def results(default: str | None, told: str = "the folder that holds the runs") -> Callable[[_Command], _Command]:
    """`--results`, which answers to GPURUN_RESULTS whatever the verb."""
    return click.option(
        "--results",
        type=click.Path(path_type=Path),
        metavar="DIR",
        default=default,
        show_default=bool(default),
        envvar="GPURUN_RESULTS",
        show_envvar=True,
        help=told,
    )
