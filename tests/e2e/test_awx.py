"""Jobs as AWX runs them: from a checkout, streamed to a worker with the execution environment's packages and nothing of
this process's environment, against booted hosts. What they leave is in the store; all else is deleted after each."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from fsspec.core import url_to_fs
from tests.awx.job import ROOT, Credential, Event, ExecutionEnvironment, Job, Template, inventory
from tests.e2e.fleet import BIND, Desk, inventory_of, jobs_of_gpurun, server, warm_cache
from tests.e2e.program import eventually
from tests.hosts import HostFleet, TestHost
from tests.stores import CREDENTIALS, S3

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
def three(bootable: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostFleet]:
    """Two to work on, and one whose job is lost."""
    with HostFleet(3, bind=BIND, uv_cache=warm_cache(tmp_path_factory.mktemp("uv"))) as fleet:
        yield fleet


class Site:
    """An AWX with an inventory of booted hosts, credentials, and a results store."""

    def __init__(
        self, folder: Path, ee: ExecutionEnvironment, project: Path, fleet: HostFleet, hosts: list[TestHost]
    ) -> None:
        self.folder, self.ee, self.project, self.fleet, self.hosts = folder, ee, project, fleet, hosts
        self.jobs: list[Job] = []
        self.store = f"file://{folder}/store"  # a folder that every node mounts
        self.environment = {"GPURUN_RESULTS_STORE": self.store}
        self.credentials = [Credential("gpurun engine tokens", {"hf_token": PLANTED})]
        known_hosts = folder / "known_hosts"
        known_hosts.write_text(fleet.known_hosts.read_text())
        self.common = "-F none -o StrictHostKeyChecking=yes -o GlobalKnownHostsFile=none"
        self.common += f" -o UserKnownHostsFile={known_hosts}"

    def job(self, name: str, hosts: list[TestHost] | None = None, timeout_s: int = 0, **answers: Any) -> Job:
        """A launch of a template of awx/objects.yml; `hosts` are those of a slice."""
        known = inventory_of(self.fleet)["gpu_hosts"]
        variables = known["vars"]
        variables["ansible_ssh_common_args"] = self.common
        chosen = {host.name: known["hosts"][host.name] for host in hosts or self.hosts}
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
        """No job outlives the test, and nothing of one is on a host."""
        for job in self.jobs:
            job.end()
        assert [jobs_of_gpurun(host) for host in self.hosts] == [[] for _ in self.hosts]

    def bench(self, campaign: dict[str, Any], hosts: list[TestHost] | None = None, **answers: Any) -> Job:
        by_text = {"gpurun_campaign_text": text(campaign), "gpurun_campaign_file": ""}
        return self.job("bench", hosts, **{**by_text, **answers})

    def run(self, name: str) -> RunStore:
        """A run, from the store: nothing else is left of it."""
        return Remote(self.store).find(self.folder / "fetched", name)


def text(campaign: dict[str, Any]) -> str:
    return yaml.safe_dump(campaign, sort_keys=False)


@contextmanager
def short_folder() -> Iterator[Path]:
    """As AWX's own are: ssh's sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="awx_", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def site(ee: ExecutionEnvironment, project: Path, three: HostFleet) -> Iterator[Site]:
    with short_folder() as folder:
        here = Site(folder, ee, project, three, three.hosts[:2])
        yield here
        here.end()


@pytest.fixture(scope="module")
def lost(ee: ExecutionEnvironment, project: Path, three: HostFleet) -> Iterator[tuple[Site, float]]:
    """A job whose node is lost while it measures, and when (monotonic s). What becomes of it takes minutes: other tests
    go on meanwhile."""
    with short_folder() as folder:
        here = Site(folder, ee, project, three, three.hosts[2:])
        job = here.bench(SLOW).start()
        second_sample(job)
        job.lose_node()
        yield here, time.monotonic()
        if jobs_of_gpurun(here.hosts[0]):  # the test of what becomes of it has failed, or was not asked for
            here.job("stop", gpurun_answer_run="all").run()
        here.end()


def planned(run: RunStore) -> set[tuple[Any, ...]]:
    return {(one.host, one.round, one.variant, one.case, one.content, one.status) for one in run.samples()}


@pytest.fixture(scope="module")
def by_command_line(three: HostFleet, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunStore, dict[str, Any]]:
    """The run of the campaign that `gpurun bench` makes, and what it prints."""
    inventory = inventory_of(three)
    del inventory["gpu_hosts"]["hosts"][three[2].name]
    desk = Desk(tmp_path_factory.mktemp("desk"), inventory)
    desk.campaign(**CAMPAIGN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", PLANTED)
        program = desk.bench("--json")
    assert program.finish(240) == 0, program.stderr
    return RunStore.open(desk.folder / "results" / "fleet" / program.run), json.loads(program.stdout)


def test_a_node_is_lost_while_it_measures(lost: tuple[Site, float]) -> None:
    here, _ = lost
    assert jobs_of_gpurun(here.hosts[0]), "nothing was left that has to end"
    assert {one.status for one in here.run("awx-1").samples()} == {"measured"}


@pytest.mark.parametrize("which", ["ee", "newer_ee"])
def test_a_job_measures_what_the_command_line_does(
    which: str,
    request: pytest.FixtureRequest,
    site: Site,
    by_command_line: tuple[RunStore, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With each ansible-core; once with a folder as store, once with a service that speaks S3."""
    site.ee = request.getfixturevalue(which)
    if which == "newer_ee":
        s3 = S3()
        request.addfinalizer(s3.stop)
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        site.store, site.environment = s3.url, {}
        names = {
            "access_key": "AWS_ACCESS_KEY_ID",
            "secret_key": "AWS_SECRET_ACCESS_KEY",
            "endpoint": "AWS_ENDPOINT_URL",
        }
        inputs = {"url": s3.url, "region": "us-east-1", **{key: s3.environment[name] for key, name in names.items()}}
        site.credentials.append(Credential("gpurun results store (S3)", inputs))
    job = site.bench(CAMPAIGN).run()
    assert job.status == "successful" and "not of this checkout's" not in job.stdout, job.stdout
    run, (other, printed) = site.run("awx-1"), by_command_line
    assert planned(run) == planned(other) and len(run.samples()) == 12
    files, place = url_to_fs(f"{site.store}/fleet/awx-1")
    (result,) = map(json.loads, files.cat(files.glob(f"{place}/*/result.json")).values())
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
        for one in (printed, result)
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
    assert summary["run"] == "awx-1" and summary["store"] == site.store
    assert len(json.dumps(job.artifacts)) < 2000
    for secret in (PLANTED, *CREDENTIALS.values()):
        assert_nowhere(secret, job, site, run)


def assert_nowhere(secret: str, job: Job, site: Site, run: RunStore) -> None:
    """In no event, artifact, log or result. AWX itself puts it into a file in the private data directory, for this job
    alone, and deletes that with it."""
    assert secret not in json.dumps(job.events)
    assert [name for name, _ in job.left if name.endswith("/command")]
    assert {name for name, content in job.left if secret.encode() in content} <= job.given
    stored = [path for path in run.directory.rglob("*") if path.is_file()]
    assert stored and not [path for path in stored if secret.encode() in path.read_bytes()]
    for host in site.hosts:
        assert not host.inside(["sh", "-c", f"grep -rl {secret} /root /tmp /var/log 2>/dev/null || true"]).strip()


def is_task(event: Event, task: str, kind: str = "runner_on_ok") -> bool:
    return bool(event["event"] == kind and event["event_data"].get("task") == task)


def second_sample(job: Job) -> None:
    """Until one sample is in the store and the load is on the next."""
    job.wait_for(lambda event: is_task(event, "Push the sample"))
    before = len([event for event in job.events if is_task(event, "Start the server")])
    job.wait_for(lambda event: len([e for e in job.events if is_task(e, "Start the server")]) > before)


def test_a_job_that_is_cancelled_or_over_its_time_leaves_what_the_next_can_stop(site: Site) -> None:
    campaign = {**SLOW, "rounds": 30}
    jobs = [site.bench(campaign, [host], timeout_s=s).start() for host, s in zip(site.hosts, (0, 60), strict=True)]
    second_sample(jobs[0])
    assert jobs[0].cancel().status == "canceled", jobs[0].stdout
    assert jobs[1].finish(120).status == "timeout", jobs[1].stdout
    for number in (1, 2):
        assert {one.status for one in site.run(f"awx-{number}").samples()} == {"measured"}
    assert jobs_of_gpurun(site.hosts[0]), "nothing was left that has to end"
    assert site.job("stop", gpurun_answer_run="all").run().status == "successful"


def test_slices_of_the_hosts_are_one_run(site: Site) -> None:
    campaign = {**CAMPAIGN, "rounds": 1}
    slices = [site.bench(campaign, [host], awx_workflow_job_id=70).start() for host in site.hosts]
    for job in slices:
        assert job.finish().status == "successful", job.stdout
    assert {one.host for one in site.run("awx-70").samples()} == {host.name for host in site.hosts}
    report = site.job("report", gpurun_report_run="awx-70").run()
    assert report.status == "successful", report.stdout
    whole = (site.folder / "store/fleet/awx-70/report.md").read_text()
    assert all(host.name in whole for host in site.hosts)


def test_credentials_of_awx_reach_store_and_hosts(site: Site) -> None:
    """Each as its type injects it: results go to a host by sftp, hosts' keys are verified although AWX says not to."""
    measured, storing = site.hosts
    known_hosts = site.fleet.known_hosts.read_text()
    login = {"key": site.fleet.key.read_text(), "known_hosts": known_hosts}
    url = f"sftp://root@{storing.address}/srv/results"
    store = Credential("gpurun results store (sftp)", {"url": url, **login})
    tokens = Credential("gpurun engine tokens", {"hf_token": PLANTED})
    site.environment, site.common = {}, "-F none -o GlobalKnownHostsFile=none"

    site.credentials = [store, tokens, Credential("gpurun host keys", {"known_hosts": known_hosts})]
    job = site.bench({**CAMPAIGN, "rounds": 1}, [measured]).run()
    assert job.status == "successful", job.stdout
    there = storing.inside(["find", "/srv/results", "-name", "sample.json"]).split()
    assert len(there) == 2 and "/fleet/awx-1/" in there[0]
    assert PLANTED not in storing.inside(["sh", "-c", "cat $(find /srv/results -type f)"])

    site.credentials = [store, tokens, Credential("gpurun host keys", {"known_hosts": "# none"})]
    stranger = site.job("preflight", [measured]).run()
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


def test_verify_tells_later_jobs_what_it_found(site: Site) -> None:
    job = site.job("verify").run()
    assert job.status == "successful", job.stdout  # without a GPU there is little to find
    assert set(job.artifacts["gpurun_verify"]) == {host.name for host in site.hosts}


def test_a_mistake_in_a_survey_is_told_in_the_job(site: Site) -> None:
    wrong = site.bench({**CAMPAIGN, "rouns": 2}).run()
    assert wrong.status == "failed" and "rouns" in wrong.stdout and "Traceback" not in wrong.stdout
    none = site.bench({}, gpurun_campaign_text="").run()
    assert none.status == "failed" and "gpurun_campaign_text" in none.stdout


def test_hosts_out_of_reach_are_a_verdict_too(site: Site) -> None:
    """And a project that is not of the execution environment's commit is told."""
    site.project = Path(shutil.copytree(site.project, site.folder / "_8__gpurun"))
    (site.project / "roles/run/tasks/lose.yml").write_text("---\n")
    for host in site.hosts:
        host.cut()
    try:
        job = site.bench(CAMPAIGN).run()
    finally:
        for host in site.hosts:
            host.heal()
    assert job.status == "failed" and "no host could be looked at" in job.stdout, job.stdout
    assert "is not of this checkout's commit: roles/run/tasks/lose.yml differs" in " ".join(job.stdout.split())
    summary = job.artifacts["gpurun_summary"]
    assert (summary["run"], summary["exit_code"], summary["why"]) == (None, 3, "host failed")


def test_a_host_that_drops_out_while_it_is_the_only_one(site: Site) -> None:
    (host,) = hosts = site.hosts[:1]
    job = site.bench(SLOW, hosts).start()
    second_sample(job)
    host.cut()
    try:
        assert job.finish().status == "failed", job.stdout
    finally:
        host.heal()
    summary = job.artifacts["gpurun_summary"]
    assert (summary["run"], summary["exit_code"], summary["why"]) == ("awx-1", 3, "host failed")
    told = {(one.round, one.failure and one.failure.klass) for one in site.run("awx-1").samples()}
    assert {(1, None), (3, "host_unreachable")} <= told, told
    assert site.job("stop", hosts, gpurun_answer_run="awx-1").run().status == "successful"


def test_the_repository_is_a_project_as_it_is(project: Path) -> None:
    """Nothing that a project update would fetch, no prompt that would stop a job, no path of one machine."""
    assert (project / "ansible.cfg").is_file()
    for name in ("roles", "collections"):
        assert not (project / name / "requirements.yml").exists()
    for path in [*project.glob("playbooks/*.yml"), *project.glob("roles/**/*.yml"), project / "ansible.cfg"]:
        content = path.read_text()
        assert "vars_prompt" not in content and "ansible.builtin.pause" not in content, path
        assert str(ROOT) not in content, path


def test_what_a_lost_node_left_ends_and_a_relaunch_goes_on_with_the_run(lost: tuple[Site, float]) -> None:
    """By limits alone: nobody stops anything; the new job waits until the lost one has been silent for long enough."""
    here, at = lost
    run = here.run("awx-1")
    first = {(one.round, one.started_at, one.status) for one in run.samples()}
    eventually(lambda: not jobs_of_gpurun(here.hosts[0]), run.plan["samples"][0]["server"]["life_s"])
    again = here.bench(SLOW, gpurun_resume="awx-1").run()
    assert again.status == "successful", again.stdout
    assert time.monotonic() - at < 600, "it waited for the lease"
    now = here.run("awx-1").samples()
    assert len(now) == 3 and {one.status for one in now} == {"measured"}
    assert first < {(one.round, one.started_at, one.status) for one in now}
