"""A shell text as its simple commands: enough of the shell's grammar for the lines that people launch servers with.

Quotes, line continuations, comments, redirections, `;`, `&&`, `|`, and variables that the text itself sets are
understood. What it cannot know (a variable of somebody's shell, or one that is set under a condition, `$(...)`, a
`<placeholder>`) stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
OPEN = re.compile(r"\$(\w+|\{[^}]*\}|\([^)]*\))|<[A-Za-z][\w./ -]*>|`[^`]*`")
"""What a reader has to fill in."""
_PROMPT = re.compile(r"(?m)^\s*(?:\([\w.-]+\)\s*)?(?:[\w.-]+@[\w.-]+:?\S*\s?)?\$ ")  # also (venv) user@host:~$
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\})")
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
    text = _PROMPT.sub("", text.replace("\\\r\n", "\\\n"))
    if re.search(r"(?<!\S)'\\''", text):  # cut out of a text in single quotes, as `bash -c '...'` has it
        text = text.replace("'\\''", "'")
        text = text.rstrip()[:-1] if text.count("'") % 2 and text.rstrip().endswith("'") else text
    known: dict[str, str] = {}
    found = []
    depth, nests = 0, bool(_ENDS.search(text))
    for words in _split(text):
        plain = [_filled(word, quote, known) for word, quote in words]
        depth += _DEPTH.get(plain[0], 0) if plain and nests else 0
        while plain and plain[0] in ("then", "else", "do"):
            plain = plain[1:]
        names = plain[1:] if plain and plain[0] == "export" else plain
        if names and all(ASSIGNMENT.fullmatch(name) for name in names):
            values: dict[str, str] = dict(ASSIGNMENT.fullmatch(name).groups() for name in names)  # type: ignore[union-attr, misc]
            if depth > 0:
                known = {name: value for name, value in known.items() if name not in values}
                names = [f"{name}=${name}" for name in values]
            else:
                known |= values
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
    single, skip = True, False  # skip: the word is where a redirection leads
    for token in _TOKEN.finditer(f"{text}\n;"):
        kind = str(token.lastgroup)
        if kind == "open":
            raise ValueError(f"the quote {token[0]} is not closed")
        if kind in ("single", "double", "escaped", "kept", "plain"):
            part = _ESCAPED.sub(lambda m: m[1].strip("\n"), token[kind]) if kind == "double" else token[kind]
            word = (word or "") + part
            single = single and kind == "single"
        elif kind in ("blank", "operator", "redirection"):
            words += [(word, single)] if word is not None and not skip else []
            skip = kind == "redirection" or (skip and word is None)
            word, single = None, True
            if kind == "operator":
                yield words
                words, skip = [], False
