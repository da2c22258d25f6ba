"""Jobs as AWX runs them: from a checkout, streamed to a worker with the execution environment's packages and nothing of
this process's environment, against booted hosts. What they leave is in the store; all else is deleted after each."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.awx.job import ROOT, Credential, Event, Job, Template, inventory
from tests.e2e.fleet import BIND, Desk, inventory_of, jobs_of_gpurun, server, warm_cache
from tests.e2e.program import eventually
from tests.hosts import HostFleet

from gpurun.remote import Remote
from gpurun.store import RunStore

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(900)]
PLANTED = "planted-5ecret-value"
CHAT = {"load": {"concurrency": 1, "requests": 2}, "data": {"prompt_tokens": 8, "output_tokens": 8}}
CAMPAIGN: dict[str, Any] = {
    "version": 1,
    "name": "fleet",
    "server": {**server("--token-delay", "{{ 0.05 }}"), "secrets": ["HF_TOKEN"]},
    "variants": {"half": {"server": {**server("--token-delay", "{{ 0.1 }}")}}},
    "benchmarks": {"chat": CHAT},
    "rounds": 3,
    "timeouts": {"start": "30s", "sample": "30s", "stop": "5s"},
}
SLOW: dict[str, Any] = {
    **CAMPAIGN,
    "server": server("--token-delay", "0.5"),
    "variants": {},
}  # samples of eight seconds


@pytest.fixture(scope="module")
def two(bootable: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostFleet]:
    with HostFleet(2, bind=BIND, uv_cache=warm_cache(tmp_path_factory.mktemp("uv"))) as fleet:
        yield fleet


class Site:
    """An AWX with an inventory of booted hosts, credentials, and a results store."""

    def __init__(self, folder: Path, ee: Path, project: Path, fleet: HostFleet) -> None:
        self.folder, self.ee, self.project, self.fleet = folder, ee, project, fleet
        self.jobs: list[Job] = []
        self.store = folder / "store"
        self.environment = {"GPURUN_RESULTS_STORE": f"file://{self.store}"}  # a folder that every node mounts
        self.credentials = [Credential("gpurun engine tokens", {"hf_token": PLANTED})]
        self.common = "-F none -o StrictHostKeyChecking=yes -o GlobalKnownHostsFile=none"
        self.common += f" -o UserKnownHostsFile={fleet.known_hosts}"

    def job(self, name: str, hosts: list[str] | None = None, timeout_s: int = 0, **answers: Any) -> Job:
        """A launch of a template of awx/objects.yml; `hosts` are those of a slice."""
        known = inventory_of(self.fleet)["gpu_hosts"]
        variables = known["vars"]
        # The user comes by the machine credential, its key by an agent, and AWX has sockets of its own.
        for name_of in ("ansible_user", "ansible_ssh_private_key_file", "ansible_control_path_dir"):
            variables.pop(name_of)
        variables["ansible_ssh_common_args"] = self.common
        chosen = {host: own for host, own in known["hosts"].items() if hosts is None or host in hosts}
        template = Template.named(
            f"gpurun {name}",
            inventory(chosen, variables),
            key=self.fleet.key,
            environment=self.environment,
            credentials=self.credentials,
            timeout_s=timeout_s,
        )
        number = len(self.jobs) + 1
        self.jobs.append(Job(self.folder / f"job-{number}", self.ee, self.project, template, number, **answers))
        return self.jobs[-1]

    def end(self) -> None:
        """No job outlives the test."""
        for job in self.jobs:
            job.end()

    def bench(self, campaign: dict[str, Any], **answers: Any) -> Job:
        return self.job("bench", **{"gpurun_campaign_text": text(campaign), "gpurun_campaign_file": "", **answers})

    def run(self, name: str) -> RunStore:
        """A run, from the store: nothing else is left of it."""
        return Remote(f"file://{self.store}").find(self.folder / "fetched", name)


def text(campaign: dict[str, Any]) -> str:
    return yaml.safe_dump(campaign, sort_keys=False)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, as AWX's own are: ssh's sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="awx_", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def site(folder: Path, ee: Path, project: Path, two: HostFleet) -> Iterator[Site]:
    here = Site(folder, ee, project, two)
    yield here
    here.end()
    assert [jobs_of_gpurun(host) for host in two.hosts] == [[], []]


def planned(run: RunStore) -> set[tuple[Any, ...]]:
    return {(one.host, one.round, one.variant, one.case, one.content, one.status) for one in run.samples()}


@pytest.mark.parametrize("which", ["ee", "newer_ee"])
def test_a_job_measures_what_the_command_line_does(
    which: str, request: pytest.FixtureRequest, folder: Path, project: Path, two: HostFleet
) -> None:
    site = Site(folder, request.getfixturevalue(which), project, two)
    job = site.bench(CAMPAIGN).run()
    assert job.status == "successful", job.stdout
    run = site.run("awx-1")

    desk = Desk(folder / "desk", inventory_of(two))
    desk.campaign(**CAMPAIGN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", PLANTED)
        program = desk.bench("--json")
    assert program.finish(240) == 0, program.stderr
    other = RunStore.open(desk.folder / "results" / "fleet" / program.run)

    assert planned(run) == planned(other) and len(run.samples()) == 12
    (result,) = site.store.glob("fleet/awx-1/*/result.json")
    documents = [json.loads(program.stdout), json.loads(result.read_text())]
    shapes = [
        {
            "schema": one["schema"],
            "keys": sorted(one),
            "samples": sorted(one["samples"][0]),
            "metrics": {tuple(sorted(sample["metrics"])) for sample in one["samples"]},
            "effects": sorted(
                (e["variant"], e["benchmark"], e["case"], e["metric"], e["rounds"]) for e in one["effects"]
            ),
            "verdict": [e["verdict"] for e in one["effects"] if e["metric"] == "output_tok_per_s"],
        }
        for one in documents
    ]
    assert shapes[0] == shapes[1]
    assert shapes[0]["verdict"] == ["worse"]
    lines = [(one.directory / "events.jsonl").read_text().splitlines() for one in (run, other)]
    kinds = [{json.loads(line)["event"] for line in told} for told in lines]
    # What only a progress line needs, the command line alone tells: AWX shows tasks.
    assert kinds[0] == kinds[1] - {"StageStarted", "SampleStage", "SampleProgress"}

    # What goes on to the next nodes of a workflow: small, and told in words.
    summary = job.artifacts["gpurun_summary"]
    assert summary["verdicts"] == {"half": {"chat": "worse"}}
    assert summary["run"] == "awx-1" and summary["store"] == f"file://{site.store}"
    assert len(json.dumps(job.artifacts)) < 2000
    assert_nowhere(PLANTED, job, site)


def assert_nowhere(secret: str, job: Job, site: Site) -> None:
    """In no event, artifact, log or result. AWX itself puts it into a file in the private data directory, for this job
    alone, and deletes that with it."""
    assert secret not in json.dumps(job.events)
    left = {name: content for name, content in job.left.items() if not name.startswith("env/gpurun-engine-tokens-")}
    assert not [name for name, content in left.items() if secret.encode() in content]
    stored = [path for path in site.store.rglob("*") if path.is_file()]
    assert stored and not [path for path in stored if secret.encode() in path.read_bytes()]
    for host in site.fleet.hosts:
        assert not host.inside(["sh", "-c", f"grep -rl {secret} /root /tmp /var/log 2>/dev/null || true"]).strip()


def is_task(event: Event, task: str, kind: str = "runner_on_ok") -> bool:
    return bool(event["event"] == kind and event["event_data"].get("task") == task)


def second_sample(job: Job) -> None:
    """Until one sample is in the store and the load is on the next."""
    job.wait_for(lambda event: is_task(event, "Push the sample"))
    before = len([event for event in job.events if is_task(event, "Start the server")])
    job.wait_for(lambda event: len([e for e in job.events if is_task(e, "Start the server")]) > before)


def test_what_a_lost_node_had_measured_is_kept_and_gone_on_with(site: Site) -> None:
    host = site.fleet[0]
    job = site.bench(SLOW, hosts=[host.name]).start()
    second_sample(job)
    job.lose_node()
    assert jobs_of_gpurun(host), "nothing was left that has to end"
    run = site.run("awx-1")
    first = {(one.round, one.started_at, one.status) for one in run.samples()}
    assert {status for _, _, status in first} == {"measured"}
    eventually(lambda: not jobs_of_gpurun(host), run.plan["samples"][0]["server"]["life_s"] + 20)
    # Of a controller on another machine, only silence tells that it is dead: a job would wait for its hosts.
    assert site.job("stop", gpurun_answer_run="awx-1").run().status == "successful"
    again = site.bench(SLOW, hosts=[host.name], gpurun_resume="awx-1").run()
    assert again.status == "successful", again.stdout
    now = site.run("awx-1").samples()
    assert len(now) == 3 and {one.status for one in now} == {"measured"}
    assert first < {(one.round, one.started_at, one.status) for one in now}


def test_a_job_over_its_time_limit_and_what_it_left_is_stopped(site: Site) -> None:
    host = site.fleet[1]
    job = site.bench({**SLOW, "rounds": 30}, hosts=[host.name], timeout_s=60).run(200)
    assert job.status == "timeout", job.stdout
    assert {one.status for one in site.run("awx-1").samples()} == {"measured"}
    assert site.job("stop", gpurun_answer_run="awx-1").run().status == "successful"
    assert jobs_of_gpurun(host) == []


def test_slices_of_the_hosts_are_one_run(site: Site) -> None:
    campaign = {**CAMPAIGN, "rounds": 1}
    slices = [site.bench(campaign, hosts=[host.name], awx_workflow_job_id=70).start() for host in site.fleet.hosts]
    for job in slices:
        assert job.finish().status == "successful", job.stdout
    assert {one.host for one in site.run("awx-70").samples()} == {host.name for host in site.fleet.hosts}
    report = site.job("report", gpurun_report_run="awx-70").run()
    assert report.status == "successful", report.stdout
    assert all(host.name in (site.store / "fleet/awx-70/report.md").read_text() for host in site.fleet.hosts)


def test_credentials_of_awx_reach_store_and_hosts(site: Site) -> None:
    """Each as its type injects it: results go to a host by sftp, hosts' keys are verified although AWX says not to."""
    measured, storing = site.fleet.hosts
    known_hosts = site.fleet.known_hosts.read_text()
    login = {"key": site.fleet.key.read_text(), "known_hosts": known_hosts}
    url = f"sftp://root@{storing.address}/srv/results"
    store = Credential("gpurun results store (sftp)", {"url": url, **login})
    tokens = Credential("gpurun engine tokens", {"hf_token": PLANTED})
    site.environment, site.common = {}, "-F none -o GlobalKnownHostsFile=none"

    site.credentials = [store, tokens, Credential("gpurun host keys", {"known_hosts": known_hosts})]
    job = site.bench({**CAMPAIGN, "rounds": 1}, hosts=[measured.name]).run()
    assert job.status == "successful", job.stdout
    there = storing.inside(["find", "/srv/results", "-name", "sample.json"]).split()
    assert len(there) == 2 and "/fleet/awx-1/" in there[0]
    assert PLANTED not in storing.inside(["sh", "-c", "cat $(find /srv/results -type f)"])

    site.credentials = [store, tokens, Credential("gpurun host keys", {"known_hosts": "# none"})]
    stranger = site.job("preflight", [measured.name]).run()
    assert stranger.status == "failed" and "Host key verification failed" in stranger.stdout


_PROVISION = {
    "provision_cuda": "13.0",
    "gpurun_answer_engines": "vllm llamacpp",
    "gpurun_answer_toolkit": "no",
    "gpurun_answer_plan": "yes",
}


def test_answers_to_the_survey_of_provision_are_understood(site: Site) -> None:
    answers = {"provision_driver_branch": "580", "provision_reboot": "never"}
    job = site.job("provision", **answers, **_PROVISION).run()
    decided = [one["event_data"]["res"] for one in job.events if is_task(one, "Decide by what is there")]
    assert any("provision" in one for one in decided), job.stdout
    assert "Traceback" not in job.stdout and "boolean" not in job.stdout


def test_a_mistake_in_a_survey_is_told_in_the_job(site: Site) -> None:
    wrong = site.bench({**CAMPAIGN, "rouns": 2}).run()
    assert wrong.status == "failed" and "rouns" in wrong.stdout and "Traceback" not in wrong.stdout
    none = site.bench({}, gpurun_campaign_text="").run()
    assert none.status == "failed" and "gpurun_campaign_text" in none.stdout


def test_the_repository_is_a_project_as_it_is(project: Path) -> None:
    """Nothing that a project update would fetch, no prompt that would stop a job, no path of one machine."""
    assert (project / "ansible.cfg").is_file()
    for name in ("roles", "collections"):
        assert not (project / name / "requirements.yml").exists()
    for path in [*project.glob("playbooks/*.yml"), *project.glob("roles/**/*.yml"), project / "ansible.cfg"]:
        content = path.read_text()
        assert "vars_prompt" not in content and "ansible.builtin.pause" not in content, path
        assert str(ROOT) not in content, path
