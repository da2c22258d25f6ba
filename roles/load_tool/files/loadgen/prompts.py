"""Prompts: the same for every variant with the same seed, different for each request, as long as was asked.

Lengths are exact where the server counts tokens: each word of a small vocabulary is counted once (in its place after
another word, where tokenizers do not merge across the space), and prompts are put together by these counts. Else one
word counts as one token; either way the server's usage tells the truth afterwards.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from loadgen.spec import Spec, SpecError

# Common English words, a single token each in the vocabularies of most language models.
_COMMON = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power
hour game line end member law car city community name president team minute idea body information back parent face
others level office door health person art war history party result change morning reason research girl guy moment air
teacher force education foot boy age policy music market sense nation plan college interest death experience effect
use class control field development role effort rate heart drug show leader light voice wife police mind price report
decision son view relationship town road arm difference value building action season society tax director position
player record paper space ground form event official matter center couple site project activity star table need court
oil situation cost industry figure street image phone data picture practice piece land product doctor wall worker news
test movie love support technology step baby computer type attention film tree source organization hair look window
culture chance north
"""
_WORDS = _COMMON.split()

_LINES = (
    "The {0} went to the {1} and asked the {2} for the {3}.",
    "The {2} said that the {3} was at the {1}.",
    "In the morning the {0} looked for the {3} in the {1}.",
    "Then the {0} and the {2} went home with the {3}.",
)
_PICKS = (
    ("farmer", "teacher", "doctor", "child", "king", "sailor", "baker", "student"),
    ("market", "school", "river", "house", "garden", "station", "church", "library"),
    ("woman", "man", "girl", "boy", "old man", "queen", "guard", "friend"),
    ("book", "key", "letter", "horse", "bread", "money", "lamp", "map"),
)


class Prompts:
    """An endless series of (prompt, output tokens). `lengths` says what the lengths rest on, for RAW."""

    def __init__(self, spec: Spec, count: Callable[[str], int] | None = None) -> None:
        """`count` is the server's token counter. Raises SpecError if the prompts' file cannot be used."""
        self._data = spec.data
        self._api = spec.api
        self._cost: dict[str, int] = {}
        self._overhead = 0
        self.lengths = "file" if spec.data.kind == "file" else "words"
        if spec.data.kind == "file":
            self._rows = _read_rows(str(spec.data.path), spec.data.output_tokens)
        elif count is not None:
            self._calibrate(count)
        least = min((self._cost.get(word, 1) for word in _WORDS), default=1)
        self._plain = [word for word in _WORDS if self._cost.get(word, 1) == least]
        self._plain_cost = least

    def series(self, warmup: int = 0) -> Iterator[tuple[str, int]]:
        """The measured prompts; with `warmup`, prompts of the same shapes that the measured series does not hold,
        so that a prefix cache is not filled with what is measured (a file has only its own: there its last ones)."""
        if self._data.kind == "file":
            at = len(self._rows) - warmup if warmup else 0
            while True:
                yield self._rows[at % len(self._rows)]
                at += 1
        rng = random.Random(f"{'warm-up' if warmup else 'measured'} {self._data.seed}")  # noqa: S311
        make = self._synthetic if self._data.kind == "synthetic" else self._story
        tokens = max(1, self._data.prompt_tokens - self._overhead)
        while True:
            yield make(rng, tokens), self._data.output_tokens

    def _synthetic(self, rng: random.Random, tokens: int) -> str:
        return " ".join(rng.choices(self._plain, k=max(1, tokens // self._plain_cost)))

    def _story(self, rng: random.Random, tokens: int) -> str:
        """A few sentences about the same four things, again and again in another order: what follows can be guessed."""
        picks = [rng.choice(options) for options in _PICKS]
        lines = [line.format(*picks) for line in _LINES]
        words: list[str] = []
        while True:
            for word in " ".join(rng.sample(lines, len(lines))).split():
                cost = self._cost.get(word, 1)
                if cost > tokens:
                    fill = tokens // self._plain_cost
                    return " ".join(words + rng.choices(self._plain, k=fill if words else max(1, fill)))
                words.append(word)
                tokens -= cost

    def _calibrate(self, count: Callable[[str], int]) -> None:
        stories = " ".join(line.format(*(" ".join(options) for options in _PICKS)) for line in _LINES)
        stories += " " + " ".join(f"{word}." for options in (_PICKS[1], _PICKS[3]) for word in options)
        vocabulary = set(_WORDS) | (set(stories.split()) if self._data.kind == "text" else set())
        one, two = count(_WORDS[0]), count(f"{_WORDS[0]} {_WORDS[0]}")
        if self._api == "completions":  # a chat template brings its own, whatever is asked for the text
            self._overhead = one - (two - one)  # a begin-of-sequence token, mostly
        for word in sorted(vocabulary):
            self._cost[word] = max(1, count(f"{_WORDS[0]} {word}") - one)
        self.lengths = "tokens"


def _read_rows(path: str, output_tokens: int) -> list[tuple[str, int]]:
    try:
        with Path(path).open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.strip()]
    except (OSError, ValueError) as error:
        raise SpecError(f"data.path: {path} cannot be read as JSON lines: {error}") from None
    if not rows:
        raise SpecError(f"data.path: {path} holds no prompts")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
            raise SpecError(f'data.path: {path}: entry {number} has no text under "prompt"')
    return [(row["prompt"], int(row.get("output_tokens") or output_tokens)) for row in rows]


def server_counter(spec: Spec) -> Callable[[str], int]:
    """Counts tokens with the server's own endpoint; llama.cpp's, vLLM's and SGLang's fields go in one body.

    The counter raises OSError when the server does not count (no such endpoint, another answer).
    """
    from http.client import HTTPConnection, HTTPException  # here, since it costs 20 ms and most runs need none

    connection = HTTPConnection(spec.host, spec.port, timeout=min(spec.timeout_s, 30))

    def count(text: str) -> int:
        body = json.dumps({"content": text, "add_special": True, "prompt": text, "model": spec.model})
        try:
            connection.request("POST", spec.root + str(spec.tokenize), body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            raw = answer.read()
            if answer.status != 200:
                raise OSError(f"{spec.tokenize} answered {answer.status}: {raw[:200]!r}")
            reply: Any = json.loads(raw)
            return int(reply["count"]) if "count" in reply else len(reply["tokens"])
        except (HTTPException, ValueError, KeyError, TypeError) as error:
            raise OSError(f"{spec.tokenize} gave no token count: {error!r}") from None

    return count
