"""SGLang's arithmetic: the fraction that it would choose, and what that leaves for the KV cache.

`rest = available - total * (1 - fraction)`: `total` was free before the weights, `available` is free after them.
Constants by version, and where they were read, are in data/fit/sglang.yml.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpurun.fit.question import Answer, Question, beside_gib, cache_type, overhead, weights_and_cell
from gpurun.fit.sizes import GIB, Sizes

_BALANCE = 0.9  # of the freest GPU's memory must be free on each, or SGLang refuses or warns (distributed/bootstrap.py)


def sglang(question: Question) -> Answer:
    answer, rule, sizes, split = Answer(question), question.rule, question.sizes, question.split
    gpus = question.gpus
    if min(question.free_gib, default=0) < _BALANCE * max(question.free_gib, default=0):
        answer.notes.append(
            f"free memory is unbalanced ({min(question.free_gib):.1f} to {max(question.free_gib):.1f} GiB)"
        )
        answer.values["fits"] = False
    if question.version and question.version not in [each["version"] for each in question.data["rules"]]:
        answer.notes.append(f"by the rules of SGLang {rule['version']}, the nearest version that gpurun has read")
    default = default_fraction(question)
    fraction = question.get("fraction", default)
    total = question.total_gib
    if total is None and gpus is not None:
        total = gpus.memory_mib / 1024 - overhead(question)
    answer.values.update(
        default_mem_fraction_static=default, fraction=fraction, total_gib=total, context=question.context
    )
    cell = weights_and_cell(answer, _sglang_cell)
    available = question.available_gib
    weights = answer.values.get("weights_gib")
    if available is None and total is not None and weights is not None:
        available = total - weights
        available -= beside_gib(question)
    if question.get("symm_mem"):
        answer.notes.append(f"NCCL symmetric memory takes {question.data['symm_mem_gib']:g} GiB in advance")
    if available is None or total is None or fraction is None:
        return answer
    rest = available - total * (1 - fraction)
    answer.values.update(
        available_gib=available, rest_gib=rest, min_mem_fraction_static=_least(available, total), fits=rest > 0
    )
    if cell and sizes is not None:
        pool = rest
        if sizes.state:
            share = question.get("state_ratio")
            slots = question.get("state_slots")
            state = sizes.state * sizes.state_bytes(split) / split.pp
            pool = rest - slots * state / GIB if slots else rest / (1 + share)
            if state and not slots and rest > 0:
                slots = int(rest * share / (1 + share) * GIB / state)
            answer.notes.append(f"{max(0.0, rest - pool):.1f} GiB of it are for the states of linear layers")
        tokens = int(pool * GIB) // max(1, int(cell)) if cell >= 1 else 0
        tokens = min(tokens, question.get("max_tokens") or tokens)
        tokens = max(0, tokens // question.get("page") * question.get("page"))
        answer.values.update(kv_tokens=tokens, fits=tokens > 0, running_requests=_requests(question, rule, tokens))
    if default is not None and default <= 0:
        answer.values["fits"] = False
        answer.notes.append("what SGLang reserves for such prefills and graphs is more than the card has")
    return answer


def _least(available: float, total: float) -> float | None:
    """The least fraction that leaves something for the cache, where one does."""
    least = 1 - available / total
    return max(0.0, least) if least < 1 else None


def default_fraction(question: Question) -> float | None:
    """The `--mem-fraction-static` that SGLang would choose; None for other engines.

    (memory - reserved) / memory, reserved in MiB: constant + 1.5 a prefill token + 2 a decode graph + 128 a GPU, at
    least 10 GiB on large cards, and what the version adds for drafts, prefill graphs and attention data parallelism.
    """
    if question.engine != "sglang":
        return None
    rule, split, get = question.rule, question.split, question.get
    if question.gpus is None:
        return float(rule["unknown"]["fraction"])
    memory, sizes, reserve = question.gpus.memory_mib, question.sizes, rule["reserve"]
    _, chunk, few, many = next(tier for tier in rule["tiers"] if tier[0] is None or memory < tier[0])
    chunk = get("chunk", chunk)
    graphs = get("graph_bs", many if split.tp >= 4 else few)
    if rule["prefill_graphs"]["default"] and get("graph_bs") is None and get("max_running"):
        graphs = min(graphs, get("max_running"))
    no_graphs = bool(get("no_graphs") or get("decode_backend") == "disabled")
    reserved = reserve["base"] + reserve["token"] * max(chunk if chunk > 0 else get("prefill_tokens", 16384), 2048)
    reserved += split.tp * split.pp * reserve["gpu"]
    if not (no_graphs and rule["prefill_graphs"]["default"]):
        reserved += reserve["graph"] * graphs
    if split.attention < split.tp:
        shares = split.tp // split.attention
        reserved += graphs * shares * (reserve["dp"] + (reserve["dp_large"] if graphs > 300 else 0))
    reserved += _prefill_graphs(question, rule, chunk)
    if memory > reserve["floor_above"]:
        reserved = max(reserved, reserve["floor"])
    if get("all_to_all") == "deepep" and not no_graphs:
        reserved += reserve.get("deepep", 0)
    if get("draft"):
        reserved += rule["draft_mib"].get(str(get("draft")).upper(), rule["draft_mib"]["other"])
    fraction = round((memory - reserved) / memory, 3)
    if sizes is not None and sizes.vision is not None:
        rules, vision = question.data["vision"], sizes.vision
        layers, hidden = (
            vision.get("num_hidden_layers") or rules["layers"],
            vision.get("hidden_size") or rules["hidden"],
        )
        more = layers * hidden**2 / (rules["layers"] * rules["hidden"] ** 2) - 1
        fraction *= rules["factor"] * max(rules["least"], min(rules["most"], 1 - rules["sensitivity"] * more))
    return float(fraction)


def _prefill_graphs(question: Question, rule: Mapping[str, Any], chunk: int) -> float:
    """MiB that captured prefill graphs take."""
    rules, get = rule["prefill_graphs"], question.get
    on = get("prefill_graphs") or (rules["default"] and question.split.pp == 1)
    if not on or get("no_prefill_graphs") or get("no_graphs") or get("prefill_backend") == "disabled":
        return 0.0
    latent = question.sizes is not None and question.sizes.latent
    if latent and rules["latent"]:
        return float(rules["latent"])
    largest = min(chunk, rules["latent_largest"]) if latent else chunk
    sizes = [range(first, (last or largest) + 1, step) for first, last, step in question.data["prefill_sizes"]]
    return float(rules["each"] * sum(size <= largest for each in sizes for size in each))


def _sglang_cell(question: Question, sizes: Sizes) -> float:
    """Bytes of a token on one GPU, all layers. Where window layers have a pool of their own, it has `window_ratio`
    tokens for each of the full pool, whose tokens carry that share."""
    dtype, split = cache_type(question), question.split
    full, window = sizes.token("full", dtype, split), sizes.token("window", dtype, split)
    pools = set(sizes.architectures) & set(question.data["window_architectures"]) and not question.get("one_pool")
    cell = sizes.full * full + sizes.window * window * (question.get("window_ratio") if pools and sizes.full else 1)
    if question.get("draft") and question.rule["draft_mib"].get("STANDALONE") is None:
        own = question.draft.full + question.draft.window if question.draft else None
        layers = own or question.data["draft_layers"].get(str(question.get("draft")).upper(), 0)
        cell *= 1 + layers / (sizes.full + sizes.window or 1)
    return cell / split.pp


def _requests(question: Question, rule: Mapping[str, Any], tokens: int) -> int | None:
    """How many requests SGLang runs at once, at most."""
    limits, context = rule["requests"], question.context
    if question.get("max_running"):
        return int(question.get("max_running"))
    if not context:
        return None
    most = min(max(tokens * limits["a_context"] // context, limits["least"]), limits["most"])
    return int(min(most, tokens // limits["tokens_each"]) if limits["tokens_each"] else most)
