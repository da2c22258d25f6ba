"""Models for tests: config.json as published, and safetensors files that have a header and no data behind it."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def tensors(config: Mapping[str, Any], dtype: str = "BF16") -> dict[str, tuple[str, list[int]]]:
    """The tensors of a dense transformer with that config: name -> dtype, shape."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    width = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    found = {"model.embed_tokens.weight": (dtype, [vocab, hidden]), "model.norm.weight": (dtype, [hidden])}
    if not config.get("tie_word_embeddings"):
        found["lm_head.weight"] = (dtype, [vocab, hidden])
    for layer in range(config["num_hidden_layers"]):
        shapes = {
            "self_attn.q_proj": [queries, hidden],
            "self_attn.k_proj": [keys, hidden],
            "self_attn.v_proj": [keys, hidden],
            "self_attn.o_proj": [hidden, queries],
            "mlp.gate_proj": [inner, hidden],
            "mlp.up_proj": [inner, hidden],
            "mlp.down_proj": [hidden, inner],
            "input_layernorm": [hidden],
            "post_attention_layernorm": [hidden],
        }
        found |= {f"model.layers.{layer}.{name}.weight": (dtype, shape) for name, shape in shapes.items()}
    return found


def header(named: Mapping[str, tuple[str, list[int]]]) -> bytes:
    """The begin of a safetensors file with these tensors."""
    entries, at = {}, 0
    for name, (dtype, shape) in named.items():
        size = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1}[dtype]
        for length in shape:
            size *= length
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    return struct.pack("<Q", len(text)) + text


def write(folder: Path, config: Mapping[str, Any], shards: int = 1, dtype: str = "BF16") -> Path:
    """A model's folder with that config, in so many shards."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    named = tensors(config, dtype)
    if shards == 1:
        (folder / "model.safetensors").write_bytes(header(named))
        return folder
    files = {
        f"model-{n + 1:05d}-of-{shards:05d}.safetensors": dict(list(named.items())[n::shards]) for n in range(shards)
    }
    for name, part in files.items():
        (folder / name).write_bytes(header(part))
    index = {"metadata": {}, "weight_map": {tensor: name for name, part in files.items() for tensor in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def gguf(path: Path, keys: Mapping[str, Any], named: Mapping[str, int]) -> Path:
    """A GGUF file with these keys, and tensors of so many bytes (a multiple of 32)."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def value(item: Any) -> bytes:
        if isinstance(item, str):
            return struct.pack("<I", 8) + text(item)
        if isinstance(item, list):
            kind, each = (8, text) if isinstance(item[0], str) else (4, lambda number: struct.pack("<I", number))
            return struct.pack("<IIQ", 9, kind, len(item)) + b"".join(each(part) for part in item)
        return struct.pack("<If", 6, item) if isinstance(item, float) else struct.pack("<II", 4, item)

    body = b"GGUF" + struct.pack("<IQQ", 3, len(named), len(keys))
    body += b"".join(text(key) + value(item) for key, item in keys.items())
    at = 0
    for name, size in named.items():
        body += text(name) + struct.pack("<IQIQ", 1, size // 2, 1, at)
        at += size
    body += b"\0" * (-len(body) % 32) + b"\0" * at
    path.write_bytes(body)
    return path
