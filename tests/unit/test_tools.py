"""Load tools as data: the files keep their contract, a campaign gets their argv, and is told what they cannot do."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpurun.cases import check
from gpurun.errors import ConfigError
from gpurun.foreign import _PARSERS
from gpurun.load import load_text
from gpurun.plan import Plan, build
from gpurun.template import TOOL_FACTS, unknown_facts
from gpurun.tools import load_tool, tool_names

FACTS = {"h": {"host": {"name": "h", "cpus": 2, "home": "/h"}, "gpus": []}}
LOAD = {"concurrency": 2, "requests": 8}
RATE = {"request_rate": 1, "requests": 1}
DATA = {"prompt_tokens": 32, "output_tokens": 16, "seed": 7}
MODEL = {"wheel": "m==1", "file": "m/x.gguf", "name": "tiny"}


def campaign(server: dict[str, Any] | None = None, **benchmark: Any) -> dict[str, Any]:
    own = {"load": LOAD, "data": DATA, **benchmark}
    served = {"engine": "llamacpp==1", "model": MODEL, **(server or {})}
    return {"version": 1, "name": "t", "rounds": 1, "server": served, "benchmarks": {"b": own}}


def planned(folder: Path, *given: Any, **benchmark: Any) -> Plan:
    read, cases = check(load_text(yaml.safe_dump(campaign(*given, **benchmark)), str(folder / "c.yml")))
    return build(read, cases, FACTS, "run-1")


def load_of(folder: Path, *given: Any, **benchmark: Any) -> dict[str, Any]:
    return planned(folder, *given, **benchmark).samples[0].load


def complaints(folder: Path, *given: Any, **benchmark: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        planned(folder, *given, **benchmark)
    assert all(problem.mark is not None for problem in caught.value.problems)
    return [problem.message for problem in caught.value.problems]


@pytest.mark.parametrize("name", tool_names())
def test_the_file_keeps_the_contract(name: str) -> None:
    tool = load_tool(name)
    assert tool.name == name and tool.parser in _PARSERS
    assert not [fact for word in tool.argv for fact in unknown_facts(word, TOOL_FACTS)]
    for package in tool.install.packages if tool.install else []:
        assert "==" in package  # pinned
    assert bool(tool.argv) is (name != "script")


@pytest.mark.parametrize("name", ["sglang-bench", "vllm-bench", "guidellm", "aiperf"])
def test_what_is_asked_for_is_in_the_argv(tmp_path: Path, name: str) -> None:
    load = load_of(tmp_path, tool=name, tokenizer="/tok")
    line = " ".join(load["argv"])
    for part in ("http://127.0.0.1:@GPURUN_PORT@", "tiny", "/tok", "32", "16", "8", "/h/jobs/run-1/"):
        assert part in line
    assert load["argv"][0].startswith(f"/h/tools/{name}-{load_tool(name).version}/bin/")
    assert "" not in load["argv"]
    (need,) = planned(tmp_path, tool=name, tokenizer="/tok").needs["h"]["tools"]
    assert need["name"] == name and all("{{" not in package for package in need["packages"])


def test_the_model_is_the_tokenizer_where_it_is_a_folder(tmp_path: Path) -> None:
    server = {"engine": "vllm", "model": {"path": "/models/m", "name": "tiny"}}
    assert "--tokenizer=/models/m" in load_of(tmp_path, server, tool="vllm-bench")["argv"]
    said = complaints(tmp_path, tool="vllm-bench")
    assert said == ["`vllm-bench` counts tokens itself, so it needs `tokenizer`"]


def test_a_rate(tmp_path: Path) -> None:
    rate = {"request_rate": 2.5, "requests": 8, "max_concurrency": 3}
    argv = load_of(tmp_path, tool="sglang-bench", tokenizer="/t", load=rate)["argv"]
    assert {"--request-rate=2.5", "--max-concurrency=3"} <= set(argv)


@pytest.mark.parametrize(
    ("said", "benchmark"),
    [
        ("has no `text` data", {"tool": "aiperf", "data": {**DATA, "kind": "text"}}),
        ("not after a time", {"tool": "vllm-bench", "load": {**LOAD, "duration": "9s"}}),
        ("knows `poisson` arrivals", {"tool": "sglang-bench", "load": {**RATE, "arrival": "constant"}}),
        ("has no warm-up", {"tool": "guidellm", "load": {**LOAD, "warmup": 2}}),
        ("cannot limit what is in flight", {"tool": "guidellm", "load": {**RATE, "max_concurrency": 1}}),
        ("does one stream at a time", {"tool": "llama-bench"}),
    ],
)  # fmt: skip
def test_what_a_tool_cannot_do_is_an_error(tmp_path: Path, said: str, benchmark: dict[str, Any]) -> None:
    assert any(said in message for message in complaints(tmp_path, tokenizer="/t", **benchmark))


def test_llama_bench_takes_the_servers_flags(tmp_path: Path) -> None:
    one = {"concurrency": 1, "requests": 5}
    server = {"flags": {"ctk": "q8_0", "flash-attn": False, "t": 4}}
    load = load_of(tmp_path, server, tool="llama-bench", load=one)
    assert load["argv"][-6:] == ["--cache-type-k", "q8_0", "--flash-attn", "off", "--threads", "4"]
    assert (load["raw"], load["left"]["client.log"]) == ("client.log", "log")
    said = complaints(tmp_path, {"flags": {"parallel": 4}}, tool="llama-bench", load=one)
    assert said == ["`llama-bench` does not know the flag `parallel`, so it cannot measure it"]
    vllm = {"engine": "vllm", "model": {"path": "/m", "name": "tiny"}}
    assert "measures `llamacpp` only" in complaints(tmp_path, vllm, tool="llama-bench", load=one)[0]


MINE = {"file": "mine.py", "args": ["{{ base_url }}", "{{ load.requests }}"], "metrics": {"ttft_p50_ms": "x"}}


def test_a_script_is_planned_with_its_text_and_its_checksum(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("print(1)\n")
    plan = planned(tmp_path, tool="script", script={**MINE, "packages": ["requests==2.34.2"]})
    load, digest = plan.samples[0].load, hashlib.sha256(b"print(1)\n").hexdigest()
    assert load["argv"][0].startswith("/h/tools/script-") and load["argv"][0].endswith("/bin/python")
    assert load["argv"][1].endswith("/mine.py") and load["argv"][2:] == ["http://127.0.0.1:@GPURUN_PORT@", "8"]
    assert load["files"] == {"mine.py": digest} and plan.scripts == {digest: "print(1)\n"}
    assert plan.needs["h"]["tools"][0]["packages"] == ["requests==2.34.2"]
    content = plan.samples[0].content
    (tmp_path / "mine.py").write_text("print(2)\n")
    assert planned(tmp_path, tool="script", script=MINE).samples[0].content != content


def test_a_command_of_the_host(tmp_path: Path) -> None:
    script = {"command": ["/opt/bench", "--url", "{{ base_url }}"], "format": "csv", "metrics": {"ttft_p50_ms": "x"}}
    plan = planned(tmp_path, tool="script", script=script)
    assert plan.samples[0].load["argv"][:2] == ["/opt/bench", "--url"] and plan.needs["h"]["tools"] == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ({**MINE, "file": "none.py"}, "No such file or directory"),
        ({**MINE, "file": "mine.rb"}, "only .py and .sh files are run"),
        ({**MINE, "args": ["{{ host.cpus }}"]}, "the template uses the unknown fact `host`"),
        ({**MINE, "metrics": {"x": "y"}}, "there is no metric `x`"),
        ({**MINE, "format": "text", "metrics": {"ttft_p50_ms": "t: .*"}}, "needs exactly one group"),
        ({**MINE, "format": "text", "metrics": {"ttft_p50_ms": "("}}, "cannot be read"),
        ({**MINE, "scale": {"ttft_p99_ms": 2.0}}, "is not among `metrics`"),
        ({**MINE, "command": ["x"]}, "needs either `file` or `command`"),
        (None, "`script` and `tool: script` belong together"),
    ],
)
def test_a_script_that_is_wrong(tmp_path: Path, script: Any, said: str) -> None:
    (tmp_path / "mine.py").write_text("")
    benchmark = {"tool": "script"} | ({"script": script} if script else {})
    assert any(said in message for message in complaints(tmp_path, **benchmark))


def test_loads_on_one_server_have_prompts_of_their_own(tmp_path: Path) -> None:
    document = campaign() | {"matrix": {"axes": {"benchmarks.b.load.concurrency": [1, 4]}}, "rounds": 2}
    read, cases = check(load_text(yaml.safe_dump(document), str(tmp_path / "c.yml")))
    seeds = {(s.case, s.load["spec"]["data"]["seed"]) for s in build(read, cases, FACTS, "r").samples}
    assert len(seeds) == 2 and len({seed for _, seed in seeds}) == 2  # the same in every round
    assert load_of(tmp_path)["spec"]["data"]["seed"] == 7
