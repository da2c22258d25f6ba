"""From pydantic's errors to complaints with positions, allowed names and the nearest one."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gpurun.errors import Mark, Problem
from gpurun.fields import Complaint
from gpurun.load import Document, KeyPath

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_LIMIT = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def dotted(path: Iterable[str | int]) -> str:
    """A key path as it is written for people and for `--set`."""
    return ".".join(str(part) for part in path)


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name that was most likely meant, if any is near."""
    plain = {name.replace("_", "-").lower(): name for name in names}
    close = difflib.get_close_matches(word.replace("_", "-").lower(), plain, n=1, cutoff=0.6)
    return plain[close[0]] if close else None


def in_file_order(problems: Iterable[Problem]) -> list[Problem]:
    """Sorted by position, each said once; those without a position first."""
    once: dict[tuple[str, Mark | None], Problem] = {}
    for each in problems:
        once.setdefault((each.message, each.mark), each)

    def position(problem: Problem) -> tuple[str, int, int]:
        mark = problem.mark
        return ("", 0, 0) if mark is None else (mark.file, mark.line, mark.column)

    return sorted(once.values(), key=position)


def translate(failure: ValidationError, root: type[BaseModel], document: Document) -> list[tuple[KeyPath, Problem]]:
    """Each of pydantic's errors about `document.data` as (path of what is wrong, complaint about it)."""
    found = []
    for detail in failure.errors(include_url=False):
        path: KeyPath = detail["loc"]
        is_key = bool(path) and path[-1] == "[key]"
        if is_key:
            path = path[:-1]
        error = detail.get("ctx", {}).get("error")
        if isinstance(error, Complaint) and error.at:
            path = (*path, error.at)
        found.append((path, _problem(detail, path, is_key, root, document)))
    return found


def fields_at(root: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The model that describes the mapping at `path`; None where any keys are allowed there."""
    kind = kind_at(root, path)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def kind_at(root: Any, path: KeyPath) -> Any:
    """The type that the file's format gives to the value at `path`: a model, `dict[...]`, a scalar; None if unknown."""
    kind = _bare(root)
    for part in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(part))
            kind = _bare(field.annotation) if field else None
        elif get_origin(kind) in (dict, list):
            kind = _bare(get_args(kind)[-1])
        else:
            return None
    return kind


def _bare(kind: Any) -> Any:
    """Without `Annotated` and `| None`."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif get_origin(kind) in (Union, types.UnionType):
            kind = next(part for part in get_args(kind) if part is not type(None))
        else:
            return kind


def _problem(detail: ErrorDetails, path: KeyPath, is_key: bool, root: type[BaseModel], document: Document) -> Problem:
    kind, context = detail["type"], detail.get("ctx", {})
    where = dotted(path)
    mark = document.mark(path, key=is_key or kind in ("extra_forbidden", "missing"))
    if kind == "extra_forbidden":
        return _unknown_key(path, mark, root)
    if kind == "missing":
        model = fields_at(root, path[:-1])
        about = model.model_fields[str(path[-1])].description if model else None
        place = f" in `{dotted(path[:-1])}`" if path[:-1] else ""
        return Problem(f"missing key `{path[-1]}`{place}", mark, hint=f"`{path[-1]}`: {about}" if about else None)
    if kind == "value_error":
        error = context["error"]
        hint, allowed = (error.hint, error.allowed) if isinstance(error, Complaint) else (None, ())
        near = nearest(str(detail["input"]), allowed) if allowed else None
        return Problem(f"`{where}`: {error}", mark, allowed, near, hint)
    written = document.source(path) or repr(detail["input"])
    if kind == "literal_error":
        allowed = tuple(re.findall(r"'([^']*)'", context["expected"])) or (context["expected"],)
        return Problem(f"`{where}` cannot be `{written}`", mark, allowed, nearest(str(detail["input"]), allowed))
    if kind in _LIMIT:
        key, words = _LIMIT[kind]
        return Problem(f"`{where}` must be {words} {context[key]:g}, not {written}", mark)
    if kind in ("too_short", "string_too_short"):
        return Problem(f"`{where}` must not be empty", mark)
    if kind == "string_pattern_mismatch":
        return Problem(f"`{where}` must begin with `{context['pattern'].lstrip('^')}`", mark)
    if kind in _EXPECTED:
        found = _found(detail["input"], written)
        hint = None
        if kind == "string_type" and isinstance(detail["input"], (int, float)):
            hint = f'YAML reads {written} as a number or switch; write "{written}" in quotes'
        return Problem(f"`{where}` must be {_EXPECTED[kind]}, not {found}", mark, hint=hint)
    return Problem(f"`{where}`: {detail['msg'][:1].lower()}{detail['msg'][1:]}", mark)


def _unknown_key(path: KeyPath, mark: Mark, root: type[BaseModel]) -> Problem:
    key, model = str(path[-1]), fields_at(root, path[:-1])
    allowed = tuple(model.model_fields) if model else ()
    place = f" in `{dotted(path[:-1])}`" if path[:-1] else ""
    near = nearest(key, allowed)
    hint = None
    if near is None:
        homes = [
            name
            for name in root.model_fields
            if (section := fields_at(root, (name,))) is not None and key in section.model_fields and name != path[0]
        ]
        hint = f"`{key}` belongs under `{homes[0]}`" if homes else None
    return Problem(f"unknown key `{key}`{place}", mark, allowed, near, hint)


def _found(value: object, written: str) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the switch {written}"
    if isinstance(value, (int, float)):
        return f"the number {written}"
    if isinstance(value, str):
        return f"the text {value!r}"
    return "a mapping" if isinstance(value, Mapping) else "a list"
