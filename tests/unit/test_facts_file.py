"""Facts of hosts that a person wrote by hand: what is missing is filled in, what is wrong is said with host and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpurun.cases import read_campaign
from gpurun.errors import ConfigError
from gpurun.facts_file import read_facts
from gpurun.plan import build

ROOT = Path(__file__).resolve().parents[2]
GPU = {"name": "NVIDIA H100 80GB HBM3", "memory_total_mib": 81559, "compute_capability": "9.0"}


def written(folder: Path, facts: Any) -> str:
    (folder / "facts.json").write_text(facts if isinstance(facts, str) else json.dumps(facts))
    return str(folder / "facts.json")


def test_the_least_that_a_gpu_needs_makes_a_plan(tmp_path: Path) -> None:
    facts = read_facts(written(tmp_path, {"h": {"host": {"commands": {"docker": None}}, "gpus": [GPU, GPU] * 4}}))
    assert [gpu["index"] for gpu in facts["h"]["gpus"]] == [*range(8)]
    campaign, cases = read_campaign(ROOT / "campaigns/h100-8x.yml", (), ())
    assert build(campaign, cases, facts, "run").samples


@pytest.mark.parametrize(
    ("known", "key"),
    [
        ({"gpus": [{}]}, "gpus[0].name"),
        ({"gpus": "x"}, "gpus"),
        ({"gpus": [{**GPU, "memory_total_mib": "97887 MiB"}]}, "gpus[0].memory_total_mib"),
        ({"gpus": [{**GPU, "memory_total_mib": -5}]}, "gpus[0].memory_total_mib"),
        ({"gpus": [{**GPU, "memory_total_mib": float("inf")}]}, "gpus[0].memory_total_mib"),
        ({"gpus": [{**GPU, "compute_capability": "new"}]}, "gpus[0].compute_capability"),
        ({"models": [1]}, "models"),
        ({"models": {"m": {"available_gib": "a"}}}, "models.m.available_gib"),
        ({"models": {"m": {"available_gib": 0, "total_gib": 0}}}, "models.m.total_gib"),
        ({"models": {"m": {"available_gib": 95, "total_gib": 94}}}, "models.m"),
        ({"host": 1}, "host"),
    ],
)
def test_what_is_wrong_is_said_with_host_and_key(tmp_path: Path, known: Any, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_facts(written(tmp_path, {"alpha": {"host": {}, **known}}))
    assert "host `alpha`: `" + key + "`: " in error.value.render()


@pytest.mark.parametrize("facts", [{}, [], {"hosts": {}}, {"hosts": 1}, "{", "[" * 100_000])
def test_a_file_without_hosts_is_refused(tmp_path: Path, facts: Any) -> None:
    with pytest.raises(ConfigError):
        read_facts(written(tmp_path, facts))
