"""Streamed answers, however cut and whatever the server adds to them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "roles/load_tool/files"))
from loadgen.record import _tokens
from loadgen.stream import Stream
from loadgen.wire import Exchange


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(word: str = " word", finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": word, "finish_reason": finish}])


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish}])


DONE = b"data: [DONE]\n\n"
USAGE = event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 2})


def read(*fragments: bytes, status: int = 200, broken: str | None = None) -> Stream:
    """Fragment number n arrives at n."""
    stream = Stream()
    for at, fragment in enumerate(fragments):
        stream.feed(at, fragment)
    stream.end(len(fragments), status, broken)
    return stream


def test_a_plain_stream() -> None:
    stream = read(text(), text(finish="length"), USAGE, DONE)
    assert list(stream.times) == [0, 1]
    assert stream.error is None
    assert stream.finish == "length"
    assert stream.usage == {"prompt_tokens": 3, "completion_tokens": 2}


@given(st.lists(st.integers(1, 400), max_size=20), st.booleans())
def test_cuts_and_line_ends_do_not_matter(cuts: list[int], crlf: bool) -> None:
    whole = b": hello\n\n" + text() + b"event: message\nid: 4\n" + text("ä\r") + b"\n:\n" + USAGE + DONE
    if crlf:
        whole = whole.replace(b"\n", b"\r\n")
    edges = [0, *sorted({cut for cut in cuts if cut < len(whole)}), len(whole)]
    stream = read(*(whole[start:end] for start, end in zip(edges, edges[1:], strict=False)))
    assert len(stream.times) == 2
    assert (stream.error, stream.done) == (None, True)
    assert stream.usage is not None


def test_an_event_has_the_time_of_its_end() -> None:
    whole = text()
    assert list(read(whole[:30], whole[30:], DONE).times) == [1]
    assert list(read(whole[:-1], whole[-1:], DONE).times) == [1]


def test_a_role_is_no_token_and_thinking_is_one() -> None:
    stream = read(
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(reasoning="hm"),
        delta(content="yes"),
        delta(tool_calls=[{"index": 0}]),
        delta(finish="stop"),
        DONE,
    )
    assert list(stream.times) == [1, 2, 3, 4]
    assert stream.finish == "stop"


def test_usage_in_any_place_the_last_one_counts() -> None:
    running = event(choices=[{"index": 0, "text": "a"}], usage={"prompt_tokens": 3, "completion_tokens": 1})
    last = event(choices=[{"index": 0, "text": "b"}], usage={"prompt_tokens": 3, "completion_tokens": 2})
    empty = event(choices=[{"index": 0, "text": "", "finish_reason": "stop"}], usage=None)
    assert read(running, last, empty, DONE).usage == {"prompt_tokens": 3, "completion_tokens": 2}


def test_timings_are_kept() -> None:
    timings = {"predicted_n": 9, "draft_n": 8, "draft_n_accepted": 4}
    assert read(text(), event(choices=[], timings=timings), DONE).timings == timings


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (read(text(), event(error={"message": "out of memory", "code": 500}), DONE), "out of memory"),
        (read(text(), b'error: {"message": "old"}\n\n', DONE), "error"),
        (read(event(object="error", message="older vLLM"), DONE), "older vLLM"),
        (read(text(), b"data: {broken\n\n", DONE), "not understood: {broken"),
        (read(text(), b"data: [1]\n\n", DONE), "not understood"),
        (read(text()), r"without \[DONE\] and without a finish reason"),
        (read(b'{"message": "no stream here"}'), "no stream here"),
        (read(text(), broken="the server closed the connection"), "closed the connection"),
        (read(b'{"error": {"message": "no such model"}}', status=404), "HTTP 404: .*no such model"),
        (read(event(error={"message": "too long"}), status=400), "HTTP 400: .*too long"),
        (read(status=503), "HTTP 503"),
        (read(broken="refused", status=0), "refused"),
    ],
)
def test_errors(stream: Stream, error: str) -> None:
    with pytest.raises(AssertionError, match=error):
        assert stream.error is None, stream.error


def test_the_end_of_the_input_ends_the_last_event() -> None:
    assert read(text(finish="stop").rstrip()).error is None


@pytest.mark.parametrize("count", [-5, 10**30, "8", 8.5, True, None, [1], float("nan")])
def test_a_number_that_is_none_of_tokens_does_not_count(count: object) -> None:
    stream = read(event(choices=[{"index": 0, "text": "a"}]), DONE)
    stream.usage = {"prompt_tokens": 3, "completion_tokens": count}
    assert _tokens(Exchange(0, 0, b"", stream)) == (None, 1, False)
    stream.usage = {"prompt_tokens": count, "completion_tokens": 1}
    assert _tokens(Exchange(0, 0, b"", stream)) == (None, 1, True)


def test_an_event_that_nests_without_end_fails_its_request_and_not_the_client() -> None:
    assert "not understood" in (read(text(), b"data: " + b"[" * 100_000 + b"\n\n", DONE).error or "")
