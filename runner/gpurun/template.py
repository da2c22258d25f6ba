"""Templates in a campaign: Jinja2 in a sandbox. A fact that does not exist is an error, never an empty text.

Only text with `{{` or `{%` is a template; all other text stays exactly as it is. Where `{{` itself is meant, Jinja's
own ways apply: `{{ '{{' }}` or `{% raw %}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gpurun.data import table
from gpurun.errors import ODD_DATA
from gpurun.tree import map_texts

Facts = Mapping[str, "Sequence[str] | None"]
_DATA = table("facts")
FACTS: Facts = _DATA["campaign"]
"""What a campaign's templates may use -> its attributes, where those are fixed."""
ENGINE_FACTS: Facts = {**FACTS, **_DATA["engine"]}
"""The same for the data files of engines."""
SCRIPT_FACTS: Facts = _DATA["script"]
"""The same for the arguments of a benchmark script."""
TOOL_FACTS: Facts = {**SCRIPT_FACTS, **_DATA["tool"]}
"""The same for the data files of load tools."""
MAX_BYTES = 128 * 1024 - 1  # Linux's MAX_ARG_STRLEN, less the NUL at its end: execve(2)
# Whatever a template of a campaign's can do wrong: it is the campaign's mistake, also where it would fill the memory.
_FAILURES = (jinja2.TemplateError, *ODD_DATA)


_STEPS = 20_000  # turns of loops and calls of macros in one template
_SIZE = 1 << 24  # bits of a number, or items of a sequence, that a template may compute


class TemplateError(ValueError):
    """A template that cannot be read, or that cannot be filled in from these facts."""


def is_template(text: str) -> bool:
    """Whether the text is rendered at all."""
    return "{{" in text or "{%" in text


def render(text: str, context: Mapping[str, Any]) -> str:
    """The text with its templates filled in. TemplateError says what is wrong with it."""
    if not is_template(text) and 4 * len(text) <= MAX_BYTES:
        return text
    try:
        _environment().steps = 0
        result = _compiled(text).render(context) if is_template(text) else text
    except _FAILURES as error:
        raise TemplateError(_reason(error)) from None
    if len(result) > MAX_BYTES or len(result.encode(errors="surrogatepass")) > MAX_BYTES:
        raise TemplateError(f"it gives more than {MAX_BYTES} bytes, which no program can be given as one argument")
    if "\0" in result or any("\ud800" <= char <= "\udfff" for char in result):
        raise TemplateError("it gives a NUL or half a surrogate pair, which no program can be given")
    return result


def holds(condition: str, context: Mapping[str, Any]) -> bool:
    """Whether a condition of a table is true: a template, or the expression that would be in it."""
    text = condition if is_template(condition) else f"{{{{ {condition} }}}}"
    return render(text, context).strip() not in ("", "0", "False", "None", "[]", "{}")


def render_tree(value: Any, context: Mapping[str, Any]) -> Any:
    """The same for every text inside lists and maps; keys and everything else stay as they are."""
    return map_texts(value, lambda text: render(text, context))


def unknown_facts(text: str, facts: Facts = FACTS) -> list[str]:
    """The facts that a text uses but nobody provides, such as `hst` or `host.cpu`. TemplateError if it is unreadable.

    Attributes of a GPU are not known beforehand; they are checked when the template is filled in.
    """
    if not is_template(text):
        return []
    try:
        tree = _environment().parse(text)
        used = meta.find_undeclared_variables(tree)
    except _FAILURES as error:
        raise TemplateError(_reason(error)) from None
    unknown = sorted(name for name in used if name not in facts and name != "range")
    for node in tree.find_all((nodes.Getattr, nodes.Getitem)):
        base = node.node  # type: ignore[attr-defined]
        known = facts.get(base.name) if isinstance(base, nodes.Name) else None
        attribute = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)  # type: ignore
        if known and attribute is not None and attribute not in known:
            unknown.append(f"{base.name}.{attribute}")
    return list(dict.fromkeys(unknown))


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateError):
        return (error.message or type(error).__name__).rstrip(".")
    if isinstance(error, (MemoryError, RecursionError)):
        return f"it is too {'large' if isinstance(error, MemoryError) else 'deep'} to be filled in"
    return f"{type(error).__name__}: {error}".splitlines()[0]


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox, which also ends what would not end by itself, or not while somebody waits."""

    intercepted_binops = frozenset({"*", "**", "%"})  # which are then not computed while a template is read
    steps = 0

    def step(self) -> str:
        """Counts a turn of a loop or the call of a macro."""
        self.steps += 1
        if self.steps > _STEPS:
            raise OverflowError(f"more than {_STEPS} turns of loops")
        return ""

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(one) if hasattr(one, "__len__") else one for one in (left, right)]
        if operator != "%" and all(isinstance(one, int) for one in sizes):
            numbers = all(isinstance(one, int) for one in (left, right))
            bits = [one.bit_length() for one in sizes]
            size = bits[0] * sizes[1] if operator == "**" else sum(bits) if numbers else sizes[0] * sizes[1]
            if size > _SIZE:
                raise OverflowError(f"`{operator}` would give something too large")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all((nodes.For, nodes.Macro)):
            step = nodes.Call(nodes.EnvironmentAttribute("step"), [], [], None, None, lineno=node.lineno)
            node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))  # type: ignore[attr-defined]
        tree.set_environment(self)
        return tree


@cache
def _environment() -> _Environment:
    environment = _Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    environment.globals = {"range": environment.globals["range"]}
    del environment.filters["random"]  # a plan is the same each time
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return environment


@lru_cache(maxsize=4096)
def _compiled(text: str) -> jinja2.Template:
    return _environment().from_string(text)
