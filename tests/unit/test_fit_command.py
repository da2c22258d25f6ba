"""`gpurun fit`: the contract of its document, models from folders and a hub, what is said of wrong input."""

from __future__ import annotations

import http.server
import json
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import gpurun_model_headers
from click.testing import CliRunner
from tests.unit.models import LLAMA_8B, gguf, write

from gpurun.cli import gpurun
from gpurun.commands.fit import KEYS
from gpurun.errors import ConfigError


def run(*args: str) -> str:
    result = CliRunner().invoke(gpurun, ["fit", *args], catch_exceptions=False, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output


def document(*args: str) -> dict[str, Any]:
    found = json.loads(run(*args, "--json"))
    assert found.pop("schema") == "gpurun.fit/1" and found.pop("said") and isinstance(found.pop("notes"), list)
    assert tuple(found) == KEYS
    assert isinstance(found, dict)
    return found


SEED = ("none", "--gpu", "8x RTX PRO 6000", "--engine", "sglang==0.5.9", "--tp", "8", "--mem-fraction-static", "0.55")
MEASURED = ("--available-gib", "21.71", "--total-gib", "94")


def test_the_campaign_that_began_with_an_override() -> None:
    found = document(*SEED, *MEASURED)
    assert found["rest_gib"] == -20.59
    assert found["default_mem_fraction_static"] == 0.848
    assert found["fits"] is False
    assert found["weights_gib"] is None and found["kv_tokens"] is None
    assert "leave out --mem-fraction-static" in run(*SEED, *MEASURED)


def test_only_the_default_is_wanted() -> None:
    found = document("none", "--gpu", "H100", "--engine", "sglang==0.5.9")
    assert found == dict.fromkeys(KEYS) | {"default_mem_fraction_static": 0.835}


def test_flags_stand_anywhere_and_in_any_spelling(tmp_path: Path) -> None:
    model = str(write(tmp_path, LLAMA_8B))
    card = ("--gpu", "8x H100", "--engine", "sglang==0.5.9")
    first = document("--tp", "8", *card, "--kv-cache-dtype=fp8_e5m2", model, "--enable-metrics")
    assert first == document(model, *card, "--tensor-parallel-size", "8", "--kv-cache-dtype", "fp8_e5m2")
    assert first["kv_bytes_per_token"] == 8192
    assert first["fits"] is True


def test_other_engines_have_no_fraction_of_sglangs(tmp_path: Path) -> None:
    model = str(write(tmp_path, LLAMA_8B))
    found = document(model, "--gpu", "H100", "--engine", "vllm", "--max-model-len", "8k")
    assert found["default_mem_fraction_static"] is None and found["min_mem_fraction_static"] is None
    assert found["fits"] is True and found["kv_tokens"] > 300_000
    text = run(model, "--gpu", "L4", "--engine", "vllm==0.33.0", "--max-model-len", "128k")
    assert "does not fit" in text and "the smallest change with which it fits: --max-model-len" in text
    assert "newer" not in text
    assert "99.0 is newer than 0.33.0" in run(model, "--gpu", "L4", "--engine", "vllm==99.0")


def test_no_fraction_works_where_the_weights_alone_are_too_much(tmp_path: Path) -> None:
    found = document(str(write(tmp_path, LLAMA_8B)), "--gpu", "T4", "--engine", "sglang==0.5.9")
    assert found["fits"] is False and found["available_gib"] < 0
    assert found["min_mem_fraction_static"] is None


def test_a_gguf_file(tmp_path: Path) -> None:
    keys = {"general.architecture": "llama", "llama.block_count": 2, "llama.context_length": 4096}
    keys |= {"llama.embedding_length": 256, "llama.attention.head_count": 8, "llama.attention.head_count_kv": 2}
    path = gguf(tmp_path / "m.gguf", keys, {"token_embd.weight": 1024})
    found = document(
        str(path), "--gpu", "RTX 4090", "--engine", "llamacpp", "-c", "2048", "-ctk", "q8_0", "-ctv", "q8_0"
    )
    assert (found["kv_bytes_per_token"], found["kv_tokens"], found["fits"]) == (272, 2048, True)


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (("none", "--gpu", "8x RTX PRO 600", "--engine", "sglang"), "`RTX PRO 600` is no card", None),
        (("none", "--gpu", "", "--engine", "sglang"), "names no card", "8x RTX PRO 6000"),
        (("none", "--gpu", "H100", "--engine", "sglag"), "no memory rules for engine `sglag`", None),
        (("none", "--gpu", "H100", "--engine", "transformers"), "no memory rules for engine", None),
        (("--gpu", "H100", "--engine", "sglang"), "one MODEL is wanted, none is given", "none"),
        (("a", "b", "--gpu", "H100", "--engine", "sglang"), "2 are given: a, b", None),
        ((*SEED, "--mem-fraction-static", "55%"), "`--mem-fraction-static 55%`: a number is wanted", None),
        ((*SEED, "--mem-fraction-static", "55"), "a fraction between 0 and 1", None),
        ((*SEED, "--mem-fraction-static"), "`--mem-fraction-static` needs a value", None),
        (
            (*SEED, "--mem-frac", "0.5"),
            "SGLang 0.5.9 has no `--mem-frac`: a flag is spelled out",
            "--mem-fraction-static",
        ),
        ((*SEED, "--gpu-memory-utilization", "0.5"), "SGLang 0.5.9 has no flag `--gpu-memory-utilization`", None),
        (
            ("none", "--gpu", "H100", "--engine", "vllm", "--mem-fraction-static", "0.5"),
            "vLLM 0.33.0 has no flag",
            None,
        ),
        (("none", "--gpu", "H100", "--engine", "sglang", "--cuda-graph-max-bs", "8"), "it was removed", None),
        (("none", "--gpu", "H100", "--engine", "sglang==latest"), "names no version of sglang", "sglang==0.5.23"),
        (("", "--gpu", "H100", "--engine", "sglang"), "one MODEL is wanted", None),
        ((*SEED, "--kv-cache-dtype", "fp9"), "fp9", None),
        ((*SEED, "--disable-cuda-graph=true"), "takes no value", "alone"),
        ((*SEED, "--pp", "2"), "`--tp 8 --pp 2` needs 16 GPUs, and `--gpu` names 8", "16x RTX PRO 6000"),
        ((*SEED, "--page-size", "0"), "`--page-size 0`: a number above 0 is wanted", None),
        ((*SEED, "--tp", "-8"), "`--tp -8`: a number above 0 is wanted", None),
        ((*SEED, "--context-length", "0"), "`--context-length 0`: a number above 0 is wanted", None),
        ((*SEED, "--available-gib", "100", "--total-gib", "94"), "is more than `--total-gib`", None),
        ((*SEED, "--available-gib", "-3"), "is no memory of a GPU", None),
        (("/nowhere/at/all", "--gpu", "H100", "--engine", "vllm"), "there is no model `/nowhere/at/all`", "org/model"),
        (("llama", "--gpu", "H100", "--engine", "vllm"), "there is no model `llama`", "org/model"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_a_usage_error_that_helps(args: tuple[str, ...], message: str, hint: str | None) -> None:
    with pytest.raises(ConfigError) as error:
        run(*args)
    said = error.value.render()
    assert message in said
    assert hint is None or hint in said


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("llamacpp", "--batch-size 512 -n 10 -fitc 4096 --kv-offload -ot exps=CPU"),
        ("llamacpp==b10434", "-fitt 512 --batch-size 512 -n 10"),
        ("vllm", "--no-enforce-eager --no-enable-expert-parallel --data-parallel-size-local 1"),
        ("sglang", "--dcp-size 1 --attn-cp-size 1 --cuda-graph-bs-decode 1 2 4"),
        ("sglang==0.5.9", "--cuda-graph-bs 1 2 4"),
        ("vllm==0.11.0", "--block-size 16"),
    ],
)
def test_flags_that_the_engine_has_are_taken(engine: str, flags: str) -> None:
    run("none", "--gpu", "H100", "--engine", engine, *flags.split())


@pytest.mark.parametrize("words", ["--trust-remote-code MODEL", "--model-path MODEL", "--model MODEL --log-level info"])
def test_the_model_is_found_however_it_is_said(tmp_path: Path, words: str) -> None:
    model = str(write(tmp_path, LLAMA_8B))
    found = document(*words.replace("MODEL", model).split(), *CARD)
    assert found == document(model, *CARD)
    assert found["weights_gib"] and found == document(model, "--gpu", "H100", "--engine", "sglang==v0.5.9")


@pytest.mark.parametrize(
    "args",
    [
        "none --gpu 0GiB --engine sglang",
        "MODEL --gpu H100 --engine sglang --mamba-full-memory-ratio -1",
        "MODEL --gpu H100 --engine sglang --swa-full-tokens-ratio nan",
        'MODEL --gpu H100 --engine vllm --speculative-config {"num_speculative_tokens":null}',
        "MODEL --gpu H100 --engine llamacpp -c -5",
    ],
)
def test_odd_numbers_are_usage_errors(tmp_path: Path, args: str) -> None:
    with pytest.raises(ConfigError):
        run(*args.replace("MODEL", str(write(tmp_path, LLAMA_8B))).split())


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", '{"quantization_config": "fp8", "num_hidden_layers": 2, "hidden_size": 64}'),
        ("config.json", '{"vision_config": {"hidden_size": "big"}, "num_hidden_layers": 2}'),
        ("config.json", '{"max_position_embeddings": 1e400, "num_hidden_layers": 2}'),
        ("config.json", '{"text_config": "none", "num_hidden_layers": [2]}'),
        ("config.json", '{"a":' * 100_000),
        ("model.safetensors.index.json", '{"weight_map": ["a"]}'),
        ("model.safetensors.index.json", '{"weight_map": {"a": 1}}'),
    ],
)
def test_odd_models_are_usage_errors_or_answered(tmp_path: Path, file: str, text: str) -> None:
    folder = write(tmp_path / "models" / "m", LLAMA_8B)
    (folder / file).write_text(text)
    (folder / ".complete").touch()
    for engine in ("sglang", "vllm", "llamacpp", "trtllm"):
        try:
            document(str(folder), "--gpu", "H100", "--engine", engine)
        except ConfigError:
            continue
    assert isinstance(gpurun_model_headers.describe_all([], str(tmp_path)), dict)


def test_a_gguf_file_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, {"a": 4096, "b": 4096})
    path.write_bytes(path.read_bytes()[:-6000])
    with pytest.raises(ValueError, match="not whole"):
        gpurun_model_headers.describe(path)
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 2**60, 2**60))
    with pytest.raises(ValueError, match="middle of its header"):
        gpurun_model_headers.describe(path)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--gpu", "8 H100"),
        ("--gpu", "H100x8"),
    ],
)
def test_cards_that_are_written_the_other_way_round(args: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        run("none", args, message, "--engine", "sglang")
    assert 'say `--gpu "8x H100"`' in error.value.render()


def test_groups_of_heads_that_the_engine_refuses(tmp_path: Path) -> None:
    card = ("--gpu", "8x H100", "--engine", "sglang==0.5.9")
    with pytest.raises(ConfigError, match="8 GPUs cannot be divided into 3 groups"):
        run("none", *card, "--dp", "3", "--tp", "8", "--enable-dp-attention")
    other = {**LLAMA_8B, "num_attention_heads": 48, "hidden_size": 48 * 128}
    with pytest.raises(ConfigError, match="8 KV heads can be neither divided over 6 GPUs"):
        run(str(write(tmp_path, other)), *card, "--tp", "6")


def test_cache_types_are_those_of_the_version(tmp_path: Path) -> None:
    model, new = str(write(tmp_path, LLAMA_8B)), ("--gpu", "H100", "--engine", "sglang==0.5.23", "--kv-cache-dtype")
    assert document(model, *new, "mxfp8")["fits"] is True
    for other in ("fp8", "q8_0"):
        with pytest.raises(ConfigError, match=other):
            run(model, *new, other)


def test_float32_takes_twice_the_memory(tmp_path: Path) -> None:
    model = str(write(tmp_path, LLAMA_8B))
    plain, wide = document(model, *CARD), document(model, *CARD, "--dtype", "float32")
    assert wide["weights_gib"] == pytest.approx(2 * plain["weights_gib"], abs=0.02)
    assert wide["kv_bytes_per_token"] == 2 * plain["kv_bytes_per_token"]


def test_heads_that_cannot_be_divided(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="32 attention heads cannot be divided over 3 GPUs"):
        run(str(write(tmp_path, LLAMA_8B)), "--gpu", "4x H100", "--engine", "vllm", "--tp", "3")


def test_a_value_that_is_no_number_is_a_usage_error(tmp_path: Path) -> None:
    drafts = '{"method": "mtp", "num_speculative_tokens": "three"}'
    with pytest.raises(ConfigError, match="no memory can be predicted"):
        run(str(write(tmp_path, LLAMA_8B)), "--gpu", "H100", "--engine", "vllm", "--speculative-config", drafts)


class Hub(http.server.BaseHTTPRequestHandler):
    """A folder by the hub's URL layout; `elsewhere/x` is redirected, `gated/x` refused. Ranges get the whole file."""

    folder: Path
    seen: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization")))
        owner, model, resolve, revision, name = self.path.strip("/").split("/", 4)
        path = self.folder / model / name
        if owner == "gated" or resolve != "resolve" or revision not in ("main", "v1"):
            self.send_error(401 if owner == "gated" else 404)
        elif owner == "elsewhere" and name.endswith(".safetensors"):
            self.send_response(302)
            self.send_header("Location", f"/files/{model}/resolve/main/{name}")
            self.end_headers()
        elif not path.is_file():
            self.send_error(404)
        else:
            data = path.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    handler = type("OneHub", (Hub,), {"folder": tmp_path, "seen": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setenv("HF_TOKEN", "hf_planted")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield handler
        server.shutdown()
        thread.join()


CARD = ("--gpu", "H100", "--engine", "sglang==0.5.9")


@pytest.mark.parametrize("shards", [1, 3])
def test_a_model_on_the_hub_is_read_by_its_headers(hub: type[Hub], shards: int) -> None:
    local = str(write(hub.folder / "llama", LLAMA_8B, shards))
    wanted = document(local, *CARD)
    assert document("org/llama", *CARD) == wanted
    assert document("elsewhere/llama@v1", *CARD) == wanted
    assert ("/org/llama/resolve/main/config.json", "Bearer hf_planted") in hub.seen
    assert all(token is None for path, token in hub.seen if path.startswith("/files/"))


def test_what_a_hub_refuses_is_said_without_the_token(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    (hub.folder / "bare").mkdir()
    (hub.folder / "bare" / "config.json").write_text("{}")
    for model, message in (
        ("gated/llama", "401"),
        ("org/nothing", "404"),
        ("org/llama@v9", "404"),
        ("org/bare", "404 for model.safetensors"),
    ):
        with pytest.raises(ConfigError, match=message) as error:
            run(model, *CARD)
        assert "hf_planted" not in error.value.render()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"cannot reach the hub at http://127\.0\.0\.1:9") as error:
        run("org/llama", *CARD)
    assert "local copy" in (error.value.hint or "")
