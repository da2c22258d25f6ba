"""Prompts: the same from the same seed, none twice, as long as asked; and specs that are refused by key."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "roles/load_tool/files"))
from loadgen.prompts import Prompts
from loadgen.spec import Spec, SpecError, parse_spec
from loadgen.window import arrivals


def spec(fields: dict[str, Any] | None = None, **changes: Any) -> Spec:
    base = {
        "base_url": "http://127.0.0.1:8080",
        "api": "completions",
        "model": "m",
        "load": {"concurrency": 2},
        "requests": 4,
        "data": {"kind": "synthetic", "prompt_tokens": 20, "output_tokens": 8, "seed": 7, **(fields or {})},
    }
    return parse_spec({**base, **changes})


def take(prompts: Prompts, number: int, warmup: int = 0) -> list[str]:
    return [prompt for prompt, _ in islice(prompts.series(warmup), number)]


def letters(text: str) -> int:
    """A tokenizer of a kind: one token at the beginning, then one for each begun three letters of a word."""
    return 1 + sum(-(-len(word) // 3) for word in text.split())


@pytest.mark.parametrize("kind", ["synthetic", "text"])
@pytest.mark.parametrize("count", [None, letters])
def test_lengths_are_exact(kind: str, count: Any) -> None:
    for wanted in (1, 5, 64, 333):
        prompts = Prompts(spec({"kind": kind, "prompt_tokens": wanted}), count)
        lengths = {(count or (lambda text: len(text.split())))(prompt) for prompt in take(prompts, 20)}
        assert lengths == {max(wanted, 2) if count else wanted}


@pytest.mark.parametrize("kind", ["synthetic", "text"])
def test_the_seed_decides_and_warm_up_prompts_are_others(kind: str) -> None:
    first, again = (take(Prompts(spec({"kind": kind})), 100) for _ in range(2))
    assert first == again
    assert len(set(first)) == 100
    assert not set(first) & set(take(Prompts(spec({"kind": kind})), 100, warmup=100))
    assert first != take(Prompts(spec({"kind": kind, "seed": 8})), 100)


def test_text_repeats_itself() -> None:
    (story,) = take(Prompts(spec({"kind": "text", "prompt_tokens": 300})), 1)
    assert len(set(story.split())) < 60


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"prompt": "b", "output_tokens": 3}\n{"prompt": "c"}\n')
    prompts = Prompts(spec({"kind": "file", "path": str(path)}))
    assert list(islice(prompts.series(), 4)) == [("a", 8), ("b", 3), ("c", 8), ("a", 8)]
    assert take(prompts, 2, warmup=2) == ["b", "c"]
    path.write_text('{"question": "a"}\n')
    with pytest.raises(SpecError, match=r"data\.path: .* entry 1"):
        Prompts(spec({"kind": "file", "path": str(path)}))
    with pytest.raises(SpecError, match=r"data\.path: .* cannot be read"):
        Prompts(spec({"kind": "file", "path": str(tmp_path / "none")}))


def test_arrivals() -> None:
    poisson = list(islice(arrivals(100.0, "poisson", 7), 2000))
    assert poisson == list(islice(arrivals(100.0, "poisson", 7), 2000))
    assert poisson != list(islice(arrivals(100.0, "poisson", 8), 2000))
    assert poisson[0] == 0
    assert poisson == sorted(poisson)
    assert poisson[-1] / 1e9 == pytest.approx(20, rel=0.1)
    assert list(islice(arrivals(8.0, "constant", 7), 3)) == [0, 125_000_000, 250_000_000]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"base_url": "https://host:1"}, "base_url is https"),
        ({"base_url": "host:1"}, "base_url"),
        ({"base_url": "http://host:port"}, "base_url"),
        ({"api": "responses"}, "api must be one of chat, completions"),
        ({"model": ""}, "model"),
        ({"load": {}}, "load needs exactly one"),
        ({"load": {"concurrency": 1, "request_rate": 1}}, "load needs exactly one"),
        ({"load": {"concurrency": 0}}, "load.concurrency"),
        ({"load": {"concurrency": True}}, "load.concurrency"),
        ({"load": {"request_rate": 0}}, "load.request_rate"),
        ({"load": {"request_rate": 1, "arrival": "gamma"}}, "load.arrival"),
        ({"load": {"concurency": 1}}, "load.concurency is not known; allowed: arrival, concurrency"),
        ({"requests": None}, "requests is needed"),
        ({"requests": 1.5}, "requests"),
        ({"warmup": -1}, "warmup"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"data": {"prompt_tokens": 4}}, "data.output_tokens is needed"),
        ({"data": {"output_tokens": 4}}, "data.prompt_tokens is needed"),
        ({"data": {"kind": "file", "output_tokens": 4}}, "data.path"),
        ({"extra_body": {"stream": False}}, "extra_body.stream"),
        ({"colour": 1}, "colour is not known"),
    ],
)
def test_a_wrong_spec_is_refused_by_its_key(change: dict[str, Any], key: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(**change)
    assert str(caught.value).startswith(key)


def test_addresses() -> None:
    plain, prefixed = spec(base_url="http://[::1]:80/"), spec(base_url="http://host/proxy/v1", api="chat")
    assert (plain.host, plain.port, plain.path, plain.root) == ("::1", 80, "/v1/completions", "")
    assert (prefixed.port, prefixed.path, prefixed.root) == (80, "/proxy/v1/chat/completions", "/proxy")
    assert json.dumps(plain.source)
