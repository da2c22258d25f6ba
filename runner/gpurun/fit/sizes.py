"""A model's sizes from the description that gpurun_model_headers makes of its files: weights, and what a token costs.

All sizes are bytes unless a name says otherwise. `data/fit/models.yml` knows the keys of config.json.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpurun.data import table

GIB = 2**30
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_MOST_LAYERS = 10_000
_SCALE_BLOCK = 128  # values per 4-byte scale of an fp8 latent or index (SGLang memory_pool.py, vLLM fp8_ds_mla)


def knowledge(name: str) -> Any:
    """The data file of that name."""
    return table(f"fit/{name}")


@dataclass(frozen=True)
class Split:
    """Over how many GPUs a model is spread: `attention` is the group that shares the heads of one sequence."""

    tp: int = 1
    pp: int = 1
    attention: int = 1
    experts: int = 1


@dataclass(frozen=True)
class Sizes:
    """One model. `tensors` are [name, dtype, count, elements, bytes]; `config` is config.json's text part.

    `full`, `window` and `state` count the layers that keep all tokens, the last ones, a fixed state; `shared` are those
    of the first two that read what an earlier layer keeps. `strange` are words for layers that are not known.
    """

    name: str
    config: Mapping[str, Any]
    whole: Mapping[str, Any]
    tensors: Sequence[Sequence[Any]]
    full: int
    window: int
    state: int
    shared: tuple[int, int] = (0, 0)
    strange: tuple[str, ...] = ()

    def number(self, *keys: str) -> int | None:
        """The first of these keys that the config has, as a number; of one for each layer, the largest."""
        for key in keys:
            value = self.config.get(key)
            if isinstance(value, list) and value and all(isinstance(each, (int, float)) for each in value):
                value = max(value)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                return int(value)
        return None

    @property
    def context(self) -> int | None:
        """The longest sequence that the model was made for, in tokens."""
        return self.number(
            "max_position_embeddings", "max_sequence_length", "seq_length", "n_positions", "model_max_length"
        )

    @property
    def heads(self) -> int:
        return self.number(*_HEADS) or 1

    @property
    def kv_heads(self) -> int:
        if self.config.get("multi_query") and not self.config.get("new_decoder_architecture"):
            return 1  # the first Falcon and StarCoder, whose other keys mean something else
        blocks = self.config.get("block_configs")
        for block in blocks if isinstance(blocks, list) else ():
            if share := block["attention"].get("n_heads_in_group"):
                return int(self.heads // share)
        return self.number(*knowledge("models")["kv_heads"]) or self.heads

    @property
    def latent(self) -> bool:
        """Multi-head latent attention: one compressed vector for each token, the same on every GPU."""
        return bool(self.config.get("kv_lora_rank"))

    @property
    def vision(self) -> Mapping[str, Any] | None:
        found = self.whole.get("vision_config")
        return found if isinstance(found, Mapping) else None

    @property
    def unknown(self) -> str | None:
        """Why the cost of a token cannot be told, if so."""
        for key, why in knowledge("models")["unknown"].items():
            if self.config.get(key):
                return str(why)
        if not self.full + self.window + self.state:
            return "its config.json does not tell its layers"
        if self.strange:
            return f"gpurun does not know what layers of kind `{', '.join(self.strange)}` keep"
        told = self.latent or self.number(*_HEADS) is not None
        if self.full + self.window and not (told and (self.latent or all(self.head_bytes))):
            return "its config.json does not tell the width of its attention"
        return None

    @property
    def architectures(self) -> list[str]:
        return list(self.whole.get("architectures") or self.config.get("architectures") or [])

    @property
    def head_bytes(self) -> tuple[int, int]:
        """Elements of a key and of a value of one head."""
        width = (
            self.number("head_dim", "attention_head_dim", "kv_channels")
            or (self.number("hidden_size", "n_embd", "d_model") or 0) // self.heads
        )
        return width, self.number("v_head_dim") or width

    def token(self, kind: str, dtype: str, split: Split, value_dtype: str | None = None) -> float:
        """Bytes that one token takes in one layer of `kind` (full, window) on one GPU.

        Keys and values of the heads that a GPU holds; KV heads are repeated where there are more GPUs than heads.
        """
        element, bytes_of = cache_bytes(dtype, self), cache_bytes
        if self.latent:
            rank, rope = self.number("kv_lora_rank") or 0, self.number("qk_rope_head_dim") or 0
            sparse = self.number("index_head_dim")
            if sparse is None and dtype != "fp8_ds_mla":
                return element * (rank + rope)
            sparse, cell = sparse or 0, element * (rank + rope)
            if element == 1:  # the rotary part stays in 16 bits, and blocks of the rest have scales
                cell = rank + rank // _SCALE_BLOCK * 4 + rope * 2
            return cell + (sparse + sparse // _SCALE_BLOCK * 4) * self._indexed
        heads = self.kv_heads
        key, value = self.head_bytes
        if kind == "window":
            heads = self.number("swa_num_key_value_heads") or heads
            key, value = self.number("swa_head_dim") or key, self.number("swa_v_head_dim") or value
        else:
            heads, key = self.number("num_global_key_value_heads") or heads, self.number("global_head_dim") or key
            value = self.number("global_head_dim") or value
        held = max(1, heads // split.attention)
        return held * (key * element + value * (bytes_of(value_dtype, self) if value_dtype else element))

    @cached_property
    def _indexed(self) -> float:
        """The share of layers with an index of their own: others take what an earlier one has found."""
        kinds, every = self.config.get("indexer_types"), self.number("index_topk_freq") or 1
        if not isinstance(kinds, list):
            begin = self.number("index_skip_topk_offset") or 2
            kinds = ["shared" if max(layer - begin + 1, 0) % every else "full" for layer in range(self.full)]
        return kinds.count("full") / (len(kinds) or 1)

    def state_bytes(self, split: Split) -> float:
        """Bytes that one sequence takes in one layer that keeps a state: Mamba, gated or Kimi's delta net, a short
        convolution; 16 bits of the convolution and 32 of the state (SGLang configs/mamba_utils.py, vLLM
        mamba_utils.py). 0: not known."""
        if kernel := self.number("conv_L_cache"):
            return (self.number("conv_dim", "hidden_size") or 0) * (kernel - 1) * 2 / split.tp
        heads = self.number("linear_num_value_heads", "mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
        width = self.number("linear_value_head_dim", "mamba_head_dim", "mamba_d_head")
        inner = (self.number("mamba_expand") or 0) * (self.number("hidden_size") or 0)
        inner = heads * width if heads and width else self.number("mamba_d_ssm") or inner
        depth = self.number("linear_key_head_dim", "ssm_state_size", "mamba_d_state") or 0
        groups = self.number("linear_num_key_heads", "n_groups", "mamba_n_groups", "mamba_ngroups") or 1
        kernel = self.number("linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv") or 4
        groups = groups if heads else 0  # the first Mamba convolves its channels alone
        size = (inner + 2 * groups * depth) * (kernel - 1) * 2 + inner * depth * 4
        return size / split.tp if inner * depth else 0.0

    @cached_property
    def weights(self) -> int:
        """All tensors that the model itself loads."""
        return sum(row[4] for row in self.tensors if not re.search(knowledge("models")["draft"], row[0]))

    def weights_on_gpu(self, split: Split, matrix: float = 1.0, drafts: bool = False) -> float:
        """Bytes of the weights on one GPU. `matrix`: share of its size that an online quantisation leaves of a 16-bit
        matrix. `drafts`: with the layers for speculative decoding that are part of the checkpoint."""
        rules, total = knowledge("models"), 0.0
        quantized = bool(self.whole.get("quantization_config"))
        for name, dtype, _count, elements, size in self.tensors:
            if re.search(rules["draft"], name) and not drafts:
                continue
            if dtype == "F32" and not re.search(rules["replicated"], name) and not quantized:
                size = elements * 2  # engines turn it into 16 bits
            if dtype in ("BF16", "F16") and not quantized and not re.search(rules["unquantized"], name):
                size *= matrix
            total += size / self._parts(name, split, rules)
        return total / split.pp

    def _parts(self, name: str, split: Split, rules: Mapping[str, Any]) -> float:
        if re.search(rules["experts"], name):
            return split.experts
        if re.search(rules["replicated"], name):
            return 1
        if re.search(rules["key_value"], name):
            return min(self.kv_heads, split.attention)
        return split.attention if re.search(rules["attention"], name) else split.tp


def cache_bytes(dtype: str, sizes: Sizes | None = None) -> float:
    """Bytes of an element of the cache. KeyError where gpurun does not know the type."""
    if dtype == "auto" and sizes is not None:
        quantization = sizes.whole.get("quantization_config")
        if isinstance(quantization, Mapping) and (
            quantization.get("kv_cache_scheme") or str(quantization.get("kv_cache_quant_algo")).upper() == "FP8"
        ):
            dtype = "fp8"
    return float(knowledge("models")["dtypes"][dtype])


def sizes_of(description: Mapping[str, Any], name: str = "") -> Sizes:
    """The sizes of a described model. ValueError where the description is none."""
    whole, tensors = description.get("config"), description.get("tensors")
    if not isinstance(whole, Mapping) or not isinstance(tensors, Sequence):
        raise ValueError("a model's description has `config` and `tensors`")
    if description.get("format") == "gguf":
        whole = _gguf_config(whole)
    config = _text_config(whole)
    kinds = layer_kinds(config)
    known = ("full", "window", "state", "none")
    full, window, state = (sum(kind in each.split("+") for each in kinds) for kind in known[:3])
    strange = tuple(sorted({each for each in kinds if not set(each.split("+")) <= set(known)}))
    last = kinds[len(kinds) - int(config.get("num_kv_shared_layers") or 0) :]
    shared = (last.count("full"), last.count("window"))
    return Sizes(name, config, whole, tensors, full, window, state, shared, strange)


def _text_config(whole: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that the language model has: what a multimodal one says of it lies deeper, less what
    transformers would say anyway."""
    config = inner = dict(whole)
    while True:
        nested = (inner.get(key) for key in knowledge("models")["nested"])
        inner = next((dict(each) for each in nested if isinstance(each, Mapping)), {})
        if not inner:
            break
        config = {**knowledge("defaults").get(inner.get("model_type"), {}), **config, **inner}
    for key, inside in knowledge("models")["inside"].items():
        parts = config.get(key)
        if isinstance(parts, Mapping):
            config |= {name: parts[own] for name, own in inside.items() if own in parts}
    return config


def layer_kinds(config: Mapping[str, Any]) -> list[str]:
    """What each layer keeps of a sequence, as the config says it in one of the ways that models.yml lists."""
    rules = knowledge("models")
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    count = next((int(config[key]) for key in names if config.get(key)), 0)
    if count > _MOST_LAYERS:
        raise ValueError(f"{count} layers")
    pattern = None if config.get("sliding_window_pattern") else knowledge("patterns").get(config.get("model_type"))
    for said in (*(config.get(key) for key in rules["lists"]), pattern):
        if isinstance(said, (list, str)) and said:  # longer with layers for speculation, shorter where it repeats
            words = itertools.islice(itertools.cycle(said), count or len(said))
            return [str(rules["words"].get(word, word)) for word in words]
    if isinstance(blocks := config.get("block_configs"), list):
        return ["none" if block["attention"].get("no_op") else "full" for block in blocks]
    for key in rules["full_flags"]:
        if isinstance(config.get(key), list):
            return ["full" if flag == 1 else "state" for flag in config[key]]
    full = next((config[key] for key in rules["full_layers"] if isinstance(config.get(key), list)), None)
    linear = config.get("linear_attn_config")
    if isinstance(linear, Mapping) and linear.get("full_attn_layers"):
        full = [number - 1 for number in linear["full_attn_layers"]]  # Kimi counts from 1
    if full is not None:
        return ["full" if number in full else "state" for number in range(count)]
    if config.get("attn_layer_period"):
        first, period = int(config.get("attn_layer_offset") or 0), int(config["attn_layer_period"])
        return ["full" if number % period == first else "state" for number in range(count)]
    for keys, other in ((rules["intervals"], "state"), (rules["window_intervals"], "window")):
        every = next((config[key] for key in keys if isinstance(config.get(key), int) and config[key] > 0), None)
        if every and (other == "state" or config.get("sliding_window")):
            return ["full" if (number + 1) % every == 0 else other for number in range(count)]
    return ["window" if config.get("sliding_window") and config.get("use_sliding_window", True) else "full"] * count


def _gguf_config(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The same words as config.json's for the keys of a GGUF file."""
    architecture = str(keys.get("general.architecture", ""))
    inner = {key.removeprefix(f"{architecture}."): value for key, value in keys.items()}
    config = {name: inner[key] for key, name in knowledge("models")["gguf"].items() if key in inner}
    if isinstance(config.get("num_key_value_heads"), list):  # one for each layer, 0 where there is no attention
        config["layer_types"] = ["full_attention" if heads else "mamba" for heads in config["num_key_value_heads"]]
    if "kv_lora_rank" not in config:
        config.pop("qk_rope_head_dim", None)
    return {"model_type": architecture, "architectures": [architecture], **config}
