"""The memory calculator: engines' own arithmetic on worked examples, layouts of models, the words of the verdict."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import gpurun_model_headers
from tests.unit.models import LLAMA_8B, gguf, write

from gpurun.engines import load_engine
from gpurun.errors import ConfigError
from gpurun.findings import Subject
from gpurun.fit.cards import gpus_of, read_gpus
from gpurun.fit.check import check
from gpurun.fit.flags import read_flags
from gpurun.fit.question import Fit, Question
from gpurun.fit.sizes import Sizes, Split, knowledge, layer_kinds, sizes_of
from gpurun.fit.verdict import CLOSE, compared, fit, override, reported, sentence, smallest_change


def ask(engine: str, gpu: str, flags: str = "", sizes: Sizes | None = None, **more: Any) -> Question:
    name, _, version = engine.partition("==")
    settings = read_flags(flags.split(), load_engine(name).flags, knowledge(name)["flags"])
    assert not settings.problems
    return Question(name, version or None, settings.values, read_gpus(gpu), sizes, **more)


def of(config: dict[str, Any], *tensors: list[Any]) -> Sizes:
    return sizes_of({"config": config, "tensors": list(tensors)})


@pytest.fixture
def llama(tmp_path: Path) -> Sizes:
    return sizes_of(gpurun_model_headers.describe(write(tmp_path / "llama", LLAMA_8B, shards=3)))


MLA = {"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}


@pytest.mark.parametrize(
    ("gpu", "flags", "old", "new"),
    [
        ("H100", "", 0.835, 0.830),
        ("8x H100", "--tp 8", 0.818, 0.812),
        ("8x H100", "--tp 8 --speculative-algorithm EAGLE", 0.793, 0.812),
        ("8x H200", "--tp-size 8", 0.897, 0.893),
        ("RTX PRO 6000", "", 0.863, None),
        ("4x RTX PRO 6000", "--tensor-parallel-size 4", 0.854, 0.849),
        ("8x RTX PRO 6000", "--tp 8 --speculative-algorithm=EAGLE", 0.827, None),
        ("RTX 4090", "", 0.847, 0.704),
    ],
)
def test_the_fraction_that_sglang_would_choose(gpu: str, flags: str, old: float, new: float | None) -> None:
    assert fit(ask("sglang==0.5.9", gpu, flags)).default_mem_fraction_static == old
    if new is not None:
        assert fit(ask("sglang==0.5.23", gpu, flags)).default_mem_fraction_static == new


def test_a_latent_model_reserves_more_for_prefill_graphs() -> None:
    assert fit(ask("sglang==0.5.23", "8x H100", "--tp 8", of(MLA))).default_mem_fraction_static == 0.799


def test_other_settings_move_the_fraction_as_in_the_source() -> None:
    def fraction(flags: str, version: str = "0.5.23") -> float | None:
        return fit(ask(f"sglang=={version}", "8x H100", flags)).default_mem_fraction_static

    assert fraction("--tp 8 --max-running-requests 64") == round((81559 - 512 - 12288 - 128 - 1024 - 464) / 81559, 3)
    assert fraction("--tp 8 --disable-cuda-graph") == round((81559 - 512 - 12288 - 1024) / 81559, 3)
    dp = round((81559 - 512 - 12288 - 1024 - 1024 - 512 * 8 * 4.5) / 81559, 3)
    assert fraction("--tp 8 --dp 8 --enable-dp-attention", "0.5.9") == dp
    assert fraction("--tp 8 --chunked-prefill-size 2048 --cuda-graph-max-bs 8", "0.5.9") == round(
        (81559 - 10240) / 81559, 3
    )


@pytest.mark.parametrize(
    ("available", "total", "fraction", "rest", "least"),
    [
        (21.71, 94, 0.55, -20.59, 0.769),  # the campaign that began with an override nobody meant
        (21.71, 94, 0.88, 10.43, 0.769),
        (12.25, 138.1, 0.88, -4.32, 0.9113),  # SemiAnalysisAI/InferenceX#2128, and with its MTP draft
        (9.18, 138.1, 0.88, -7.39, 0.9335),
        (8.0, 78.6, 0.835, -4.97, 0.8983),  # 70B in fp8 on one H100
    ],
)
def test_rest_is_what_a_fraction_leaves(
    available: float, total: float, fraction: float, rest: float, least: float
) -> None:
    flags = f"--tp 8 --mem-fraction-static {fraction}"
    found = fit(ask("sglang==0.5.9", "8x H200", flags, available_gib=available, total_gib=total))
    assert found.rest_gib == rest
    assert found.fits is (rest > 0)
    assert found.min_mem_fraction_static == pytest.approx(least, abs=1e-4)


def test_tokens_of_llama_8b_on_one_h100(llama: Sizes) -> None:
    found = fit(ask("sglang==0.5.9", "H100", "", llama, available_gib=63.6, total_gib=78.6))
    assert found.kv_bytes_per_token == 131072
    assert found.rest_gib == 50.63
    assert found.kv_tokens == pytest.approx(414769, abs=10)
    assert found.weights_gib == pytest.approx(14.96, rel=0.01)
    assert found.running_requests == 2048


def test_vllm_needs_its_share_free_at_the_start() -> None:
    for total, fraction, free in ((22.05, 0.9, 19.77), (47.38, 0.95, 31.44), (139.72, 0.9, 7.34)):
        flags = f"--gpu-memory-utilization {fraction}"
        asked = ask("vllm==0.11.0", "A10", flags, total_gib=total, available_gib=free, free_gib=(free,))
        found = fit(asked)
        assert found.fits is False
        assert f"{free:.2f} GiB are free, and vLLM asks for {total * fraction:.2f} GiB" in found.notes[0]
    assert fit(ask("vllm", "A10", "", total_gib=22.05, available_gib=15, free_gib=(21.9,))).fits


def test_sglang_wants_the_same_free_on_every_gpu() -> None:
    found = fit(ask("sglang==0.5.9", "2x H100", "--tp 2", free_gib=(8.884, 11.902)))
    assert found.fits is False
    assert "unbalanced" in found.notes[0]
    assert fit(ask("sglang==0.5.9", "2x H100", "--tp 2", free_gib=(11.0, 11.902))).fits is None


def test_a_smaller_batch_leaves_vllm_more(llama: Sizes) -> None:
    small, large = (
        fit(ask("vllm==0.33.0", "H100", f"--max-num-seqs 16 --max-num-batched-tokens {n}", llama))
        for n in ("2k", "8224")
    )
    assert small.rest_gib is not None and large.rest_gib is not None
    assert 0.5 < small.rest_gib - large.rest_gib < 4


def test_a_large_gap_to_what_the_engine_reports_is_seen() -> None:
    log = "[TP0] max_total_num_tokens=1741, chunked_prefill_size=8192, max_running_requests=48, context_len=131072"
    gap = compared({"kv_tokens": 349377}, reported("sglang", log))
    assert gap["kv_tokens"]["reported"] == 1741
    assert gap["kv_tokens"]["error"] > CLOSE


@pytest.mark.parametrize(
    ("config", "flags", "each"),
    [
        (LLAMA_8B, "", 131072),
        (LLAMA_8B, "--kv-cache-dtype fp8_e5m2", 65536),
        (LLAMA_8B, "--kv-cache-dtype fp4_e2m1", 36864),
        (LLAMA_8B, "--tp 4", 32768),
        (LLAMA_8B, "--tp 8", 16384),
        ({**LLAMA_8B, "num_key_value_heads": 2}, "--tp 8", 16384),  # repeated, not divided
        (LLAMA_8B, "--tp 8 --dp 8 --enable-dp-attention", 131072),
        (LLAMA_8B, "--pp 2", 65536),
        ({**LLAMA_8B, "quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "", 65536),
        (MLA, "", 61 * 576 * 2),
        (MLA, "--tp 8", 61 * 576 * 2),
        (MLA, "--kv-cache-dtype fp8_e4m3", 61 * 576),
        ({**MLA, "index_head_dim": 128}, "--kv-cache-dtype fp8_e4m3", 61 * (656 + 132)),
        ({**MLA, "index_head_dim": 128}, "", 61 * (1152 + 132)),
        (
            {
                **LLAMA_8B,
                "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 8,
            },
            "",
            32768,
        ),
        ({**LLAMA_8B, "hybrid_override_pattern": "M-M*" * 8}, "", 32768),
        ({**LLAMA_8B, "full_attention_interval": 4}, "", 32768),
        ({"text_config": LLAMA_8B, "vision_config": {"hidden_size": 1024}}, "", 131072),
        (
            {
                **LLAMA_8B,
                "architectures": ["GptOssForCausalLM"],
                "layer_types": ["sliding_attention", "full_attention"] * 16,
            },
            "",
            16 * 4096 + int(0.8 * 16 * 4096 + 0.5),
        ),
        ({**LLAMA_8B, "sliding_window": 4096}, "", 131072),  # SGLang keeps all tokens of such a model
        (LLAMA_8B, "--speculative-algorithm EAGLE", 131072 + 4096),
    ],
    ids=str,
)
def test_what_a_token_costs(config: dict[str, Any], flags: str, each: int) -> None:
    assert fit(ask("sglang==0.5.23", "8x H200", flags, of(config))).kv_bytes_per_token == each


# What published config.json files say of a token's cache, in the keys that matter; by hand: heads x (key + value) x
# bytes for each layer, with SGLang's ratio of 0.8 for windows that have a pool of their own, and as vLLM counts 32,768
# tokens, of which a window keeps itself and a batch of 2,048.
QWEN_NEXT = {"num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256}
QWEN_NEXT |= {"full_attention_interval": 4, "linear_num_value_heads": 32, "linear_value_head_dim": 128}
QWEN_NEXT |= {"linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_conv_kernel_dim": 4}
GEMMA_3 = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
KIMI = {"num_hidden_layers": 27, "num_attention_heads": 32, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
KIMI |= {"linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "num_heads": 32, "head_dim": 128}}
GLM_52 = {"num_hidden_layers": 78, "num_attention_heads": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
GLM_52 |= {"index_head_dim": 128, "index_topk_freq": 4, "index_skip_topk_offset": 3}
MIMO = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "head_dim": 192,
}
MIMO |= {"num_key_value_heads": 4, "v_head_dim": 128, "swa_num_key_value_heads": 8, "swa_v_head_dim": 128}
MIMO |= {"sliding_window": 128, "hybrid_layer_pattern": [0, *[1, 1, 1, 1, 0, 1] * 7, 1, 1, 1, 1, 0]}
STEP = {"architectures": ["Step3p5ForCausalLM"], "num_hidden_layers": 45, "num_attention_heads": 64, "head_dim": 128}
STEP |= {"num_attention_groups": 8, "sliding_window": 512}
STEP |= {"layer_types": ["full_attention", *["sliding_attention"] * 3] * 12}  # three more, for speculation
GEMMA_3N = {"model_type": "gemma3n_text", "num_hidden_layers": 30, "num_kv_shared_layers": 10, "sliding_window": 512}
NAS = {"num_hidden_layers": 3, "num_attention_heads": 64, "hidden_size": 8192, "num_key_value_heads": None}
NAS |= {"block_configs": [{"attention": {"no_op": no, "n_heads_in_group": None if no else 8}} for no in (0, 1, 0)]}
GDN = (32 * 128 + 2 * 16 * 128) * 3 * 2 + 32 * 128 * 128 * 4  # a state: convolution, and heads of 128 x 128
KDA = 3 * 32 * 128 * 3 * 2 + 32 * 128 * 128 * 4
KEPT = (1024 + 2048) / 32768


@pytest.mark.parametrize(
    ("config", "by_sglang", "by_vllm"),
    [
        (QWEN_NEXT, 12 * 2048, 12 * 2048 + 36 * GDN / 32768),
        ({"text_config": GEMMA_3}, 34 * 4096, 5 * 4096 + 29 * 4096 * KEPT),  # the rest is what transformers assumes
        ({"thinker_config": {"text_config": LLAMA_8B}}, 131072, 131072),
        (KIMI, 7 * 1152, 7 * 1152 + 20 * KDA / 32768),
        (GLM_52, 78 * 1152 + 21 * 132, 78 * 1152 + 21 * 132),
        (MIMO, 9 * 2560 + 0.8 * 39 * 5120, 9 * 2560 + 39 * 5120 * (128 + 2048) / 32768),
        (STEP, 12 * 4096 + 0.8 * 33 * 4096, 12 * 4096 + 33 * 4096 * (512 + 2048) / 32768),
        ({"text_config": GEMMA_3N}, 30 * 2048, 4 * 2048 + 16 * 2048 * (512 + 2048) / 32768),  # SGLang keeps all
        (NAS, 2 * 8 * 256 * 2, 2 * 8 * 256 * 2),
        ({"n_layer": 32, "n_head": 71, "hidden_size": 4544, "multi_query": True, "num_kv_heads": 71}, 8192, 8192),
        ({"n_layers": 40, "n_heads": 48, "d_model": 6144, "attn_config": {"kv_n_heads": 8}}, 163840, 163840),
        ({**LLAMA_8B, "sliding_window_pattern": "LLLG", "sliding_window": 1024}, 131072, 32768 + 98304 * KEPT),
    ],
    ids=str,
)
def test_what_a_token_of_public_models_costs(config: dict[str, Any], by_sglang: float, by_vllm: float) -> None:
    found = fit(ask("sglang==0.5.23", "8x H200", "", of(config)))
    assert found.kv_bytes_per_token == pytest.approx(by_sglang, abs=1)
    found = fit(ask("vllm==0.33.0", "8x H200", "--max-model-len 32768", of(config)))
    assert found.kv_bytes_per_token == pytest.approx(by_vllm, abs=1)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"layer_types": ["full_attention", "heavily_compressed_attention"]}, "layers of kind `heavily_compressed_"),
        ({"num_attention_heads": None, "head_dim": 128}, "does not tell the width of its attention"),
        ({"sparse_attention_config": {"sparse_index_dim": 128}}, "keeps an index"),
        ({"cross_attention_layers": [3]}, "images"),
    ],
)
def test_what_is_not_known_of_a_cache_is_null(more: dict[str, Any], why: str) -> None:
    for engine in ("sglang", "vllm", "trtllm", "llamacpp"):
        found = fit(ask(engine, "8x H200", "", of({**LLAMA_8B, **more})))
        assert found.kv_bytes_per_token is None and found.kv_tokens is None and found.fits is None
        assert why in found.notes[0]


def test_a_quantized_cache_is_said_in_a_file_of_its_own(tmp_path: Path) -> None:
    folder = write(tmp_path, LLAMA_8B)
    told = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (folder / gpurun_model_headers.QUANTIZATION).write_text(json.dumps(told))
    known = sizes_of(gpurun_model_headers.describe(folder))
    assert fit(ask("vllm", "H100", "", known)).kv_bytes_per_token == 65536


@pytest.mark.parametrize("engine", ["sglang", "vllm", "trtllm", "llamacpp"])
@pytest.mark.parametrize("lacks", ["num_hidden_layers", "hidden_size"])
def test_a_model_that_does_not_tell_its_layers_is_not_said_to_fit(engine: str, lacks: str) -> None:
    known = of({key: value for key, value in LLAMA_8B.items() if key != lacks})
    question = ask(engine, "8x H200", "", known)
    found = fit(question)
    assert found.fits is None and found.kv_tokens is None
    assert sentence(question, found).startswith("cannot tell whether it fits") and "does not tell" in found.notes[0]


def test_an_unknown_cache_gives_no_number() -> None:
    found = fit(ask("sglang", "8x H200", "", of({**MLA, "compress_ratios": [4, 128]})))
    assert found.fits is None and found.rest_gib
    assert found.kv_bytes_per_token is None and found.kv_tokens is None
    assert "not known: its cache is compressed" in found.notes[0]


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({"num_hidden_layers": 6, "sliding_window": 512, "sliding_window_pattern": 6}, "window " * 5 + "full"),
        ({"num_hidden_layers": 3, "sliding_window": 512, "use_sliding_window": False}, "full full full"),
        ({"num_hidden_layers": 4, "attn_layer_indices": [1]}, "state full state state"),
        ({"num_hidden_layers": 3, "attn_type_list": [0, 1, 0]}, "state full state"),
        ({"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2}, "state state full state"),
        ({"num_hidden_layers": 3, "linear_attn_config": {"full_attn_layers": [3]}}, "state state full"),
        ({"num_hidden_layers": 2, "model_type": "gemma2", "sliding_window": 9}, "window full"),
        ({"layers_block_type": ["mamba", "hybrid"]}, "state full+state"),
    ],
    ids=str,
)
def test_what_each_layer_keeps(config: dict[str, Any], kinds: str) -> None:
    assert layer_kinds(config) == kinds.split()


def test_weights_are_divided_as_the_engines_divide_them() -> None:
    model = of(
        {**LLAMA_8B, "num_key_value_heads": 2, "num_hidden_layers": 1},
        ["model.layers.*.mlp.up_proj.weight", "BF16", 1, 800, 1600],
        ["model.layers.*.self_attn.k_proj.weight", "BF16", 1, 80, 160],
        ["model.layers.*.input_layernorm.weight", "BF16", 1, 8, 16],
        ["model.layers.*.mlp.experts.*.up_proj.weight", "BF16", 8, 1600, 3200],
        ["mtp.model.layers.*.up_proj.weight", "BF16", 1, 10, 20],
    )
    assert model.weights_on_gpu(Split()) == 1600 + 160 + 16 + 3200
    assert model.weights_on_gpu(Split(tp=4, attention=4, experts=4)) == 400 + 80 + 16 + 800
    assert model.weights_on_gpu(Split(tp=4, attention=1, experts=4)) == 400 + 160 + 16 + 800
    assert model.weights_on_gpu(Split(pp=2)) == (1600 + 160 + 16 + 3200) / 2
    assert model.weights_on_gpu(Split(), matrix=0.5) == 800 + 80 + 16 + 1600
    assert model.weights_on_gpu(Split(), drafts=True) == 1600 + 160 + 16 + 3200 + 20


def test_layers_beyond_the_last_belong_to_a_draft(tmp_path: Path) -> None:
    folder = write(tmp_path, {**LLAMA_8B, "num_hidden_layers": 3})
    (folder / "config.json").write_text('{"num_hidden_layers": 2, "num_attention_heads": 32, "hidden_size": 4096}')
    rows = gpurun_model_headers.describe(folder)["tensors"]
    assert [row[2] for row in rows if row[0] == "model.layers.*.mlp.up_proj.weight"] == [2]
    assert [row[2] for row in rows if row[0] == "mtp.model.layers.*.mlp.up_proj.weight"] == [1]


def test_a_gguf_file_says_the_same(tmp_path: Path) -> None:
    keys = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 4096,
        "llama.embedding_length": 256,
        "llama.attention.head_count": 8,
        "llama.attention.head_count_kv": 2,
        "llama.rope.freq_base": 1e4,
        "tokenizer.ggml.tokens": ["a"] * 5000,
        "tokenizer.ggml.token_type": [1] * 5000,
    }
    path = gguf(
        tmp_path / "m.gguf", keys, {"token_embd.weight": 1024, "blk.0.attn_k.weight": 640, "blk.1.attn_k.weight": 64}
    )
    model = sizes_of(gpurun_model_headers.describe(path))
    assert model.weights == 1728
    assert not any(key.startswith("tokenizer.") for key in gpurun_model_headers.describe(path)["config"])
    assert [row[:3] for row in model.tensors] == [
        ["blk.*.attn_k.weight", "ggml1", 2],
        ["token_embd.weight", "ggml1", 1],
    ]
    assert model.context == 4096
    assert model.token("full", "f16", Split()) == 2 * (32 + 32) * 2
    found = fit(ask("llamacpp", "RTX 4090", "-c 1024 -ctk q8_0 -ctv q8_0", model))
    assert found.kv_bytes_per_token == 2 * 2 * 64 * 1.0625
    assert found.kv_tokens == 1024 and found.fits
    # As llama-server itself says it (n_slots, n_ctx_slot) of these flags.
    for flags, slots, length in (
        ("-c 2048 --parallel 2", 2, 1024),
        ("-c 2048", 1, 2048),
        ("-c 2048 --parallel 2 --kv-unified", 1, 2048),
        ("-c 2100 --parallel 8", 8, 512),
        ("--parallel 3", 3, 4096),
    ):
        found = fit(ask("llamacpp", "RTX 4090", flags, model))
        assert (found.kv_tokens, found.context) == (slots * length, length), flags
    with pytest.raises(ValueError, match="ends in the middle"):
        gpurun_model_headers.describe_gguf(_cut(path, 100))


def _cut(path: Path, size: int) -> Path:
    path.write_bytes(path.read_bytes()[:size])
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "neither config.json nor a .gguf"),
        ({"config.json": b"{}"}, "no .safetensors file"),
        ({"config.json": b"[]"}, "holds no mapping"),
        ({"config.json": b"{"}, "no JSON"),
        ({"config.json": b"{}", "model.safetensors": b"version https://git-lfs.github.com/spec/v1"}, "Git LFS pointer"),
        ({"config.json": b"{}", "model.safetensors": b""}, "no safetensors header"),
        ({"x.gguf": b"GGML1234"}, "is no GGUF file"),
    ],
)
def test_what_is_wrong_with_a_model_is_said(tmp_path: Path, content: dict[str, bytes], message: str) -> None:
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        gpurun_model_headers.describe(tmp_path)


def test_cards_by_many_names() -> None:
    for text in (
        "8x RTX PRO 6000",
        "8 x nvidia rtx pro 6000",
        "8xRTX-PRO-6000",
        "8x NVIDIA RTX PRO 6000 Blackwell Server Edition",
    ):
        assert (read_gpus(text).count, read_gpus(text).memory_mib) == (8, 97887)
    assert (read_gpus("H100 x4").count, read_gpus("H100").count) == (4, 1)
    assert read_gpus("NVIDIA GeForce RTX 4090").memory_mib == 24564
    assert read_gpus("NVIDIA H100 80GB HBM3").name == "H100"
    assert read_gpus("2x 80GiB").memory_mib == 81920
    with pytest.raises(ConfigError) as error:
        read_gpus("8x RTX PRO 600")
    assert error.value.problems[0].nearest == "RTX PRO 6000"
    with pytest.raises(ConfigError, match="names no card"):
        read_gpus("0x H100")
    found = gpus_of(
        [{"name": "NVIDIA H200", "memory_total_mib": 143771}, {"name": "NVIDIA H200", "memory_total_mib": 143771}]
    )
    assert found is not None and (found.count, found.cuda_gib) == (2, 139.72)
    assert gpus_of([]) is None and gpus_of([{"name": "Something", "memory_total_mib": None}]) is None
    spark = gpus_of([{"name": "NVIDIA GB10", "memory_total_mib": None}])  # nvidia-smi does not tell
    assert spark is not None and (spark.count, spark.cuda_gib) == (1, 121.69)


def test_every_card_has_one_meaning_and_a_source() -> None:
    assert [card["name"] for card in knowledge("cards") if not card["source"]] == []
    names = [name for card in knowledge("cards") for name in (card["name"], *card["aliases"])]
    for name in names:
        assert read_gpus(name).memory_mib > 10_000
    assert len({name.lower() for name in names}) == len(names)


@pytest.mark.parametrize(
    ("engine", "gpu", "flags", "wanted"),
    [
        (
            "sglang==0.5.9",
            "8x RTX PRO 6000",
            "--mem-fraction-static 0.1",
            "leave out --mem-fraction-static (then 0.863)",
        ),
        ("sglang==0.5.9", "2x T4", "--kv-cache-dtype fp8_e5m2", "--tp-size 2"),
        ("vllm==0.33.0", "L4", "--max-model-len 128k", "--max-model-len"),
        ("vllm==0.33.0", "T4", "", "--tensor-parallel-size 4, on 4 such GPUs"),
        ("llamacpp", "T4", "-c 131072", None),
    ],
)
def test_the_smallest_change_that_would_make_it_fit(
    engine: str, gpu: str, flags: str, wanted: str | None, llama: Sizes
) -> None:
    question = ask(engine, gpu, flags, llama)
    found = fit(question)
    assert found.fits is False
    change = smallest_change(question)
    assert (change or "").startswith(wanted or "") and (change is None) == (wanted is None)
    assert "does not fit" in sentence(question, found)


def test_the_words_of_an_override() -> None:
    asked = ask(
        "sglang==0.5.9", "8x RTX PRO 6000", "--tp 8 --mem-fraction-static 0.55", available_gib=21.71, total_gib=94
    )
    assert override(asked, fit(asked)) == "mem-fraction-static 0.55, SGLang would choose 0.85: leaves -20.6 GiB"
    same = ask("sglang==0.5.9", "8x RTX PRO 6000", "--tp 8 --mem-fraction-static 0.848")
    assert override(same, fit(same)) is None


def test_a_sentence_for_a_campaigns_lengths(llama: Sizes) -> None:
    asked = ask("sglang==0.5.9", "H100", "", llama, available_gib=63.6, total_gib=78.6)
    assert sentence(asked, fit(asked), 1024).endswith("405 requests of 1,024 tokens")
    assert sentence(ask("sglang", "H100"), Fit(engine="sglang")).startswith("cannot tell")


@pytest.mark.parametrize(
    ("engine", "rope", "longest"),
    [
        ("vllm", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ("vllm", {"type": "linear", "factor": 2.0}, 80000),
        ("vllm", {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 40000),
        ("sglang", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 40000),
        ("sglang", {"type": "dynamic", "factor": 2.0}, 80000),
        ("llamacpp", {"type": "linear", "factor": 2.0}, 40000),
        ("vllm", "yarn", 40000),
        ("vllm", {"type": "video_rope", "factor": None}, 40000),
    ],
)
def test_the_longest_sequence_is_what_the_engine_makes_of_rope(engine: str, rope: Any, longest: int) -> None:
    sizes = of({"num_hidden_layers": 2, "hidden_size": 64, "max_position_embeddings": 40000, "rope_scaling": rope})
    assert ask(engine, "H100", "", sizes).context == longest
    flag = {"vllm": "--max-model-len", "sglang": "--context-length", "llamacpp": "--ctx-size"}[engine]
    assert ask(engine, "H100", f"{flag} 1024", sizes).context == 1024


CARDS = [{"name": "NVIDIA H100 80GB HBM3", "memory_total_mib": 81559}] * 2


def subject(flags: str, model: dict[str, Any], **more: Any) -> Subject:
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "/m", *flags.split()]
    facts = {"gpus": CARDS, "host": {"memory_bytes": 2**36}}
    return Subject(more.pop("engine", "sglang"), more.pop("version", "0.5.9"), {}, {}, argv, model, facts, **more)


def test_a_plan_says_of_every_server_whether_it_fits(tmp_path: Path) -> None:
    known = gpurun_model_headers.describe(write(tmp_path / "m", LLAMA_8B))
    [note] = check(subject("--tp 2", known, lengths=(512, 4096)))
    assert (note.rule, note.severity) == ("fit", "note")
    assert note.message.endswith("requests of 4,096 tokens")
    override_, fits = check(subject("--tp 2 --mem-fraction-static 0.5", known))
    assert override_.message.startswith("mem-fraction-static 0.5, SGLang would choose 0.8")
    assert fits.severity == "note"
    [refused] = check(subject("--tp 2 --mem-fraction-static 0.02", known))
    assert (refused.severity, refused.klass) == ("refuse", "fit")
    assert refused.advice == "the smallest change with which it fits: leave out --mem-fraction-static (then 0.834)"
    near = {"available_gib": None, **known}
    [refused] = check(subject("--tp 2 --context-length 2048", known, lengths=(2049, 4096)))
    assert (refused.severity, refused.klass) == ("refuse", "fit")
    assert refused.message == "a request of 4,096 tokens does not fit: the server has room for 2,048"
    assert refused.advice.startswith("raise --context-length to 4096, or ask for less")
    [warned] = check(
        subject("--tp 2 --context-length 2048", known, lengths=(2048, 4096))
    )  # a benchmark can be measured
    assert warned.severity == "warn"
    [warned] = check(subject("--tp 2 --mem-fraction-static 0.09", near))
    assert warned.severity == "warn"  # an estimate is not sure enough to refuse so close a thing
    assert not list(check(subject("", {})))


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        *(("sglang", f"{flag} 0") for flag in ("--tp", "--pp", "--dp", "--page-size", "--max-running-requests")),
        ("sglang", "--attn-dp-size -1"),
        ("vllm", "--tensor-parallel-size 0"),
        ("vllm", "--block-size 0"),
        ("vllm", '--speculative-config {"num_speculative_tokens":"three"}'),
        ("trtllm", "--pp_size 0"),
        ("llamacpp", "--parallel 0"),
        ("llamacpp", "--ctx-size -5"),
    ],
)
def test_a_wrong_number_in_a_flag_is_no_mistake_of_gpuruns(tmp_path: Path, engine: str, flags: str) -> None:
    known = gpurun_model_headers.describe(write(tmp_path / "m", {**LLAMA_8B, "quantization_config": "none"}))
    [note] = check(subject(flags, known, engine=engine, version=None))
    wanted = "no number below 0 is wanted" if "ctx" in flags else "a number above 0 is wanted"
    why = "a flag has a value" if "{" in flags else f"`{flags}`: {wanted}"
    assert note.severity == "warn" and note.message.startswith(f"what fits is not predicted: {why}")


def test_a_negative_number_is_a_value_and_no_switch() -> None:
    argv = ["--temp", "-0.5", "-np", "-1", "-c", "4096", "-ngl", "-1"]
    found = read_flags(argv, load_engine("llamacpp").flags, knowledge("llamacpp")["flags"])
    assert (found.words, found.problems, found.others) == ([], [], ["--temp"])
    assert found.values == {"max_running": None, "context": 4096, "gpu_layers": "-1"}


def test_what_was_measured_counts_for_the_same_division_only() -> None:
    measured = {"available_gib": 21.71, "total_gib": 94}
    base = subject("--tp 2", measured)
    [note] = check(subject("--tp 2", measured, baseline=base))
    assert "measured" in note.advice
    assert not list(check(subject("--tp 1", measured, baseline=base)))


def test_models_in_gpuruns_folder_and_named_ones_are_described(tmp_path: Path) -> None:
    own = write(tmp_path / "models" / "llama-1", LLAMA_8B)
    (own / ".complete").touch()
    write(tmp_path / "models" / "unfinished", LLAMA_8B)
    named = write(tmp_path / "elsewhere", LLAMA_8B)
    (tmp_path / "broken").mkdir()
    found = gpurun_model_headers.describe_all([str(named), str(tmp_path / "broken"), "/nowhere"], str(tmp_path))
    assert set(found) == {str(own), str(named)}


def test_a_variant_takes_what_it_adds_to_the_measured_baseline(tmp_path: Path) -> None:
    draft = gpurun_model_headers.describe(write(tmp_path / "draft", LLAMA_8B))
    measured = {"available_gib": 60.0, "total_gib": 94}
    base = subject("--tp 2", measured, version="0.5.23")
    plain = free(base)

    def with_flags(flags: str) -> Subject:
        return subject(f"--tp 2 {flags}", measured, version="0.5.23", baseline=base)

    assert free(with_flags("")) == plain
    assert free(with_flags("--enable-symm-mem")) == pytest.approx(plain - 4, abs=0.1)
    drafted = with_flags("--speculative-algorithm EAGLE --speculative-draft-model-path /d")
    assert "draft `/d` are not counted" in notes_of(drafted)
    known = replace(drafted, facts={**drafted.facts, "models": {"/d": draft}})
    assert free(known) == pytest.approx(plain - 7.5, abs=0.3)
    assert "not counted" not in notes_of(known)


def notes_of(of: Subject) -> str:
    return " ".join(finding.message + finding.advice for finding in check(of))


def free(of: Subject) -> float:
    found = re.search(r"([\d.]+) GiB free after the weights", notes_of(of))
    assert found is not None
    return float(found[1])


def test_no_more_requests_than_the_engine_runs(llama: Sizes) -> None:
    question = ask("sglang==0.5.9", "H100", "--max-running-requests 3", llama)
    assert "3 requests of 100 tokens" in sentence(question, fit(question), 100)
    assert "3.0 requests of the longest" in sentence(question, fit(question))


def test_the_smallest_fraction_is_not_a_step_too_large() -> None:
    question = ask("sglang==0.5.9", "8x H200", "", available_gib=12.25, total_gib=138.1)
    question = replace(question, values={"fraction": 0.9}, gpus=replace(question.gpus, memory_mib=30000))  # type: ignore[type-var]
    assert smallest_change(question) == "--mem-fraction-static 0.912 or more"
    question = replace(question, available_gib=9.18)
    assert fit(question).min_mem_fraction_static == 0.9335


def test_a_model_that_nothing_is_known_of_is_named() -> None:
    assert "nothing is known of `/models/x`" in notes_of(subject("", {"path": "/models/x"}))
    assert not notes_of(subject("", {}))


def test_a_cache_that_is_larger_than_the_card_does_not_fit(llama: Sizes) -> None:
    assert fit(ask("vllm", "H100", "--kv-cache-memory-bytes 500G", llama)).fits is False
    assert fit(ask("vllm", "H100", "--kv-cache-memory-bytes 20G", llama)).fits is True


def test_layers_with_a_window_keep_no_more_than_it_in_llama_cpp() -> None:
    config = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
    config |= {"sliding_window": 1024, "max_position_embeddings": 8192}
    mixed = of({**config, "layer_types": ["sliding_attention", "full_attention"] * 2}, ["a", "BF16", 1, 10, 20])
    layer = 2 * 64 * 2 * 2
    asked = ask("llamacpp", "RTX 4090", "-c 8192", mixed)
    assert fit(asked).kv_bytes_per_token == 2 * layer + 2 * layer * (1024 + 512) / 8192
    assert fit(ask("llamacpp", "RTX 4090", "-c 8192 --swa-full", mixed)).kv_bytes_per_token == 4 * layer
    assert fit(ask("llamacpp", "RTX 4090", "-c 8192", of(config))).kv_bytes_per_token == 4 * layer


def test_a_latent_cache_of_vllms_own_form() -> None:
    assert of(MLA).token("full", "fp8_ds_mla", Split()) == 656


def test_what_reserves_more_than_the_card_has_does_not_fit(llama: Sizes) -> None:
    flags = "--chunked-prefill-size 10000000 --mem-fraction-static 0.8"
    assert fit(ask("sglang==0.5.23", "H100", flags, llama)).fits is False
