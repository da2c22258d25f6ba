"""Writes a chat model of two layers with random weights, as transformers stores one: `tiny_model.py FOLDER CONTEXT`.

Runs in the engine's environment. Its tokenizer has learned one sentence, and falls back to bytes for everything else.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def tokenizer(context: int) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    bpe.train_from_iterator(["the quick brown fox jumps over the lazy dog"], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", model_max_length=context)
    fast.chat_template = TEMPLATE
    return fast


def write(folder: Path, context: int) -> None:
    words = tokenizer(context)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=context,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
    )
    torch.manual_seed(7)
    words.save_pretrained(folder)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # the weights are written for their owner alone


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
