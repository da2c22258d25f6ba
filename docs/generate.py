#!/usr/bin/env python3
"""Writes the roles' READMEs, and what the docs say of the command line, the campaign file, stored files and failures:
from the code and data themselves, the latter between `<!-- made by docs/generate.py: NAME -->` and `<!-- end -->`.

    python docs/generate.py          bring the docs up to date
    python docs/generate.py --check  exit with 1, and name what is not up to date
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from gpurun import cli
from gpurun.config import campaign_schema
from gpurun.errors import ExitCode
from gpurun.manifest import Manifest
from gpurun.report.view import failure_classes
from gpurun.samples import Sample
from gpurun.text import plural

DOCS = Path(__file__).parent
SIGNATURES = Path(inspect.getfile(cli)).parent / "data" / "signatures"
MARKED = re.compile(r"(<!-- made by docs/generate\.py: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
EXIT_CODES = {
    ExitCode.DONE: "done",
    ExitCode.CASE_FAILED: "at least one case failed, or one that was expected to fail was measured; the rest is saved",
    ExitCode.CONFIG: "usage or configuration is wrong; nothing was touched",
    ExitCode.HOST_FAILED: "a host failed or cannot be reached",
    ExitCode.NOT_READY: "this machine lacks something",
    ExitCode.NOTHING_MEASURED: "nothing was measured",
    ExitCode.REGRESSION: "the primary metric is worse, with `--fail-on regression`",
    ExitCode.BUG: "a bug in gpurun; the message names a file to report",
    ExitCode.INTERRUPTED: "interrupted, after cleaning up",
    ExitCode.TERMINATED: "terminated, after cleaning up",
}


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell(text) for text in row)} |"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def command_line() -> Iterator[str]:
    group = cli.LazyGroup()
    for verb in cli.VERBS:
        found = group.get_command(click.Context(cli.gpurun), verb)
        assert found is not None
        yield from one_command(verb, found)


def one_command(path: str, command: click.Command) -> Iterator[str]:
    prefix = "GPURUN_" + path.replace(" ", "_").upper()
    context = click.Context(command, info_name=path, auto_envvar_prefix=prefix)
    usage = " ".join(["gpurun", path, *command.collect_usage_pieces(context)])
    yield from (f"### gpurun {path}", "", "```text", usage, "```", "", inspect.cleandoc(command.help or ""), "")
    options = [one for one in command.params if isinstance(one, click.Option)]
    if options:
        yield from (*table(("option", "default", "meaning"), (option_row(one, context) for one in options)), "")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from one_command(f"{path} {name}", inner)


def option_row(option: click.Option, context: click.Context) -> tuple[str, ...]:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    kind = option.make_metavar(context) if not option.is_flag else ""
    default = option.to_info_dict().get("default")
    plain = default if isinstance(default, (str, int, float)) and not isinstance(default, bool) else ""
    return f"{names} {f'`{kind}`' if kind else ''}", f"`{plain}`" if plain != "" else "", option.help or ""


def exit_codes() -> Iterator[str]:
    yield from table(("code", "meaning"), ((str(int(code)), EXIT_CODES[code]) for code in ExitCode))


def campaign_file() -> Iterator[str]:
    yield from model_tables(campaign_schema(), "The file itself")


def stored_files() -> Iterator[str]:
    for name, model in (("sample.json", Sample), ("manifest.json", Manifest)):
        yield from model_tables(model.model_json_schema(by_alias=True), name)


def model_tables(schema: Mapping[str, Any], title: str) -> Iterator[str]:
    for name, model in ((title, schema), *schema.get("$defs", {}).items()):
        about = inspect.cleandoc(model.get("description", ""))
        yield from (f"### {name}", "", about, "") if about else (f"### {name}", "")
        required = model.get("required", ())
        keys = model.get("properties", {}).items()
        yield from table(
            ("key", "kind", "default", "meaning"),
            ((f"`{key}`", kind(one), default(one, key in required), one.get("description", "")) for key, one in keys),
        )
        yield ""


def kind(one: Mapping[str, Any]) -> str:
    if "$ref" in one:
        return str(one["$ref"]).rpartition("/")[2]
    if "const" in one:
        return f"`{one['const']}`"
    if "enum" in one:
        return ", ".join(f"`{value}`" for value in one["enum"])
    choices = one.get("anyOf") or one.get("oneOf")
    if choices:
        return " or ".join(dict.fromkeys(kind(each) for each in choices if each.get("type") != "null"))
    plain = one.get("type", "any value")
    names = {
        "object": "mapping",
        "array": "list",
        "integer": "whole number",
        "string": "text",
        "boolean": "true or false",
    }
    if isinstance(plain, list):
        return " or ".join(names.get(each, each) for each in plain if each != "null")
    inner = next(iter(one.get("patternProperties", {}).values()), None) if plain == "object" else one.get("items")
    more = f" of {kind(inner)}" if isinstance(inner, dict) and inner else ""
    return names.get(plain, plain) + more


def default(one: Mapping[str, Any], required: bool) -> str:
    if required:
        return "required"
    value = one.get("default")
    return "" if value in (None, [], {}, "") else f"`{value}`"


def failures() -> Iterator[str]:
    known = [
        one for path in sorted(SIGNATURES.glob("*.yml")) for one in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]
    for klass, told in failure_classes().items():
        yield from (f"### {klass}", "", f"- What it looks like: {told['looks']}", f"- Why: {told['why']}")
        yield from (f"- What to do: {told['do']}", "")
        mine = [one for one in known if one["class"] == klass]
        if mine:
            yield from ("<details>", f"<summary>{plural(len(mine), 'signature')}</summary>", "")
            yield from table(("signature", "phase", "advice", "source"), map(signature_row, mine))
            yield from ("", "</details>", "")


def signature_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    advice = one["advice"]
    text = advice if isinstance(advice, str) else advice["default"]
    return f"`{one['id']}`", one.get("phase") or one.get("usual") or "", text.replace("<", "&lt;"), one["source"]


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "command-line": command_line,
    "exit-codes": exit_codes,
    "campaign-file": campaign_file,
    "stored-files": stored_files,
    "failures": failures,
}


def fresh(text: str) -> str:
    """A document with its made parts made anew."""
    return MARKED.sub(lambda m: m[1] + "\n".join(PARTS[m[2]]()).rstrip() + "\n" + m[3], text)


def role_readme(role: Path) -> str:
    """What a role is for and takes, from its argument_specs and defaults."""
    specs = yaml.safe_load((role / "meta/argument_specs.yml").read_text(encoding="utf-8"))["argument_specs"]
    given = role / "defaults/main.yml"
    defaults = yaml.safe_load(given.read_text(encoding="utf-8")) if given.exists() else {}
    lines = [f"# {role.name}", "", "Made by docs/generate.py from this role's argument_specs and defaults.", ""]
    for entry, spec in specs.items():
        lines += [f"## {entry}", "", f"{spec['short_description']}.", ""]
        about = spec.get("description", [])
        lines += [*([about] if isinstance(about, str) else about), ""]
        rows = (role_row(name, one, defaults) for name, one in spec.get("options", {}).items())
        lines += [*table(("variable", "kind", "default", "meaning"), rows), ""] if spec.get("options") else []
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def role_row(name: str, one: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[str, ...]:
    choices = " or ".join(f"`{choice}`" for choice in one.get("choices", ()))
    preset = "required" if one.get("required") else f"`{json.dumps(defaults[name])}`" if name in defaults else ""
    about = one["description"]
    return f"`{name}`", choices or one["type"], preset, about if isinstance(about, str) else " ".join(about)


def documents() -> Iterator[tuple[Path, str]]:
    """Every document that is made here, wholly or in part, and what it should be."""
    for path in sorted(DOCS.glob("*.md")):
        yield path, fresh(path.read_text(encoding="utf-8"))
    for role in sorted(DOCS.parent.glob("roles/*")):
        yield role / "README.md", role_readme(role)


def main() -> None:
    stale = []
    for path, after in documents():
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if before != after:
            stale.append(str(path.relative_to(DOCS.parent)))
            if "--check" not in sys.argv:
                path.write_text(after, encoding="utf-8")
    if "--check" in sys.argv and stale:
        sys.exit(f"not up to date: {', '.join(stale)}; run python docs/generate.py")


if __name__ == "__main__":
    main()
