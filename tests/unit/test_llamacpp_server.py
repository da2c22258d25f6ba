"""The launcher's command line, without the wheel; test_engine_role.py holds its table against the real one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

_FILE = Path(__file__).parents[2] / "roles/engine/files/llamacpp_server.py"
_SPEC = importlib.util.spec_from_file_location("llamacpp_server", _FILE)
assert _SPEC is not None and _SPEC.loader is not None
server: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(server)


class Names:
    """An enumeration that has every member, as its own name."""

    def __getattr__(self, name: str) -> str:
        return name


class Wheel:
    """What the launcher needs of the wheel: enumerations, and parameters with llama.cpp's nesting."""

    def __getattr__(self, name: str) -> Names:
        return Names()

    def CommonParams(self) -> SimpleNamespace:
        tree = SimpleNamespace(embedding=False, n_batch=2048, n_ubatch=512)
        for option in server.OPTIONS:
            for field in option.to.split():
                node = tree
                for step in field.split(".")[:-1]:
                    node.__dict__.setdefault(step, SimpleNamespace())
                    node = getattr(node, step)
        tree.model.path = ""
        return tree


def configure(*argv: str) -> Any:
    return server.configure(["-m", "m.gguf", *argv], Wheel())


def test_flags_set_their_fields_under_every_spelling() -> None:
    for flag in ("-c", "--ctx-size", "--ctx_size"):
        assert configure(flag, "4096").n_ctx == 4096
    params = configure("-t", "2", "-tb", "3", "-np", "4", "-fa", "on", "-ctk", "q8_0", "--alias", "a,b", "--metrics")
    assert (params.cpuparams.n_threads, params.cpuparams_batch.n_threads, params.n_parallel) == (2, 3, 4)
    assert params.flash_attn_type == "LLAMA_FLASH_ATTN_TYPE_ENABLED"
    assert params.cache_type_k == "GGML_TYPE_Q8_0"
    assert params.model_alias == {"a", "b"}
    assert params.endpoint_metrics is True
    params = configure("--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", "4", "--spec-ngram-simple-size-n", "3")
    assert params.speculative.types == ["COMMON_SPECULATIVE_TYPE_NGRAM_MOD"]
    assert (params.speculative.ngram_mod.n_match, params.speculative.ngram_simple.size_n) == (4, 3)


def test_switches_have_their_opposites_and_the_last_one_counts() -> None:
    assert configure("--slots", "--no-slots").endpoint_slots is False
    assert configure("--no-kv-offload").no_kv_offload is True
    assert configure("-t", "1", "--threads", "7").cpuparams.n_threads == 7
    assert configure("--no-mmap").load_mode == "LLAMA_LOAD_MODE_NONE"


def test_defaults_are_llama_servers() -> None:
    params = configure()
    assert (params.port, params.n_parallel, params.model.path) == (8080, -1, "m.gguf")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nope"], "error: invalid argument: --nope"),
        (["--ctx", "5"], "error: invalid argument: --ctx"),  # no abbreviations
        (["stray"], "error: invalid argument: stray"),
        (["-c"], 'error while handling argument "-c": expected value for argument'),
        (["-c", "4k"], "error while handling argument \"-c\": invalid integer: '4k'"),
        (["-np", "-7"], 'error while handling argument "-np": error: invalid value for n_parallel'),
        (["-fa", "maybe"], "error while handling argument \"-fa\": error: unknown value for --flash-attn: 'maybe'"),
        (["--port", "70000"], 'error while handling argument "--port": not a TCP port: 70000'),
        (["-b", "0"], 'error while handling argument "-b": must be at least 1, not 0'),
        (["--chat-template-file", "/nonexistent"], "failed to open file '/nonexistent'"),
    ],
)
def test_what_is_wrong_is_said_as_llama_server_says_it(argv: list[str], message: str) -> None:
    with pytest.raises(server.UsageError) as caught:
        configure(*argv)
    assert message in str(caught.value)


def test_a_model_is_needed() -> None:
    with pytest.raises(server.UsageError, match="--model is required"):
        server.configure([], Wheel())


def test_settings_from_the_environment_are_refused_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_THREADS", "1")
    with pytest.raises(server.UsageError, match="LLAMA_ARG_THREADS"):
        configure()


def test_no_flag_is_in_the_table_twice() -> None:
    flags = [flag for option in server.OPTIONS for flag in option.flags.split()]
    assert len(flags) == len(set(flags))
