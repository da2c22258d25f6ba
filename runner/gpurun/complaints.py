"""What is wrong with a campaign: positions, allowed names, the nearest one. Pydantic's errors in our words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gpurun.config import keys_at
from gpurun.errors import Problem
from gpurun.fields import MESSAGES, Complaint
from gpurun.tree import KeyPath, Node

_M = TypeVar("_M", bound=BaseModel)


def dotted(path: Iterable[str | int]) -> str:
    """A key path as it is written for people and for `--set`."""
    return ".".join(str(part) for part in path)


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name that was most likely meant, if any is near."""
    plain = {name.replace("_", "-").lower(): name for name in names}
    close = difflib.get_close_matches(word.replace("_", "-").lower(), plain, n=1, cutoff=0.6)
    return plain[close[0]] if close else None


class Complaints:
    """Problems so far. `left_out` are the paths in the file whose values are left out because of one: what may only
    follow from that is not said as well. `hidden` are texts that none of them shows."""

    def __init__(self, problems: Iterable[Problem] = ()) -> None:
        self.problems = list(problems)
        self.hidden: list[str] = []
        self.left_out: list[KeyPath] = []
        self._wrong: list[KeyPath] = []

    def about(self, path: KeyPath) -> bool:
        """Whether something at, above or below `path` was left out."""
        return any(path[: len(out)] == out[: len(path)] for out in self.left_out)

    def add(
        self, message: str, node: Node, path: KeyPath = (), *, key: bool = False, word: str | None = None, **more: Any
    ) -> None:
        """Complain about what is at `path` below `node`, or about its key. `word` was given for one of `allowed`, which
        is, like `nearest` and `hint`, what Problem takes."""
        last, rest = node.nearest(path)
        if not self.about((*last.path, *rest)):
            if word is not None:
                more["nearest"] = nearest(word, more["allowed"])
            self.problems.append(Problem(message, node.mark(path, key), **more))

    def read(self, model: type[_M], node: Node, under: KeyPath = ()) -> _M | None:
        """The node as a model; None, with complaints, where it is not one. `under` is where the model has its place."""
        try:
            return model.model_validate(node.plain)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                said = self._said(detail, node, under)
                self._wrong.append(said["path"])
                self.add(node=node, **said)
        return None

    def leave_out(self, root: Node) -> Node:
        """The file without what was found to be wrong in it so far, so that more can be said about the rest."""
        for path in self._wrong:
            if not self.about(path):
                while len(path) > 1 and (above := root.at(*path[:-1])) is not None and path[-1] not in above.items():
                    path = path[:-1]
                self.left_out.append(path)
                root = root.without(path)
        return root

    def sorted(self) -> list[Problem]:
        """In the order of the file, each said once; those without a position first."""
        once = {(each.message, each.mark): each for each in map(self._veiled, reversed(self.problems))}
        return sorted(once.values(), key=lambda p: (p.mark.file, p.mark.line, p.mark.column) if p.mark else ("", 0, 0))

    def _veiled(self, problem: Problem) -> Problem:
        mark = problem.mark and replace(problem.mark, text=self._veil(problem.mark.text))
        return replace(problem, message=self._veil(problem.message), mark=mark)

    def _veil(self, text: str) -> str:
        for secret in self.hidden:
            text = text.replace(secret, "*" * len(secret))
        return text

    def _said(self, detail: ErrorDetails, node: Node, under: KeyPath) -> dict[str, Any]:
        """The arguments of `add` for one of pydantic's errors."""
        path, kind, context, given = detail["loc"], detail["type"], detail.get("ctx", {}), detail["input"]
        key, error = path[-1:] == ("[key]",), context.get("error")
        path = (path[:-1] if key else path) + ((error.at,) if isinstance(error, Complaint) and error.at else ())
        below = node.at(*path)
        words: dict[str, Any] = {
            "where": f"`{dotted(path)}`",
            "inside": f" in `{dotted(path[:-1])}`" if path[:-1] else "",
            "last": path[-1] if path else "",
            "written": below.source if below else repr(given),
        }
        words |= {"found": _found(given, words["written"]), **context}
        message = MESSAGES["errors"].get(kind, f"{{where}}: {detail['msg'][:1].lower()}{detail['msg'][1:]}")
        said = {"message": message.format(**words), "path": path, "key": key or kind in ("extra_forbidden", "missing")}
        if kind == "extra_forbidden":
            said |= _unknown((*under, *path))
        elif kind == "missing":
            about = (keys_at((*under, *path[:-1])) or {}).get(str(path[-1]))
            said["hint"] = f"`{path[-1]}`: {about}" if about else None
        elif kind.startswith(("model_", "dict_")) and (keys := keys_at((*under, *path))):
            said["hint"] = f"its keys: {', '.join(keys)}"
        elif isinstance(error, Complaint):
            said |= {"allowed": error.allowed, "word": str(given), "hint": error.hint}
        elif kind == "literal_error":
            allowed = tuple(re.findall(r"'([^']*)'", context["expected"])) or (context["expected"],)
            said |= {"allowed": allowed, "word": str(given)}
        elif kind == "string_type" and isinstance(given, (int, float)):
            said["hint"] = f'YAML reads {words["written"]} as a number or switch; write "{words["written"]}" in quotes'
        return said


def _unknown(path: KeyPath) -> dict[str, Any]:
    allowed, key, top = tuple(keys_at(path[:-1]) or ()), str(path[-1]), keys_at(()) or {}
    homes = [name for name in top if name != path[0] and key in (keys_at((name,)) or ())]
    hint = f"`{key}` belongs under `{homes[0]}`" if homes and nearest(key, allowed) is None else None
    return {"allowed": allowed, "word": key, "hint": hint}


def _found(value: object, written: str) -> str:
    if isinstance(value, (bool, int, float)):
        return f"the {'switch' if isinstance(value, bool) else 'number'} {written}"
    if isinstance(value, str):
        return f"the text {value!r}"
    return "nothing" if value is None else "a mapping" if isinstance(value, dict) else "a list"
