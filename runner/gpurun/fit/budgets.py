"""Which engine's arithmetic answers a question."""

from __future__ import annotations

from collections.abc import Callable

from gpurun.errors import ODD_DATA
from gpurun.fit.others import llamacpp, trtllm, vllm
from gpurun.fit.question import Answer, Fit, Question
from gpurun.fit.sglang import sglang

_BUDGETS: dict[str, Callable[[Question], Answer]] = {each.__name__: each for each in (sglang, vllm, llamacpp, trtllm)}


def has_budget(engine: str) -> bool:
    """Whether gpurun knows how this engine divides the memory."""
    return engine in _BUDGETS


def fit(question: Question) -> Fit:
    """The arithmetic of the question's engine. KeyError where it has none (check `has_budget` first)."""
    return _BUDGETS[question.engine](question).done()


def predict(question: Question) -> Fit | None:
    """The same; None where a value of a flag or of the model is of no use for arithmetic."""
    try:
        return fit(question)
    except ODD_DATA:
        return None
