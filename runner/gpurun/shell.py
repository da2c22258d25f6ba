"""A shell text as its simple commands: enough of the shell's grammar for the lines that people launch servers with.

Quotes, line continuations, comments, redirections, `;`, `&&`, `|`, and variables that the text itself sets are
understood. What it cannot know (a variable of somebody's shell, or one that is set under a condition, `$(...)`, a
`<placeholder>`) stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
OPEN = re.compile(r"\$(\w+|\{[^}]*\}|\([^)]*\))|<[A-Za-z][\w./ -]*>|`[^`]*`")
"""What a reader has to fill in."""
_PROMPT = re.compile(r"(?m)^\s*(?:\([\w.-]+\)\s*)?(?:[\w.-]+@[\w.-]+:?\S*\s?)?\$ ")  # also (venv) user@host:~$
# Before a `$` in single quotes, before one in none, between words, where quotes begin or end.
_LITERAL, _OPEN, _BREAK, _END = "\ue000", "\ue001", "\ue002", "\ue003"
_MARKS = re.compile(f"[{_LITERAL}{_OPEN}{_BREAK}{_END}]")
_VARIABLE = re.compile(rf"([{_LITERAL}{_OPEN}]?)\$(?:(\w+)|\{{(\w+)(?::?-([^}}]*))?\}})")
_ARRAY = re.compile(r"(\w+)\+?=\(")
_ALL_OF = re.compile(rf"{_END}?{_OPEN}?\$\{{(\w+)\[[@*]\]\}}{_END}?")
_TOKEN = re.compile(
    r"""(?P<continued>\\\n)
    | \'(?P<single>[^\']*)\'
    | "(?P<double>(?:\\.|[^"\\])*)"
    | \\(?P<escaped>.)
    | (?P<kept>\$\([^()]*(?:\([^()]*\)[^()]*)*\)|`[^`]*`|\$\{[^}]*\}|<[A-Za-z][\w./\ -]*>)
    | (?P<operator>&&|\|\||[;|()\n]|&(?![>&]))
    | (?P<redirection>(?:(?<![^\s;|&()<>])\d|&)?(?:>>|>&|<<<|[<>])\s*)
    | (?P<blank>[ \t]+)
    | (?P<comment>(?<![^\s;|&()])\#[^\n]*)
    | (?P<open>[\'"])
    | (?P<plain>.)""",
    re.VERBOSE | re.DOTALL,
)
_ENDS = re.compile(r"(?m)(?:^|;)\s*(?:fi|done|esac)\b")
_DEPTH = dict.fromkeys(("if", "for", "while", "until", "case"), 1) | dict.fromkeys(("fi", "done", "esac"), -1)
_ESCAPED = re.compile(r'\\(["\\$`]|\n)')  # in double quotes


def commands(text: str) -> list[list[str]]:
    """The simple commands of a text, each as its words. ValueError where a quote is not closed."""
    text = _PROMPT.sub("", _MARKS.sub("", text).replace("\r\n", "\n"))
    if re.search(r"(?<!\S)'\\''", text):  # cut out of a text in single quotes, as `bash -c '...'` has it
        text = text.replace("'\\''", "'")
        text = text.rstrip()[:-1] if text.count("'") % 2 and text.rstrip().endswith("'") else text
    known: dict[str, str] = {}
    arrays: dict[str, list[str]] = {}
    found: list[list[str]] = []
    depth, nests, tested = 0, bool(_ENDS.search(text)), False
    for words, operator in _split(text):
        plain = [each for word in words for each in _filled(word, known, arrays)]
        depth += _DEPTH.get(plain[0], 0) if plain and nests else 0
        perhaps = depth > 0 or tested
        tested = operator in ("&&", "||") and bool(plain) and (plain[-1] in ("]", "]]") or plain[0] == "test")
        while plain and plain[0] in ("then", "else", "do"):
            plain = plain[1:]
        array = _ARRAY.fullmatch(plain[0]) if plain else None
        names = plain[1:] if plain and plain[0] == "export" else plain
        if array:
            more = [f"${{{array[1]}[@]}}"] if perhaps else plain[1:]  # what is not known stays as it is written
            arrays[array[1]] = [*(arrays.get(array[1], []) if "+" in plain[0] else []), *more]
        elif names and all(ASSIGNMENT.fullmatch(name) for name in names):
            values: dict[str, str] = dict(ASSIGNMENT.fullmatch(name).groups() for name in names)  # type: ignore[union-attr, misc]
            if perhaps:
                known = {name: value for name, value in known.items() if name not in values}
                names = [f"{name}=${name}" for name in values]
            else:
                known |= values
            found.append(["env", *names]) if plain is not names else None
        elif plain:
            found.append(plain)
    return found


def _filled(word: str, known: dict[str, str], arrays: dict[str, list[str]]) -> list[str]:
    """The words that a word is with its known variables: several where one in no quotes has several."""
    every = _ALL_OF.fullmatch(word)
    if every and every[1] in arrays:
        return arrays[every[1]]
    whole = ASSIGNMENT.fullmatch(word) is not None

    def value(found: re.Match[str]) -> str:
        default = None if found[4] is None else found[4].strip("\"'")
        text = default if found[1] == _LITERAL else known.get(found[2] or found[3], default)
        if text is None or found[1] == _LITERAL:
            return found[0]
        quoted = found[1] != _OPEN or (text is default and found[4][:1] in ('"', "'"))
        return text if whole or quoted else _BREAK.join(text.split())

    text = _VARIABLE.sub(value, word)
    return (
        [_MARKS.sub("", part) for part in text.split(_BREAK)]
        if text.strip(_END) or word.strip(_END)[:1] != _OPEN
        else []
    )


def _split(text: str) -> Iterator[tuple[list[str], str]]:
    """Simple commands as words and the operator behind them; `$` is marked by its quotes. An array is one command,
    `NAME=(` and its words."""
    words: list[str] = []
    word: str | None = None
    skip = False  # the word is where a redirection leads
    for token in _TOKEN.finditer(f"{text}\n;"):
        kind = str(token.lastgroup)
        if kind == "open":
            raise ValueError(f"the quote {token[0]} is not closed")
        if kind in ("single", "double", "escaped", "kept", "plain"):
            part = _MARKED[kind](token[kind])
            word = (word or "") + (part if kind == "plain" else f"{_END}{part}{_END}")
        elif kind in ("blank", "operator", "redirection"):
            inside = bool(words) and _ARRAY.fullmatch(words[0]) is not None
            if token[0] == "(" and word and _ARRAY.fullmatch(f"{word}("):
                words, word = [f"{word}("], None
                continue
            words += [word] if word is not None and not skip else []
            skip = kind == "redirection" or (skip and word is None)
            word = None
            if kind == "operator" and not (inside and token[0] != ")"):
                yield words, token[0]
                words, skip = [], False


_MARKED: dict[str, Callable[[str], str]] = {
    "single": lambda text: text.replace("$", f"{_LITERAL}$"),
    "double": lambda text: _ESCAPED.sub(lambda m: f"{_LITERAL}$" if m[1] == "$" else m[1].strip("\n"), text),
    "escaped": lambda text: f"{_LITERAL}$" if text == "$" else text,
    "kept": lambda text: f"{_OPEN}{text}" if text.startswith("${") else text,
    "plain": lambda text: f"{_OPEN}$" if text == "$" else text,
}
"""A part of a word by how it is quoted -> the part with its marks."""
