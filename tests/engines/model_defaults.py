"""Makes defaults.yml and patterns.yml of runner/gpurun/data/fit: what transformers takes for granted of a model.

    python -m tests.engines.model_defaults

A multimodal model's config.json says of its language model only what differs from the type's defaults, and some types
have their order of layers in code alone (here as far as it repeats). Each is asked of the real class.
"""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path

from tests.engines.vllm_cpu import vllm_cpu

TARGET = Path(__file__).parents[2] / "runner/gpurun/data/fit"
# In an environment with transformers: one line of JSON.
_ASK = """
import json
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as SPEAKS
KEYS = '''num_hidden_layers hidden_size intermediate_size
num_attention_heads num_key_value_heads head_dim global_head_dim num_global_key_value_heads vocab_size
max_position_embeddings sliding_window use_sliding_window num_kv_shared_layers
kv_lora_rank qk_rope_head_dim v_head_dim attention_chunk_size'''.split()
LAYERS = 48

def layers(cls, count):
    made = cls(num_hidden_layers=count)
    return list(getattr(made, "layer_types", None) or ()) if made.num_hidden_layers == count else []

def pattern(cls):
    words = layers(cls, LAYERS)
    for length in range(1, 13):
        same = words[:length] * LAYERS
        if words and all(layers(cls, count) == same[:count] for count in (LAYERS, LAYERS - 5)):
            return words[:length] if set(words) != {"full_attention"} else None

defaults, patterns = {}, {}
for name in sorted(CONFIG_MAPPING):
    cls = CONFIG_MAPPING[name]
    if not (name in SPEAKS or name.endswith("_text")) or not isinstance(getattr(cls, "num_hidden_layers", None), int):
        continue
    own = {key: getattr(cls, key, None) for key in KEYS}
    defaults[name] = {key: value for key, value in own.items() if isinstance(value, int) and value is not False}
    try:
        patterns |= {name: told} if (told := pattern(cls)) else {}
    except Exception:  # a class that wants more than a number of layers
        pass
print(json.dumps({"defaults": defaults, "patterns": patterns}))
"""


def main() -> None:
    """See the module's docstring."""
    python = str(vllm_cpu().folder / "env/bin/python")
    done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=True)
    for name, found in json.loads(done.stdout.splitlines()[-1]).items():
        entries = {kind: f"{kind}: {json.dumps(own).replace(chr(34), '')}" for kind, own in found.items()}
        indents = {kind: " " * len(f"{kind}: {{") for kind in entries}
        lines = [
            line for kind, text in entries.items() for line in textwrap.wrap(text, 120, subsequent_indent=indents[kind])
        ]
        lines = ["# Made by tests/engines/model_defaults.py, which says what it is.", *lines]
        (TARGET / f"{name}.yml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(name, len(found), "types")


if __name__ == "__main__":
    main()
