"""A shell text as its simple commands: enough of the shell's grammar for the lines that people launch servers with.

Quotes, line continuations, comments, redirections, `;`, `&&`, `|`, and variables that the text itself sets are
understood. What it cannot know (a variable of somebody's shell, `$(...)`, a `<placeholder>`) stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
OPEN = re.compile(r"\$(\w+|\{[^}]*\}|\([^)]*\))|<[A-Za-z][\w./ -]*>|`[^`]*`")
"""What a reader has to fill in."""
_PROMPT = re.compile(r"(?m)^\s*(?:\([\w.-]+\)\s*)?(?:[\w.-]+@[\w.-]+:?\S*\s?)?\$ ")  # also (venv) user@host:~$
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\})")
_KEPT = re.compile(r"\$\([^()]*(?:\([^()]*\)[^()]*)*\)|`[^`]*`|\$\{[^}]*\}|<[A-Za-z][\w./ -]*>")
_OPERATOR = re.compile(r"&&|\|\||[;|()]|&(?![>&])|\n")
_REDIRECTION = re.compile(r"(?:\d|&)?(?:>>|>&|<<<|[<>])\s*")


def commands(text: str) -> list[list[str]]:
    """The simple commands of a text, each as its words. ValueError where a quote is not closed."""
    text = _PROMPT.sub("", text.replace("\\\r\n", "\\\n"))
    if re.search(r"(?<!\S)'\\''", text):  # cut out of a text in single quotes, as `bash -c '...'` has it
        text = text.replace("'\\''", "'")
        text = text.rstrip()[:-1] if text.count("'") % 2 and text.rstrip().endswith("'") else text
    known: dict[str, str] = {}
    found = []
    for words in _split(text):
        plain = [_filled(word, quote, known) for word, quote in words]
        names = plain[1:] if plain and plain[0] == "export" else plain
        if names and all(ASSIGNMENT.fullmatch(name) for name in names):
            known |= dict(ASSIGNMENT.fullmatch(name).groups() for name in names)  # type: ignore[union-attr, misc]
            found.append(["env", *names]) if plain is not names else None
        elif plain:
            found.append(plain)
    return found


def _filled(word: str, quote: bool, known: dict[str, str]) -> str:
    """The word with its known variables; one in single quotes stays as it is."""
    return word if quote else _VARIABLE.sub(lambda m: known.get(m[1] or m[2], m[3] if m[3] is not None else m[0]), word)


def _split(text: str) -> Iterator[list[tuple[str, bool]]]:
    """Simple commands as words and whether all of a word stood in single quotes."""
    words: list[tuple[str, bool]] = []
    word: str | None = None
    single, at, skip = True, 0, False
    while at < len(text):
        rest = text[at:]
        char = text[at]
        kept = _KEPT.match(rest)
        operator, redirection = _OPERATOR.match(rest), _REDIRECTION.match(rest)
        if char == "'":
            end = text.find("'", at + 1)
            if end < 0:
                raise ValueError("a single quote is not closed")
            word, at = (word or "") + text[at + 1 : end], end + 1
        elif char == '"':
            inside, at = _quoted(text, at + 1)
            word, single = (word or "") + inside, False
        elif rest.startswith("\\\n"):
            at += 2
        elif char == "\\" and len(rest) > 1:
            word, single, at = (word or "") + rest[1], False, at + 2
        elif kept:
            word, single, at = (word or "") + kept.group(), False, at + kept.end()
        elif char in " \t" or operator or (redirection and (word is None or char in "<>&")):
            if word is not None and not skip:
                words.append((word, single))
            skip = skip and word is None
            word, single = None, True
            if operator or char in " \t":
                at += operator.end() if operator else 1
            elif redirection:
                at, skip = at + redirection.end(), True
            if operator:
                yield words
                words, skip = [], False
        elif char == "#" and word is None:
            at = text.find("\n", at) if "\n" in rest else len(text)
        else:
            word, single, at = (word or "") + char, False, at + 1
    if word is not None and not skip:
        words.append((word, single))
    yield words


def _quoted(text: str, at: int) -> tuple[str, int]:
    """What stands in double quotes from `at` on, and where it goes on after them."""
    inside = ""
    while at < len(text) and text[at] != '"':
        if text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n"):
            inside += text[at + 1].replace("\n", "")
            at += 2
        else:
            inside += text[at]
            at += 1
    if at >= len(text):
        raise ValueError("a double quote is not closed")
    return inside, at + 1
