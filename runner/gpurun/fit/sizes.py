"""A model's sizes from the description that gpurun_model_headers makes of its files: weights, and what a token costs.

All sizes are bytes unless a name says otherwise. `data/fit/models.yml` knows the keys of config.json.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpurun.data import table

GIB = 2**30
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

    `full`, `window` and `state` count the layers that keep all tokens, the last ones, a fixed state.
    """

    name: str
    config: Mapping[str, Any]
    whole: Mapping[str, Any]
    tensors: Sequence[Sequence[Any]]
    full: int
    window: int
    state: int

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
        return self.number("num_attention_heads", "n_head") or 1

    @property
    def kv_heads(self) -> int:
        return self.number("num_key_value_heads", "multi_query_group_num", "num_kv_heads") or self.heads

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
        if self.full + self.window and not self.latent and not all(self.head_bytes):
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
            or (self.number("hidden_size", "n_embd") or 0) // self.heads
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
            return cell + sparse + sparse // _SCALE_BLOCK * 4
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

    def state_bytes(self, split: Split) -> float:
        """Bytes that one sequence takes in one layer that keeps a state: Mamba-2 or gated delta net, 16-bit convolution
        and 32-bit state (SGLang configs/mamba_utils.py, vLLM mamba_utils.py)."""
        value_heads = self.number("linear_num_value_heads", "mamba_num_heads", "mamba_n_heads")
        value_width = self.number("linear_value_head_dim", "mamba_head_dim", "mamba_d_head")
        depth = self.number("linear_key_head_dim", "ssm_state_size", "mamba_d_state")
        groups = self.number("linear_num_key_heads", "n_groups", "mamba_n_groups") or 1
        kernel = self.number("linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv") or 4
        if not (value_heads and value_width and depth):
            return 0.0
        inner = value_heads * value_width
        return ((inner + 2 * groups * depth) * (kernel - 1) * 2 + inner * depth * 4) / split.tp

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
    nested = (whole.get(key) for key in knowledge("models")["nested"])
    config = {**whole, **next((each for each in nested if isinstance(each, Mapping)), {})}
    kinds = layer_kinds(config)
    counts = (sum(kind in each.split("+") for each in kinds) for kind in ("full", "window", "state"))
    return Sizes(name, config, whole, tensors, *counts)


def layer_kinds(config: Mapping[str, Any]) -> list[str]:
    """What each layer keeps of a sequence, as the config says it in one of the ways that models.yml lists."""
    rules = knowledge("models")
    count = next((int(config[key]) for key in ("num_hidden_layers", "n_layer", "num_layers") if config.get(key)), 0)
    for key in rules["lists"]:
        if isinstance(config.get(key), (list, str)) and config[key]:
            return [rules["words"].get(word, "full") for word in config[key]]
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
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        if str(config.get("model_type", "")).startswith("gemma2"):  # which says so in its code only
            return ["full" if number % 2 else "window" for number in range(count)]
        return ["window"] * count
    return ["full"] * count


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
