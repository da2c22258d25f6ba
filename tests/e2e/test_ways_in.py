"""The same campaign by other ways: bare ansible-playbook, an installed wheel; and what a regression does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.program import ROOT, Place, Program, server

VARIANTS = {"broken": {"server": server("--crash", "error: unrecognized arguments: --bad"), "expect": "bad_flag"}}


def shape(value: Any) -> Any:
    """A document without its numbers and names: what its schema is."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


def finished(place: Place, program: Program) -> Path:
    """The results directory of a run that ended well."""
    assert program.finish(120) == 0, program.stderr + program.stdout
    (directory,) = (place.folder / "results" / "e2e").iterdir()
    assert place.leftovers() == []
    assert not (place.home / "lock.json").exists()
    return directory


@pytest.mark.slow
def test_ansible_playbook_alone_does_the_same(place: Place, tmp_path: Path) -> None:
    by_hand = Place(tmp_path / "by hand", place.home)
    by_hand.campaign(variants=VARIANTS)
    (by_hand.folder / "vars.json").write_text(
        json.dumps(
            {
                "gpurun_campaign_file": str(by_hand.folder / "campaign.yml"),
                "gpurun_results_dir": str(by_hand.folder / "results"),
            }
        )
    )
    program = by_hand.start(
        *(str(ROOT / "playbooks" / "bench.yml"), "-i", "inventory.yml", "-e", "@vars.json"),
        program=[str(Path(sys.executable).parent / "ansible-playbook")],
        env={"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
    )
    one = finished(by_hand, program)
    place.campaign(variants=VARIANTS)
    other = finished(place, place.bench())
    for name in ("result.json", "manifest.json", "plan.json"):
        first, second = (json.loads((directory / name).read_text()) for directory in (one, other))
        for document in (first, second):
            document.pop("command", None)
            findings = document.get("findings", [])  # how busy the machine is may change between the two
            findings[:] = [finding for finding in findings if finding["rule"] != "busy"]
            for sample in document["samples"] if name == "result.json" else ():
                sample.pop("taints")  # a machine that others use too may mark one of them
                for sensed in [metric for metric in sample["metrics"] if metric.startswith("host_")]:
                    sample["metrics"].pop(sensed)  # read once a second, which a load this short may miss
            for facts in document["hosts"].values() if name == "manifest.json" else ():
                facts.pop("skew_s", None)  # only the command line asks for the time twice
        assert shape(first) == shape(second), name
    files = [sorted(str(path.relative_to(directory)) for path in directory.rglob("*")) for directory in (one, other)]
    assert [name for name in files[0] if "~" not in name] == [name for name in files[1] if "~" not in name]


@pytest.mark.slow
def test_a_task_that_fails_without_the_command_line_leaves_no_server(place: Place) -> None:
    place.campaign(variants=VARIANTS, rounds=1)
    variables = {
        "gpurun_campaign_file": str(place.folder / "campaign.yml"),
        "gpurun_results_dir": str(place.folder / "results"),
        "load_wait_s": 0,  # no task can be retried every 0 seconds
    }
    (place.folder / "vars.json").write_text(json.dumps(variables))
    program = place.start(
        *(str(ROOT / "playbooks" / "bench.yml"), "-i", "inventory.yml", "-e", "@vars.json"),
        program=[str(Path(sys.executable).parent / "ansible-playbook")],
        env={"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
    )
    assert program.finish() == 2, program.stdout
    (result,) = (place.folder / "results").glob("*/*/result.json")
    failures = [sample["failure"] for sample in json.loads(result.read_text())["samples"]]
    assert failures
    assert "division by zero" in failures[0]["proof"]
    assert place.leftovers() == []


@pytest.mark.slow
def test_an_installed_wheel_needs_no_checkout(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "an environment"
    wheels = tmp_path / "wheels"
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(wheels), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    uv = [str(Path(sys.executable).parent / "uv"), "pip", "install", "--quiet", "--python", str(python), str(wheel)]
    subprocess.run(uv, check=True)
    where = [str(python), "-c", "import gpurun; print(gpurun.__file__)"]
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    installed = subprocess.run(where, check=True, capture_output=True, text=True, cwd=tmp_path, env=clean).stdout
    assert installed.startswith(str(folder))
    place.campaign(variants=VARIANTS)
    program = place.bench(program=[str(folder / "bin" / "gpurun")], env={"PYTHONPATH": ""})
    directory = finished(place, program)
    assert len(list(directory.glob("samples/1/*/here/sample.json"))) == 2
    shipped = place.start("validate", "campaigns/quickstart.yml", program=[str(folder / "bin" / "gpurun")])
    assert shipped.finish() == 0, shipped.stderr


@pytest.mark.slow
def test_a_regression_is_6_when_it_is_asked_for(place: Place) -> None:
    place.campaign(
        variants={"slower": {"server": server("--token-delay", "0.02")}},
        server=server("--token-delay", "0.001"),
        rounds=3,
    )
    program = place.bench("--fail-on", "regression", "--json")
    assert program.finish(180) == 6, program.stderr
    document = json.loads(program.stdout)
    verdicts = {(one["variant"], one["metric"]): one["verdict"] for one in document["effects"]}
    assert verdicts["slower", "output_tok_per_s"] == "worse"
    again = place.start("compare", document["run"]["id"], "--fail-on", "regression")
    assert again.finish() == 6, again.stderr
