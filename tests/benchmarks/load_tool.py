"""How exact and how fast is the builtin load client? Against the C stub of tests/stub, which writes down the truth.

    python tests/benchmarks/load_tool.py [--rounds 3] [--cases 1 32 256 rate]
        [--tool NAME | NAME=ENVIRONMENT ...]

With `--tool`, the other load tools (sglang-bench, vllm-bench, guidellm, aiperf) run side by side in the same rounds,
each from an environment that is made of what its data file lists, and removed afterwards, or from one that is there
(~/.gpurun/tools/NAME-VERSION), with the argv of that file; their figures are those that gpurun reads out of their
results. The truth is that of the last requests that the stub saw: some tools try the server first. vllm-bench takes
9 GB of disk. All four, `--rounds 1`: about 10 minutes on two idle cores once they are installed.

For concurrency 1, 32 and 256: first token 50 ms after a request is read, then one each 5 ms, 64 tokens; the error is
the client's figure minus the stub's own log of the same requests. Then the request rate at saturation: no delays, one
token, concurrency 64. Where aiohttp can be imported, a plain aiohttp client runs in the same rounds, for a paired
comparison. Medians over rounds, with the range. All on the cores of this machine: note the load average that is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpurun import foreign, tools
from gpurun.template import render

HERE = Path(__file__).resolve()
# Byte-level, so that it knows every text. Tools count with it; the stub counts words.
TOKENIZER = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
bpe.train_from_iterator(["the quick brown fox jumps over the lazy dog"], trainer)
PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>").save_pretrained(sys.argv[1])
"""
FILES = HERE.parents[2] / "roles" / "load_tool" / "files"
CASES = {
    "1": (1, 20, 64, 50, 5),
    "32": (32, 320, 64, 50, 5),
    "256": (256, 1500, 64, 50, 5),
    "rate": (64, 12800, 1, 0, 0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument(
        "--aiohttp-client", nargs=4, metavar=("PORT", "CONCURRENCY", "REQUESTS", "TOKENS"), help="internal"
    )
    parser.add_argument("--tool", action="append", default=[], metavar="NAME[=ENVIRONMENT]", help="another load tool")
    options = parser.parse_args()
    if options.aiohttp_client:
        asyncio.run(aiohttp_client(*map(int, options.aiohttp_client)))
        return
    clients = ["loadgen"] + (["aiohttp"] if importlib.util.find_spec("aiohttp") else [])
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="gpurun-bench-") as folder:
        stub = Path(folder) / "stub"
        subprocess.run(["gcc", "-O2", "-o", stub, HERE.parents[1] / "stub" / "stub.c"], check=True)
        for name in options.tool:
            clients.append(name if "=" in name else f"{name}={installed(name, Path(folder))}")
        tokenizer = Path(folder) / "tokenizer"
        if options.tool:
            python = Path(clients[-1].partition("=")[2]) / "bin/python"
            subprocess.run([python, "-c", TOKENIZER, tokenizer], check=True, stderr=subprocess.DEVNULL)
        for number in range(options.rounds):
            for case in options.cases:
                for client in clients:
                    load = os.getloadavg()[0]
                    found.setdefault((case, client), []).append(
                        {**measure(stub, Path(folder), case, client, tokenizer), "load": load}
                    )
            print(
                f"round {number + 1} of {options.rounds} done, load average {os.getloadavg()[0]:.1f}", file=sys.stderr
            )
    columns = ["ttft_err_ms", "ttft_p99_err_ms", "tpot_err_ms", "tok_per_s_err_percent", "req_per_s", "cpu_s_per_1000"]
    columns += ["startup_s", "cpu_s", "load"]
    print(f"{'case':5} {'client':12} " + " ".join(f"{name:>24}" for name in columns))
    for (case, client), runs in found.items():
        cells = [[run[name] for run in runs] for name in columns]
        shown = (f"{statistics.median(cell):.4g} ({min(cell):.4g}..{max(cell):.4g})" for cell in cells)
        print(f"{case:5} {client.partition('=')[0]:12} " + " ".join(f"{text:>24}" for text in shown))


def installed(name: str, folder: Path) -> Path:
    """An environment of what a tool's data file lists."""
    install, place = tools.load_tool(name).install, folder / name
    assert install is not None
    own = {"tool": {"version": tools.load_tool(name).version}}
    packages = [render(package, own) for package in install.packages]
    uv, began = str(Path(sys.executable).with_name("uv")), time.monotonic()
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, place], check=True)
    exact = ["--no-deps"] if install.exact else []
    subprocess.run([uv, "pip", "install", "-q", "--python", place / "bin/python", *exact, *packages], check=True)
    print(f"{name} installed in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return place


def measure(stub: Path, folder: Path, case: str, client: str, tokenizer: Path) -> dict[str, float]:
    """One run of one client against a fresh stub: its figures beside the stub's truth."""
    concurrency, requests, tokens, first_ms, gap_ms = CASES[case]
    port, log, raw = free_port(), folder / "log", folder / "raw.json"
    server = subprocess.Popen([stub, str(port), str(first_ms), str(gap_ms), log])
    try:
        wait_for(port)
        if client == "loadgen":
            spec = folder / "spec.json"
            spec.write_text(
                json.dumps(
                    {
                        "base_url": f"http://127.0.0.1:{port}",
                        "api": "completions",
                        "model": "stub",
                        "load": {"concurrency": concurrency},
                        "requests": requests,
                        "data": {"prompt_tokens": 32, "output_tokens": tokens, "seed": 7},
                    }
                )
            )
            argv = [sys.executable, "-m", "loadgen", str(spec), str(raw)]
        elif "=" in client:
            tool, argv, out = called(client, str(tokenizer), port, CASES[case], Path(tempfile.mkdtemp(dir=folder)))
        else:
            argv = [sys.executable, str(HERE), "--aiohttp-client", *map(str, (port, concurrency, requests, tokens))]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.monotonic_ns()
        env = {**os.environ, **tool.env} if "=" in client else None
        done = subprocess.run(argv, check=True, cwd=out if env else FILES, env=env, stdout=subprocess.PIPE)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    finally:
        server.terminate()
        server.wait()
    truth = [list(map(int, line.split())) for line in log.read_text().splitlines()][-requests:]
    assert len(truth) == requests, f"{client}: {len(truth)} of {requests} requests in the stub's log"
    if "=" in client:
        seen = figures(foreign.parse(planned(tool, CASES[case]), (out / tool.output).read_text()).metrics)
    else:
        answers = json.loads(done.stdout) if client == "aiohttp" else []
        if client == "loadgen":
            answers = [[r["sent"], *r["chunks"]] for r in json.loads(raw.read_text())["requests"] if r["ok"]]
        assert len(answers) == requests, f"{client}: {len(answers)} answers"
        seen = summary([[0, *((at - sent) * 1e3 for at in chunks)] for sent, *chunks in answers])
        span_s = max(chunks[-1] for _, *chunks in answers) - min(sent for sent, *_ in answers)
        seen["tok_per_s"] = requests * tokens / span_s
    real = summary([[0, *(offset / 1e6 for offset in offsets)] for _, *offsets in truth])
    first, last = min(read_at for read_at, *_ in truth), max(read_at + offsets[-1] for read_at, *offsets in truth)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "ttft_err_ms": seen["ttft"] - real["ttft"],
        "ttft_p99_err_ms": seen["ttft_p99"] - real["ttft_p99"],
        "tpot_err_ms": seen["tpot"] - real["tpot"],
        "tok_per_s_err_percent": 100 * (seen["tok_per_s"] * (last - first) / 1e9 / (requests * tokens) - 1),
        "req_per_s": requests / ((last - first) / 1e9),
        "startup_s": (first - started) / 1e9,
        "cpu_s_per_1000": cpu_s * 1000 / requests,
        "cpu_s": cpu_s,
    }


def called(
    client: str, tokenizer: str, port: int, case: tuple[int, ...], out: Path
) -> tuple[tools.Tool, list[str], Path]:
    """Another tool, the argv that its data file gives for a case, and its working folder."""
    name, _, place = client.partition("=")
    tool, (concurrency, requests, tokens, *_) = tools.load_tool(name), case
    load = {"concurrency": concurrency, "request_rate": None, "arrival": "poisson", "max_concurrency": None}
    context = {
        "tool": {"version": tool.version, "dir": place, "bin": f"{place}/bin", "python": f"{place}/bin/python"},
        "base_url": f"http://127.0.0.1:{port}",
        "endpoint": "/v1/completions",
        "api": "completions",
        "model": {"path": tokenizer, "name": "stub"},
        "tokenizer": tokenizer,
        "load": {**load, "requests": requests, "duration_s": None, "warmup": 0},
        "data": {"kind": "synthetic", "prompt_tokens": 32, "output_tokens": tokens, "seed": 7, "path": None},
        "extra_body": {"ignore_eos": True},
        "out": str(out),
    }
    return tool, [word for item in tool.argv if (word := render(item, context))], out


def planned(tool: tools.Tool, case: tuple[int, ...]) -> dict[str, Any]:
    """What a parser has to know of the load."""
    data = {"kind": "synthetic", "prompt_tokens": 32, "output_tokens": case[2]}
    return {"tool": tool.name, "parser": tool.parser, "spec": {"load": {"concurrency": case[0]}, "data": data}}


def figures(metrics: dict[str, float]) -> dict[str, float]:
    """The same figures as `summary`, as gpurun reads them out of a tool's result."""
    names = {"ttft": "ttft_mean_ms", "ttft_p99": "ttft_p99_ms", "tpot": "tpot_mean_ms", "tok_per_s": "output_tok_per_s"}
    return {name: metrics.get(metric, 0.0) for name, metric in names.items()}


def summary(requests: list[list[float]]) -> dict[str, float]:
    """Mean and p99 TTFT and mean TPOT, in ms, of [start, token, token, ...] in ms."""
    first = sorted(tokens[1] - tokens[0] for tokens in requests)
    per_token = [(tokens[-1] - tokens[1]) / (len(tokens) - 2) for tokens in requests if len(tokens) > 2]
    return {
        "ttft": statistics.fmean(first),
        "ttft_p99": first[int(0.99 * (len(first) - 1))],
        "tpot": statistics.fmean(per_token) if per_token else 0.0,
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 5
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


async def aiohttp_client(port: int, concurrency: int, requests: int, tokens: int) -> None:
    """What one would write by hand: a session, some tasks, lines from the body, a clock read after each."""
    import aiohttp

    prompts = iter([" ".join(["word"] * 31 + [str(number)]) for number in range(requests)])
    answers: list[list[float]] = []

    async def work(session: Any) -> None:
        for prompt in prompts:
            body = {
                "model": "stub",
                "prompt": prompt,
                "max_tokens": tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            times = [time.monotonic()]
            # The stub looks for "max_tokens": without a space after it.
            async with session.post("/v1/completions", data=json.dumps(body, separators=(",", ":"))) as answer:
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        event = json.loads(line[6:])
                        if event["choices"] and event["choices"][0]["text"]:
                            times.append(time.monotonic())
            answers.append(times)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector) as session:
        await asyncio.gather(*(work(session) for _ in range(concurrency)))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
