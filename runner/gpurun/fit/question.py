"""What is asked and what is answered: one server on one kind of card, and what it would have there. All sizes GiB."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import Field

from gpurun.engines import load_engine
from gpurun.fit.cards import Gpus
from gpurun.fit.sizes import GIB, Sizes, Split, knowledge
from gpurun.samples import Record
from gpurun.text import numbers


class Fit(Record):
    """What a server would have on each GPU. None where a thing does not apply, or is not known (`notes` say why).

    `fraction` is the share of `total_gib` that weights and cache get; `default_mem_fraction_static` what SGLang would
    choose itself. `context` is the longest sequence that the server takes, `running_requests` how many at once.
    """

    engine: str
    rules: str | None = None
    fraction: float | None = None
    default_mem_fraction_static: float | None = None
    kv_bytes_per_token: int | None = None
    weights_gib: float | None = None
    total_gib: float | None = None
    available_gib: float | None = None
    rest_gib: float | None = None
    min_mem_fraction_static: float | None = None
    kv_tokens: int | None = None
    context: int | None = None
    running_requests: int | None = None
    fits: bool | None = None
    notes: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class Question:
    """One server. `gpus` is None on a host without; then `host_gib` is its memory. `available_gib` and `total_gib` are
    measured values that take the place of estimates."""

    engine: str
    version: str | None
    values: Mapping[str, Any]
    gpus: Gpus | None
    sizes: Sizes | None = None
    draft: Sizes | None = None
    available_gib: float | None = None
    total_gib: float | None = None
    host_gib: float | None = None
    free_gib: tuple[float, ...] = ()  # on each GPU now

    @property
    def data(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = knowledge(self.engine)
        return found

    @property
    def rule(self) -> Mapping[str, Any]:
        """The newest rules that are not newer than the version; the oldest for what came before them."""
        rules = self.data["rules"]
        version = numbers(self.version) if self.version else None
        old = [each for each in rules if version is None or numbers(each["version"]) <= version]
        return dict((old or rules[:1])[-1])

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return self.data.get("defaults", {}).get(name, default) if value is None else value

    @property
    def split(self) -> Split:
        tp, pp = int(self.get("tp", 1)), int(self.get("pp", 1))
        shares = int(self.get("attn_dp") or (self.get("dp", 1) if self.get("dp_attention") else 1))
        experts = tp * int(self.get("dp", 1)) if self.get("expert_parallel") else tp
        return Split(tp, pp, max(1, tp // max(1, shares)), experts)

    @property
    def needs_gpus(self) -> int:
        """How many GPUs the server takes."""
        copies = 1 if self.get("dp_attention") or self.engine == "llamacpp" else int(self.get("dp", 1))
        return self.split.tp * self.split.pp * copies

    @property
    def context(self) -> int | None:
        """The longest sequence, as it is given, or else as the engine has it of the model: vLLM and SGLang count what
        RoPE's factor adds, each in its own way (`rope` in their data)."""
        given = self.get("context")
        if given or self.sizes is None:
            return given or None
        own, rope, rules = self.sizes.context, self.sizes.config.get("rope_scaling"), self.data.get("rope")
        if not own or rules is None or not isinstance(rope, dict) or not rope.get("factor"):
            return own
        if any(word in str(self.sizes.config.get("model_type")) for word in rules["not_models"]):
            return own
        kind, first = rope.get("rope_type", rope.get("type")), rope.get("original_max_position_embeddings")
        if kind in rules["not"] or (first and rules["unless_first"]):
            return own
        return int((first if first and kind in rules["from_first"] else own) * rope["factor"])


@dataclass
class Answer:
    question: Question
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def done(self) -> Fit:
        sizes, measured = self.question.sizes, self.question.available_gib is not None
        if self.values.get("fits") and sizes is not None and sizes.unknown is not None and not measured:
            self.values["fits"] = None  # something is left, but one request may take more
        newest, version = load_engine(self.question.engine).default_version or "", self.question.version
        if len(self.question.data["rules"]) > 1 and version and numbers(version) > numbers(newest):
            self.notes.append(f"{version} is newer than {newest}, the newest that gpurun knows: its rules are used")
        return Fit(
            engine=self.question.engine, rules=self.question.rule["version"], notes=self.notes, **_rounded(self.values)
        )


def weights_and_cell(answer: Answer, cell_of: Callable[[Question, Sizes], float]) -> float:
    """Weights and bytes of a token into the answer; the latter returned, 0 where it is not known."""
    question, sizes = answer.question, answer.question.sizes
    if sizes is None:
        return 0.0
    matrix = question.data.get("online_quantization", {}).get(question.get("quantization"), 1.0)
    own_draft = bool(question.get("draft") or question.get("draft_config")) and question.draft is None
    wide = 2 if question.get("dtype") in ("float32", "float") and not sizes.whole.get("quantization_config") else 1
    weights = wide * sizes.weights_on_gpu(question.split, matrix, own_draft) / GIB * question.data["weights_over"]
    answer.values["weights_gib"] = weights
    if sizes.unknown is not None:
        answer.notes.append(f"the cost of a token is not known: {sizes.unknown}")
        return 0.0
    cell = cell_of(question, sizes)
    answer.values["kv_bytes_per_token"] = math.ceil(cell - 1e-9)
    return cell


def cache_type(question: Question) -> str:
    """The type of the cache's elements; left to the engine, it is the model's own."""
    given = str(question.get("kv_dtype", "auto"))
    return "float32" if given == "auto" and question.get("dtype") in ("float32", "float") else given


def beside_gib(question: Question) -> float:
    """What a server takes beside its own weights: a draft model's, and what is allocated in advance."""
    drafts = question.rule.get("draft_mib", {}).get("STANDALONE") is None  # else it is part of what is reserved
    draft = question.draft.weights_on_gpu(question.split) / GIB if question.draft is not None and drafts else 0.0
    return draft + (float(question.data["symm_mem_gib"]) if question.get("symm_mem") else 0.0)


def overhead(question: Question) -> float:
    return float(question.data["overhead_gib"]["several" if question.needs_gpus > 1 else "one"])


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """GiB to two decimals, as engines log them; fractions to three."""
    digits = {"fraction": 3, "default_mem_fraction_static": 3, "min_mem_fraction_static": 4}
    return {
        key: round(value, digits.get(key, 2)) if isinstance(value, float) else value for key, value in values.items()
    }


def changed(question: Question, **values: Any) -> Question:
    """The same question with other settings; None takes one away."""
    return replace(question, values={**question.values, **values})
