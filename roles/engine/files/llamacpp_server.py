"""llama-server's command line for the llama.cpp that the PyPI wheel `xllamacpp` carries.

The wheel has llama.cpp's own HTTP server but no program. This file gives it llama-server's flag names, so that a
campaign means the same with the wheel as with a real `llama-server` binary. Flags are rows of a table (`OPTIONS`) that
say which field of `CommonParams` they set; a flag that the wheel's API cannot set is refused like an unknown one, never
ignored.

Messages and exit codes follow llama-server: unknown flags, bad values and failed starts exit with 1. Values are read
strictly (`4k` is no number here, llama-server takes it for 4), and no flag may be abbreviated.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Callable, NamedTuple


class UsageError(Exception):
    """The command line is wrong; the message is what llama-server would say."""


# --- readers: text of a value -> what the field wants. They raise ValueError with a message for people.


def integer(text: str, _: Any) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"invalid integer: {text!r}") from None


def number(text: str, _: Any) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"invalid number: {text!r}") from None


integer.shown = number.shown = "N"  # type: ignore[attr-defined]


def string(text: str, _: Any) -> str:
    return text


def strings(text: str, _: Any) -> list[str]:
    return text.split(",")


def names(text: str, _: Any) -> set[str]:
    return set(text.split(","))


def content(text: str, _: Any) -> str:
    try:
        return Path(text).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"failed to open file {text!r}: {error.strerror}") from None


def positive(text: str, x: Any) -> int:
    value = integer(text, x)
    if value < 1:
        raise ValueError(f"must be at least 1, not {value}")
    return value


def threads(text: str, x: Any) -> int:
    value = integer(text, x)
    return value if value > 0 else len(os.sched_getaffinity(0))


def slots(text: str, x: Any) -> int:
    value = integer(text, x)
    if value == 0 or value < -1:
        raise ValueError("error: invalid value for n_parallel")
    return value


def port(text: str, x: Any) -> int:
    value = integer(text, x)
    if not 0 <= value <= 65535:
        raise ValueError(f"not a TCP port: {value}")
    return value


def gpu_layers(text: str, x: Any) -> int:
    return {"auto": -1, "all": -2}[text] if text in ("auto", "all") else integer(text, x)


positive.shown = threads.shown = slots.shown = port.shown = "N"  # type: ignore[attr-defined]
gpu_layers.shown = "N    a number, 'auto' or 'all'"  # type: ignore[attr-defined]


def one_of(**words: Any) -> Callable[[str, Any], Any]:
    """A word out of several (`_` in a keyword stands for `-`)."""
    table = {word.strip("_").replace("_", "-"): value for word, value in words.items()}

    def read(text: str, _: Any) -> Any:
        if text not in table:
            raise ValueError(f"unknown value {text!r}, expected one of: {', '.join(table)}")
        return table[text]

    read.shown = f"{{{','.join(table)}}}"  # type: ignore[attr-defined]
    return read


def enum(name: str, prefix: str, allowed: str) -> Callable[[str, Any], Any]:
    """A member of an enumeration of the wheel: the word `q8_0` is `GGML_TYPE_Q8_0` of `ggml_type`."""

    def read(text: str, x: Any) -> Any:
        if text not in allowed.split():
            raise ValueError(f"unknown value {text!r}, expected one of: {', '.join(allowed.split())}")
        return getattr(getattr(x, name), prefix + text.upper().replace("-", "_"))

    read.shown = f"{{{','.join(allowed.split())}}}"  # type: ignore[attr-defined]
    return read


def enums(name: str, prefix: str, allowed: str) -> Callable[[str, Any], Any]:
    read = enum(name, prefix, allowed)

    def several(text: str, x: Any) -> list[Any]:
        return [read(word, x) for word in text.split(",")]

    several.shown = ",".join(allowed.split())  # type: ignore[attr-defined]
    return several


CACHE = enum("ggml_type", "GGML_TYPE_", "f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1")
SPECULATIVE = enums(
    "common_speculative_type",
    "COMMON_SPECULATIVE_TYPE_",
    "none draft-simple draft-eagle3 draft-mtp draft-dflash "
    "ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache",
)
ON_OFF = one_of(on=True, off=False, true=True, false=False, enabled=True, disabled=False, _1=True, _0=False)
LOAD = "LLAMA_LOAD_MODE_"


def flash(text: str, x: Any) -> Any:
    words = {"ENABLED": "on enabled true 1", "DISABLED": "off disabled false 0", "AUTO": "auto -1"}
    word = next((word for word, said in words.items() if text in said.split()), None)
    if word is None:
        raise ValueError(f"error: unknown value for --flash-attn: '{text}'")
    return getattr(x.llama_flash_attn_type, "LLAMA_FLASH_ATTN_TYPE_" + word)


flash.shown = "{on,off,auto}"  # type: ignore[attr-defined]


def member(name: str, value: str) -> Callable[[Any], Any]:
    """A constant that needs the wheel to be named."""
    return lambda x: getattr(getattr(x, name), value)


class Option(NamedTuple):
    """`flags`: every spelling. With `read`, a value follows; else `value` is set. `to`: fields of CommonParams."""

    flags: str
    to: str
    read: Callable[[str, Any], Any] | None = None
    value: Any = True


def pair(yes: str, no: str, to: str, inverse: bool = False) -> list[Option]:
    """A switch with its opposite; `inverse` where the field says the opposite of the flag."""
    return [Option(yes, to, value=not inverse), Option(no, to, value=inverse)]


OPTIONS: list[Option] = [
    Option("-m --model", "model.path", string),
    Option("-a --alias", "model_alias", names),
    Option("--tags", "model_tags", names),
    Option("--host", "hostnames", strings),
    Option("--port", "port", port),
    Option("--reuse-port", "reuse_port"),
    Option("--api-prefix", "api_prefix", string),
    Option("--api-key", "api_keys", strings),
    Option("-to --timeout", "timeout_read timeout_write", integer),
    Option("--threads-http", "n_threads_http", integer),
    Option("--metrics", "endpoint_metrics"),
    Option("--props", "endpoint_props"),
    *pair("--slots", "--no-slots", "endpoint_slots"),
    *pair("--ui --webui", "--no-ui --no-webui", "ui"),
    Option("-sps --slot-prompt-similarity", "slot_prompt_similarity", number),
    Option("--slot-save-path", "slot_save_path", string),
    # Processors
    Option("-t --threads", "cpuparams.n_threads", threads),
    Option("-tb --threads-batch", "cpuparams_batch.n_threads", threads),
    Option("--poll", "cpuparams.poll", integer),
    Option("--poll-batch", "cpuparams_batch.poll", integer),
    Option("--numa", "numa", enum("ggml_numa_strategy", "GGML_NUMA_STRATEGY_", "distribute isolate numactl")),
    # Context, batches, slots
    Option("-c --ctx-size", "n_ctx", integer),
    Option("-b --batch-size", "n_batch", positive),
    Option("-ub --ubatch-size", "n_ubatch", positive),
    Option("-np --parallel", "n_parallel", slots),
    *pair("-cb --cont-batching", "-nocb --no-cont-batching", "cont_batching"),
    *pair("-kvu --kv-unified", "-no-kvu --no-kv-unified", "kv_unified"),
    *pair("--context-shift", "--no-context-shift", "ctx_shift"),
    Option("--keep", "n_keep", integer),
    Option("-n --predict --n-predict", "n_predict", integer),
    Option("--swa-full", "swa_full"),
    # KV cache
    Option("-fa --flash-attn", "flash_attn_type", flash),
    Option("-ctk --cache-type-k", "cache_type_k", CACHE),
    Option("-ctv --cache-type-v", "cache_type_v", CACHE),
    *pair("--cache-prompt", "--no-cache-prompt", "cache_prompt"),
    *pair("--cache-idle-slots", "--no-cache-idle-slots", "cache_idle_slots"),
    Option("--cache-reuse", "n_cache_reuse", integer),
    Option("-cram --cache-ram", "cache_ram_mib", integer),
    Option("-ctxcp --ctx-checkpoints --swa-checkpoints", "n_ctx_checkpoints", integer),
    *pair("-kvo --kv-offload", "-nkvo --no-kv-offload", "no_kv_offload", inverse=True),
    # Loading
    Option("--mmap", "load_mode", value=member("llama_load_mode", LOAD + "MMAP")),
    Option("--no-mmap", "load_mode", value=member("llama_load_mode", LOAD + "NONE")),
    Option("--mlock", "load_mode", value=member("llama_load_mode", LOAD + "MLOCK")),
    Option("-lm --load-mode", "load_mode", enum("llama_load_mode", LOAD, "auto none mmap mlock")),
    *pair("--warmup", "--no-warmup", "warmup"),
    *pair("--repack", "-nr --no-repack", "no_extra_bufts", inverse=True),
    Option("--check-tensors", "check_tensors"),
    Option("--offline", "offline"),
    # GPUs
    Option("-ngl --gpu-layers --n-gpu-layers", "n_gpu_layers", gpu_layers),
    Option("-sm --split-mode", "split_mode", enum("llama_split_mode", "LLAMA_SPLIT_MODE_", "none layer row tensor")),
    Option("-mg --main-gpu", "main_gpu", integer),
    Option("-fit --fit", "fit_params", ON_OFF),
    Option("-fitc --fit-ctx", "fit_params_min_ctx", integer),
    # Position encoding
    Option(
        "--rope-scaling",
        "rope_scaling_type",
        enum("llama_rope_scaling_type", "LLAMA_ROPE_SCALING_TYPE_", "none linear yarn"),
    ),
    Option("--rope-scale", "rope_freq_scale", lambda text, x: 1.0 / number(text, x) if number(text, x) else 0.0),
    Option("--rope-freq-base", "rope_freq_base", number),
    Option("--rope-freq-scale", "rope_freq_scale", number),
    Option("--yarn-orig-ctx", "yarn_orig_ctx", integer),
    # Speculative decoding
    Option("--spec-type", "speculative.types", SPECULATIVE),
    Option("-md --model-draft --spec-draft-model", "speculative.draft.mparams.path", string),
    Option("-ngld --spec-draft-ngl --gpu-layers-draft", "speculative.draft.n_gpu_layers", gpu_layers),
    Option("--spec-draft-n-max", "speculative.draft.n_max", integer),
    Option("--spec-draft-n-min", "speculative.draft.n_min", integer),
    Option("--spec-draft-p-min", "speculative.draft.p_min", number),
    *[
        Option(f"--spec-{name}-{flag}", f"speculative.{name.replace('-', '_')}.{field}", positive)
        for name in ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
        for flag, field in (("size-n", "size_n"), ("size-m", "size_m"), ("min-hits", "min_hits"))
    ],
    Option("--spec-ngram-mod-n-match", "speculative.ngram_mod.n_match", positive),
    Option("--spec-ngram-mod-n-min", "speculative.ngram_mod.n_min", integer),
    Option("--spec-ngram-mod-n-max", "speculative.ngram_mod.n_max", integer),
    Option("-lcs --lookup-cache-static", "speculative.ngram_cache.lookup_cache_static", string),
    Option("-lcd --lookup-cache-dynamic", "speculative.ngram_cache.lookup_cache_dynamic", string),
    # Sampling defaults, for requests that do not say
    Option("-s --seed", "sampling.seed", lambda text, x: integer(text, x) & 0xFFFFFFFF),
    Option("--temp --temperature", "sampling.temp", number),
    Option("--top-k", "sampling.top_k", integer),
    Option("--top-p", "sampling.top_p", number),
    Option("--min-p", "sampling.min_p", number),
    Option("--repeat-penalty", "sampling.penalty_repeat", number),
    Option("--ignore-eos", "sampling.ignore_eos"),
    # Prompts
    *pair("--jinja", "--no-jinja", "use_jinja"),
    Option("--chat-template", "chat_template", string),
    Option("--chat-template-file", "chat_template", content),
    Option(
        "--reasoning-format",
        "reasoning_format",
        enum("common_reasoning_format", "COMMON_REASONING_FORMAT_", "none auto deepseek deepseek-legacy"),
    ),
    Option("--embedding --embeddings", "embedding"),
    # Logs
    Option("-lv --verbosity --log-verbosity", "verbosity", integer),
    Option("-v --verbose --log-verbose", "verbosity", value=2**31 - 1),
    *pair("--perf", "--no-perf", "no_perf", inverse=True),
]
BY_FLAG = {flag: option for option in OPTIONS for flag in option.flags.split()}

HELP = """usage: llamacpp_server.py --model FILE.gguf [flags]

llama.cpp's server out of the wheel `xllamacpp`, with llama-server's flag names:
"""


def shown(option: Option) -> str:
    """Its line of --help, in llama-server's form: names, then what follows them."""
    value = "" if option.read is None else f" {getattr(option.read, 'shown', 'TEXT')}"
    return option.flags.replace(" ", ", ") + value


def parse(argv: list[str], params: Any, x: Any) -> None:
    """Set fields of `params` (CommonParams of the wheel `x`) from a command line; the last of equal flags wins."""
    rest = iter(argv)
    for word in rest:
        # llama-server takes --ctx_size for --ctx-size.
        option = BY_FLAG.get(word.replace("_", "-") if word.startswith("--") else word)
        if option is None:
            raise UsageError(f"error: invalid argument: {word}")
        try:
            if option.read is not None:
                text = next(rest, None)
                if text is None:
                    raise ValueError("expected value for argument")
                value = option.read(text, x)
            else:
                value = option.value(x) if callable(option.value) else option.value
            for field in option.to.split():
                assign(params, field, value)
        except (ValueError, OverflowError, TypeError) as error:
            raise UsageError(f'error while handling argument "{word}": {error}') from None


def assign(params: Any, field: str, value: Any) -> None:
    """Set a field by its dotted path."""
    *path, name = field.split(".")
    for step in path:
        params = getattr(params, step)
    setattr(params, name, value)


def configure(argv: list[str], x: Any) -> Any:
    """CommonParams with llama-server's defaults and this command line. UsageError where it is wrong."""
    for variable in sorted(os.environ):
        if variable.startswith("LLAMA_ARG_"):
            raise UsageError(f'error while handling environment variable "{variable}": use the flag instead')
    params = x.CommonParams()
    params.port = 8080
    params.n_parallel = -1  # the engine's own "auto"; the wheel's default is one slot
    if os.environ.get("LLAMA_API_KEY"):
        params.api_keys = os.environ["LLAMA_API_KEY"].split(",")
    parse(argv, params, x)
    if not params.model.path:
        raise UsageError("error: --model is required")
    if params.embedding and params.n_batch > params.n_ubatch:
        params.n_batch = params.n_ubatch  # as llama-server does: an embedding's prompt is one batch
    return params


def main() -> int:
    """Serve until a signal ends the process. 1 where the command line or the start is wrong."""
    if {"-h", "--help", "--usage"} & set(sys.argv[1:]):
        print(HELP + "\n".join(shown(option) for option in OPTIONS))
        return 0
    import xllamacpp as x

    version = f"llamacpp_server.py: xllamacpp {x.__version__} (llama.cpp)"
    if "--version" in sys.argv[1:]:
        print(version)
        return 0
    try:
        params = configure(sys.argv[1:], x)
    except UsageError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    print(version, file=sys.stderr, flush=True)
    try:
        # SIGTERM keeps its default action. The wheel's own clean-up waits for the requests in flight, up to half a
        # minute; there is nothing to save, and the kernel takes back all memory at once.
        server = x.Server(params)
    except RuntimeError as error:
        print(f"llamacpp_server.py: {error}", file=sys.stderr, flush=True)
        return 1
    print(f"llamacpp_server.py: serving on {server.listening_address}", file=sys.stderr, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
