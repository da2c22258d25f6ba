"""The arithmetic of the other engines; constants are in data/fit/<engine>.yml.

vLLM: the cache gets what a share of the whole card leaves after weights and a profiled forward pass. llama.cpp
allocates the whole context at the start. TensorRT-LLM gives the cache a share of what is free after the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpurun.fit.cards import Gpus
from gpurun.fit.question import Answer, Question, beside_gib, cache_type, overhead, weights_and_cell
from gpurun.fit.sizes import GIB, Sizes, Split


def vllm(question: Question) -> Answer:
    answer, rule, data, sizes, gpus = Answer(question), question.rule, question.data, question.sizes, question.gpus
    if gpus is None:
        answer.notes.append("the host has no GPU whose memory is known")
        return answer
    total = question.total_gib or gpus.cuda_gib or gpus.memory_mib / 1024 - data["driver_gib"]
    fraction = question.get("fraction", rule["fraction"])
    answer.values.update(fraction=fraction, total_gib=total, context=question.context)
    cell = weights_and_cell(answer, _vllm_cell)
    batch, sequences = _vllm_batch(question, rule, gpus)
    answer.values["running_requests"] = sequences
    graphs = 0.0 if question.get("no_graphs") else rule["graphs_gib"]
    available = question.available_gib
    if available is None:
        if sizes is None:
            return answer
        rates, split = data["activation"], question.split
        inner, hidden = sizes.number("intermediate_size", "ffn_hidden_size") or 0, sizes.number("hidden_size") or 0
        inner = max(inner, (sizes.number("moe_intermediate_size") or 0) * (sizes.number("num_experts_per_tok") or 1))
        layer = batch * (hidden * rates["token_hidden"] + inner * rates["token_inner"] / split.tp)
        sampler = sequences * (sizes.number("vocab_size") or 0) * rates["sequence_vocab"]
        peak = max(layer, sampler + batch * hidden * rates["kept_hidden"])
        context = data["context_gib"]["several" if question.needs_gpus > 1 else "one"]
        available = total - answer.values["weights_gib"] - context - peak / GIB
        available -= beside_gib(question)
    rest = available - total * (1 - fraction) - graphs
    if question.get("kv_bytes"):
        rest = question.get("kv_bytes") / GIB
    answer.values.update(available_gib=available, rest_gib=rest, fits=rest > 0)
    if min(question.free_gib, default=total) < total * fraction:
        answer.values["fits"] = False
        free = min(question.free_gib)
        answer.notes.append(f"only {free:.2f} GiB are free, and vLLM asks for {total * fraction:.2f} GiB at the start")
        return answer
    if cell and sizes is not None:
        page = question.get("page")
        tokens = max(0, int(rest * GIB / cell) // page * page)
        wanted = question.context if question.values.get("context", 0) is not None else None
        answer.values.update(kv_tokens=tokens, fits=tokens > 0 and tokens >= (wanted or 0))
    if rest > available:
        answer.values["fits"] = False
        answer.notes.append(f"a cache of {rest:.1f} GiB is asked for, and {available:.1f} GiB are left for it")
    return answer


def _vllm_batch(question: Question, rule: Mapping[str, Any], gpus: Gpus) -> tuple[int, int]:
    """Tokens in a batch and sequences at once, as `vllm serve` chooses them by the card."""
    rules = rule["batch"]
    memory = 0.0 if any(word in gpus.name for word in rules["not"]) else gpus.memory_mib / 1024
    _, batch, sequences = next(tier for tier in rules["tiers"] if memory >= tier[0])
    if question.context and batch < question.context <= rules.get("context_to", 0):
        batch = question.context
    return int(question.get("chunk", batch)), int(question.get("max_running", sequences))


def _vllm_cell(question: Question, sizes: Sizes) -> float:
    """Bytes of a token: what one request of the longest context takes, divided by its length. Window layers keep
    their window and a batch, state layers one state."""
    dtype, split = cache_type(question), question.split
    full, window = sizes.token("full", dtype, split), sizes.token("window", dtype, split)
    length = question.context or 8192
    batch = question.get("chunk", 2048)
    kept = min(length, (sizes.number("sliding_window", "attention_chunk_size") or length) + batch)
    layers = sizes.full - sizes.shared[0]
    layers += 1 if question.get("draft_config", {}).get("method", "ngram") not in ("ngram", "suffix") else 0
    states = 1 + int(question.get("draft_config", {}).get("num_speculative_tokens", 0))  # one for each guess, too
    need = layers * full * length + (sizes.window - sizes.shared[1]) * window * kept
    need += sizes.state * sizes.state_bytes(split) * states
    return float(need / length / split.pp)


def llamacpp(question: Question) -> Answer:
    answer, sizes, data = Answer(question), question.sizes, question.data
    gpus = question.gpus
    total = question.total_gib
    if total is None:
        total = gpus.count * gpus.memory_mib / 1024 if gpus else question.host_gib
    # A number of slots divides the context evenly, in steps of 256; left to the server, or unified, they share it.
    slots = 1 if question.get("unified") else question.get("max_running") or 1
    given, each = question.values.get("context"), question.context
    if given:
        each = math.ceil(given / slots / 256) * 256
    answer.values.update(total_gib=total, context=each)
    if sizes is None:
        return answer
    held, layers = 1.0, sizes.full + sizes.window + sizes.state
    if gpus and str(question.get("gpu_layers", "")).isdigit():
        held = min(1.0, int(question.get("gpu_layers")) / (layers + 1))
    weights = sizes.weights / GIB * held
    key, value = str(question.get("key_dtype", "f16")), str(question.get("value_dtype", "f16"))
    cell = 0.0
    if sizes.unknown is None and not question.get("kv_on_host"):
        full, window = sizes.token("full", key, Split(), value), sizes.token("window", key, Split(), value)
        length = question.context or 4096
        kept = (sizes.number("sliding_window") or length) + question.get("chunk", 512)
        if question.get("window_full") or not sizes.full:  # all layers, or the file does not tell which
            kept = length
        cell = held * (sizes.full * full + sizes.window * window * min(length, kept) / length)
    answer.values.update(weights_gib=weights, kv_bytes_per_token=math.ceil(cell) or None)
    if total is None or not cell:
        answer.notes += [sizes.unknown] if sizes.unknown else []
        return answer
    overhead = data["overhead_gib"]["one"] * gpus.count if gpus else data["host_gib"]
    available = question.available_gib if question.available_gib is not None else total - weights - overhead
    wanted, room = each and each * slots, int(available * GIB / cell)
    rest = available - (wanted or 0) * cell / GIB
    shrinks = gpus is not None and question.get("shrink") == "on" and not question.values.get("context")
    answer.values.update(available_gib=available, rest_gib=rest, fits=room > 0 if shrinks else room >= (wanted or 1))
    answer.values["kv_tokens"] = min(wanted or room, max(0, room)) if shrinks else wanted or max(0, room)
    if each:
        answer.values["context"] = min(each, answer.values["kv_tokens"] // slots, sizes.context or each)
    answer.values["running_requests"] = question.get("max_running")
    return answer


def trtllm(question: Question) -> Answer:
    answer, rule = Answer(question), question.rule
    total = question.total_gib
    if total is None and question.gpus is not None:
        total = question.gpus.memory_mib / 1024 - overhead(question)
    answer.values.update(total_gib=total, fraction=question.get("fraction", rule["fraction"]), context=question.context)
    cell = weights_and_cell(answer, _vllm_cell)
    available = question.available_gib
    if available is None and total is not None and answer.values.get("weights_gib") is not None:
        available = total - answer.values["weights_gib"]
    if available is None:
        return answer
    rest = available * answer.values["fraction"]
    tokens = max(0, int(rest * GIB / cell)) if cell else None
    answer.values.update(available_gib=available, rest_gib=rest, kv_tokens=tokens, fits=rest > 0 and tokens != 0)
    answer.notes.append("activations are not counted: TensorRT-LLM measures them itself")
    return answer
