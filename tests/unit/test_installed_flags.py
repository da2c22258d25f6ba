"""What a host's engines say of the planned flags: who is asked, who is refused, and who is left to the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpurun.cases import check
from gpurun.catalogue import shipped
from gpurun.installed_flags import questions, refuse
from gpurun.load import load_text
from gpurun.manifest import Controller
from gpurun.opening import open_run
from gpurun.plan import build
from gpurun.steps import pending
from gpurun.store import RunStore

CAMPAIGN = """version: 1
name: c
hosts: all
server:
  engine: {engine}
  model: {{path: /m.gguf}}
variants:
  longer: {{server: {{flags: {{ctx-size: 8192}}}}}}
  misspelt: {{server: {{flags: {{ctx-siz: 8192}}}}}}
  known: {{server: {{flags: {{parallel: many}}}}, expect: bad_flag}}
  theirs: {{server: {{flags: {{parallel: -7}}}}, expect: bad_flag}}
benchmarks: {{b: {{load: {{concurrency: 1, requests: 1}}, data: {{prompt_tokens: 1, output_tokens: 1}}}}}}
rounds: 2
"""
FACTS: dict[str, Any] = {"host": {"home": "/h", "commands": {"llama-server": "/usr/bin/llama-server"}}, "gpus": []}


def store_of(tmp_path: Path, engine: str) -> RunStore:
    campaign, cases = check(load_text(CAMPAIGN.format(engine=engine), "c.yml"))
    plan = build(campaign, cases, {"h": FACTS}, "20261130-0900-a1f3")
    text = campaign.document.text
    return open_run(plan, campaign_text=text, results_dir=tmp_path, controller=Controller.this(), facts={"h": FACTS})


def answer(version: str) -> dict[str, Any]:
    found = shipped("llamacpp", version)
    return {"engine": "llamacpp", "version": None, "options": [option.model_dump() for option in found.options]}


@pytest.mark.parametrize(
    ("engine", "wanted"),
    [
        (
            "llamacpp",
            {"binary": "/usr/bin/llama-server", "launcher": None, "help": ["/usr/bin/llama-server", "--help"]},
        ),
        (
            "llamacpp==2026.10.11549",
            {
                "binary": None,
                "launcher": "/h/engines/llamacpp-2026.10.11549/llamacpp_server.py",
                "cache": "/h/engines/llamacpp-2026.10.11549/options.json",
            },
        ),
    ],
)
def test_each_program_is_asked_once(tmp_path: Path, engine: str, wanted: dict[str, Any]) -> None:
    asked = questions(store_of(tmp_path, engine), "h")
    assert len(asked) == 1
    assert {key: asked[0][key] for key in wanted} == wanted


def test_what_the_parser_refuses_is_recorded_and_the_rest_is_measured(tmp_path: Path) -> None:
    store = store_of(tmp_path, "llamacpp")
    asked = questions(store, "h")
    refused, notes = refuse(store, "h", asked, [answer("b10434")])
    assert notes == []
    assert sorted((one.variant, one.round) for one in refused) == [
        *(("known", number) for number in (1, 2)),
        *(("misspelt", number) for number in (1, 2)),
    ]
    failure = next(one.failure for one in refused if one.variant == "misspelt")
    assert failure is not None
    assert (failure.klass, failure.phase, failure.expected) == ("bad_flag", "preflight", False)
    assert "no flag `--ctx-siz`" in failure.proof
    assert "did you mean `--ctx-size`?" in failure.advice
    assert all(one.failure and one.failure.expected for one in refused if one.variant == "known")
    left = {planned["variant"] for planned in pending(store, "h")}
    assert left == {"baseline", "longer", "theirs"}  # a number that the parser takes is for the engine to refuse


def test_an_engine_that_cannot_be_asked_refuses_nothing(tmp_path: Path) -> None:
    store = store_of(tmp_path, "llamacpp")
    before = pending(store, "h")
    refused, notes = refuse(store, "h", questions(store, "h"), [{"error": "no libcuda"}])
    assert refused == []
    assert notes == ["the flags of llamacpp are not checked beforehand: no libcuda"]
    assert pending(store, "h") == before


def test_an_engine_in_an_image_is_asked_in_a_container_of_it(tmp_path: Path) -> None:
    image = f"org/engine@sha256:{'0' * 64}"
    own = f"vllm\n  runtime: docker\n  image: {image}\n  container: {{mounts: ['/m:/m'], shm_size: 16g}}"
    (asked,) = questions(store_of(tmp_path, own), "h")
    assert asked["container"] == {"runtime": "docker", "image": image, "mounts": ["/m:/m"], "args": []}
    assert (asked["python"], asked["binary"], asked["launcher"]) == ("python3", None, None)
    assert asked["cache"].startswith("/h/options/vllm-")
