"""A whole campaign whose servers run in containers of a real Docker engine, or Podman, and nothing left of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.containers import Engine
from tests.e2e.program import SERVER, Place

SECRET = "planted-5ecret-value"


def server(engine: Engine, image: str, **container: Any) -> dict[str, Any]:
    """The small server in a container, from a folder that is mounted there."""
    argv = ["python3", "-u", "/source/tests/e2e/server.py", "--port", "{{ port }}"]
    mounts = {"mounts": [f"{SERVER.parents[2]}:/source:ro"], **container}
    return {"engine": "command", "runtime": engine.runtime, "image": image, "container": mounts, "argv": argv}


@pytest.mark.hosts
@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_campaign_in_containers(place: Place, runtime: str, request: pytest.FixtureRequest) -> None:
    engine: Engine = request.getfixturevalue(runtime)
    folder = place.folder / "a model"
    folder.mkdir()
    common = {
        **server(engine, engine.image, shm_size="64m"),
        "model": {"path": str(folder), "name": "stub"},
        "secrets": ["HF_TOKEN"],
    }
    look = "import os, sys; sys.exit(f'{os.environ[\"HF_TOKEN\"][:7]} {sorted(os.listdir(sys.argv[1]))}')"
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    variants = {
        "slower": {"server": {"argv": [*common["argv"], "--token-delay", "0.01"]}},
        "crash": {"server": {"argv": ["python3", "-c", look, "{{ model.path }}"]}, "expect": "unknown"},
        "away": {"server": {"image": f"no/such@sha256:{'0' * 64}"}, "expect": "missing_dependency"},
    }
    place.campaign(server=common, variants=variants)
    bench = place.bench("--json", env={**engine.env, "HF_TOKEN": SECRET})
    assert bench.finish(240) == 0, bench.stderr
    samples = {sample["variant"]: sample for sample in place.samples(bench.run)}
    assert {name: sample["status"] for name, sample in samples.items()} == {
        "baseline": "measured",
        "slower": "measured",
        "crash": "failed",
        "away": "failed",
    }
    assert samples["baseline"]["engine"]["image"] == engine.image
    (log,) = place.stored(bench.run).glob("samples/*/crash*/*/server.log")
    assert "['config.json', 'model.safetensors']" in log.read_text()
    away = samples["away"]["failure"]
    assert f"`{runtime} pull` must fetch the image no/such@sha256" in away["proof"]
    assert json.loads(bench.stdout)["run"]["status"] == "done"
    everything = [path for path in place.folder.rglob("*") if path.is_file()]
    assert [path for path in everything if SECRET.encode() in path.read_bytes()] == []
    assert engine.containers() == []
    place.nothing_left()


def test_tag_is_refused_before_anything_is_touched(place: Place, engine: Engine) -> None:
    place.campaign(server=server(engine, engine.tag))
    refused = place.bench(env={"DOCKER_HOST": engine.host})
    assert refused.finish() == 2
    assert "a tag may be another image tomorrow" in refused.stderr
    assert f"docker image inspect --format '{{{{.RepoDigests}}}}' {engine.tag}" in refused.stderr
    place.campaign(server=server(engine, engine.tag, allow_tags=True))
    bench = place.bench(env={"DOCKER_HOST": engine.host})
    assert bench.finish(180) == 0, bench.stderr
    assert engine.containers() == []
