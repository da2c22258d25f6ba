"""bench.yml as AWX runs it: campaigns as text or data, slices that share a run, results that outlive the job."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.program import ROOT, Place, Program, eventually, server
from tests.stores import CREDENTIALS, S3

pytestmark = pytest.mark.slow
BROKEN = {"broken": {"server": server("--crash", "error: unrecognized arguments: --bad"), "expect": "bad_flag"}}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    service = S3()
    yield service
    service.stop()


def playbook(place: Place, variables: dict[str, Any], *words: str, **environment: str) -> Program:
    """Start bench.yml with these extra variables."""
    (place.folder / "vars.json").write_text(json.dumps(variables))
    return place.start(
        *(str(ROOT / "playbooks" / "bench.yml"), "-i", "inventory.yml", "-e", "@vars.json", *words),
        program=[str(Path(sys.executable).parent / "ansible-playbook")],
        env={"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_SHOW_CUSTOM_STATS": "1", **environment},
    )


def summary(program: Program) -> dict[str, Any]:
    """What a job hands on to the next one of its workflow."""
    told = program.stdout.rpartition("CUSTOM STATS:")[2]
    found = json.loads(re.sub(r"^[^{]*", "", told))["gpurun_summary"]
    assert isinstance(found, dict)
    return found


def stored(place: Place, url: str, *words: str, **environment: str) -> str:
    program = place.start(*words, "--store", url, env=environment)
    assert program.finish() == 0, program.stderr
    return program.stdout


def test_a_job_leaves_its_results_in_the_store_and_no_credential_anywhere(place: Place, s3: S3) -> None:
    """The campaign is a survey's text, the store an AWX credential's."""
    place.campaign(variants=BROKEN)
    variables = {"gpurun_campaign_text": (place.folder / "campaign.yml").read_text(), "gpurun_set": "rounds=2\n"}
    there = {"GPURUN_RESULTS_STORE": s3.url, **s3.environment}
    program = playbook(place, variables, **there)
    assert program.finish(180) == 0, program.stdout + program.stderr
    told = summary(program)
    assert told["verdicts"] == {"broken": {"chat": "failed"}}
    assert (told["exit_code"], told["store"], told["status"]) == (0, s3.url, "done")
    assert told["report"].startswith(f"{s3.url}/e2e/{told['run']}/hosts-") and told["report"].endswith("/report.html")
    leaked = [
        str(path)
        for path in place.folder.rglob("*")
        if path.is_file() and any(value.encode() in path.read_bytes() for value in CREDENTIALS.values())
    ]
    assert leaked == [] and not any(value in program.stdout + program.stderr for value in CREDENTIALS.values())
    shutil.rmtree(place.folder / "results")  # as the execution environment goes
    (run,) = json.loads(stored(place, s3.url, "runs", "--json", **s3.environment))["runs"]
    assert (run["id"], run["status"], run["samples"]) == (told["run"], "done", 4)
    page = place.folder / stored(place, s3.url, "report", "last", **s3.environment).strip()
    assert "bad_flag" in page.read_text()
    assert len(place.samples(told["run"])) == 4
    shutil.rmtree(place.folder / "results")
    resumed = place.bench("--resume", told["run"], "--set", "rounds=3", env=there)  # by the command line, from there
    assert resumed.finish(180) == 0, resumed.stderr
    assert [one["round"] for one in place.samples(told["run"])] == [1, 1, 2, 2, 3, 3]
    assert "2 samples" in resumed.wait_for("run .*samples")


def test_slices_of_hosts_are_one_run(place: Place) -> None:
    here = yaml.safe_load((place.folder / "inventory.yml").read_text())["gpu_hosts"]["hosts"]["here"]
    hosts = {name: {**here, "gpurun_home": f"{place.home}{end}"} for name, end in (("a", ""), ("b", " b"))}
    (place.folder / "inventory.yml").write_text(yaml.safe_dump({"gpu_hosts": {"hosts": hosts}}))
    place.campaign()
    campaign = yaml.safe_load((place.folder / "campaign.yml").read_text())
    url = f"file://{place.folder}/store".replace(" ", "%20")
    shared = {"gpurun_campaign": {**campaign, "results": {"store": url}}, "gpurun_run_id": "20261130-0900-a1f3"}
    for name in hosts:
        variables = {**shared, "gpurun_limit": name, "gpurun_results_dir": str(place.folder / f"of {name}")}
        program = playbook(place, variables)
        assert program.finish(180) == 0, program.stdout + program.stderr
    (run,) = json.loads(stored(place, url, "runs", "--json"))["runs"]
    assert (run["id"], run["status"], run["samples"]) == ("20261130-0900-a1f3", "done", 2)
    stored(place, url, "report", run["id"])
    assert {one["host"] for one in place.samples(run["id"])} == {"a", "b"}
    assert list(place.manifest(run["id"])["hosts"]) == ["a", "b"]
    assert (place.folder / "store" / "e2e" / run["id"] / "report.html").is_file()


def test_a_regression_fails_the_job(place: Place) -> None:
    slower = {"slower": {"server": server("--token-delay", "0.02")}}
    place.campaign(variants=slower, server=server("--token-delay", "0.001"), rounds=3)
    program = playbook(place, {"gpurun_campaign_file": "campaign.yml", "gpurun_fail_on": "regression"})
    assert program.finish(240) == 2, program.stdout
    assert summary(program)["verdicts"] == {"slower": {"chat": "worse"}}
    assert "regression; what was measured is in" in program.stdout


def test_a_campaign_is_given_once(place: Place) -> None:
    place.campaign()
    program = playbook(place, {"gpurun_campaign_file": "campaign.yml", "gpurun_campaign_text": "version: 1"})
    assert program.finish() == 2
    assert "several campaigns were given: gpurun_campaign_file, gpurun_campaign_text" in program.stdout
    assert not (place.folder / "results").exists()


def test_what_may_have_passed_is_measured_again(place: Place) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        place.campaign(server=server(port=stranger.getsockname()[1]), name="taken")
        program = playbook(place, {"gpurun_campaign_file": "campaign.yml"})
        results = place.folder / "results" / "taken"
        eventually(lambda: list(results.glob("*/samples/1/*/here/sample.json")))
    assert program.finish(180) == 0, program.stdout
    (first,) = results.glob("*/samples/1/*/here~1/sample.json")
    assert json.loads(first.read_text())["failure"]["class"] == "port_in_use"
    (again,) = results.glob("*/samples/1/*/here/sample.json")
    assert json.loads(again.read_text())["status"] == "measured"
    (events,) = results.glob("*/events.jsonl")
    assert "is measured again, the first time is kept: port_in_use" in events.read_text()


def test_a_store_that_takes_nothing_refuses_the_job_before_it_measures(place: Place) -> None:
    place.campaign(results={"store": "s3://bucket/runs"})
    environment = {**CREDENTIALS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    program = place.bench(env=environment)
    assert program.finish(120) == 4, program.stderr
    assert "the results store failed: Could not connect" in program.stderr
    assert "nothing was touched on a host" in program.stderr
    (manifest,) = (place.folder / "results" / "e2e").glob("*/manifest.json")
    assert json.loads(manifest.read_text())["exit_code"] == 4
    assert not (manifest.parent / "samples").exists()
    place.nothing_left()


def test_a_limit_that_leaves_the_conductor_out_is_told(place: Place) -> None:
    place.campaign()
    program = playbook(place, {"gpurun_campaign_file": "campaign.yml"}, "--limit", "here")
    assert program.finish() == 2
    assert "The limit `here` leaves localhost out, which conducts the run: set gpurun_limit instead" in program.stdout


def test_a_host_out_of_reach_fails_the_job_and_costs_the_others_nothing(place: Place) -> None:
    inventory = yaml.safe_load((place.folder / "inventory.yml").read_text())
    inventory["gpu_hosts"]["hosts"]["gone"] = {"ansible_host": "127.0.0.1", "ansible_port": 9}
    (place.folder / "inventory.yml").write_text(yaml.safe_dump(inventory))
    place.campaign()
    program = playbook(place, {"gpurun_campaign_file": "campaign.yml"}, "--limit", "all,localhost")
    assert program.finish(180) == 4, program.stdout  # ansible-playbook's own, for a host that it did not reach
    told = summary(program)
    assert (told["exit_code"], told["why"]) == (3, "host failed")
    lost = {one["host"]: (one["failure"] or {}).get("class") for one in place.samples(told["run"])}
    assert lost == {"here": None, "gone": "host_unreachable"}
    assert '"HostLost"' in (place.stored(told["run"]) / "events.jsonl").read_text()


def test_hosts_that_are_all_out_of_reach_are_a_verdict_too(place: Place) -> None:
    gone = {"ansible_host": "127.0.0.1", "ansible_port": 9}
    (place.folder / "inventory.yml").write_text(yaml.safe_dump({"gpu_hosts": {"hosts": {"gone": gone}}}))
    place.campaign()
    program = playbook(place, {"gpurun_campaign_file": "campaign.yml"})
    assert program.finish(120) != 0
    told = summary(program)
    assert (told["run"], told["exit_code"], told["why"], told["verdicts"]) == (None, 3, "host failed", {})
    assert "no host could be looked at, so that there is no run: gone" in program.stdout
    assert not (place.folder / "results").exists()


def test_a_run_that_could_be_prepared_nowhere_is_judged_and_cleaned_up(place: Place) -> None:
    inventory = yaml.safe_load((place.folder / "inventory.yml").read_text())
    inventory["gpu_hosts"]["hosts"]["here"]["uv_environment"] = {"UV_OFFLINE": "1", "UV_CACHE_DIR": "/nowhere"}
    inventory["gpu_hosts"]["hosts"]["here"]["gpurun_home"] = str(place.folder / "new home")
    (place.folder / "inventory.yml").write_text(yaml.safe_dump(inventory))
    place.campaign()
    program = playbook(place, {"gpurun_campaign_file": "campaign.yml"})
    assert program.finish(120) == 2, program.stdout
    told = summary(program)
    assert (told["exit_code"], told["why"]) == (3, "host failed")
    assert [one["failure"]["class"] for one in place.samples(told["run"])] == ["host_unreachable"]
    assert not (place.folder / "new home" / "lock.json").exists()
