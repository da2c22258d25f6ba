"""awx/configure.yml makes what a campaign needs in AWX, once: run for real, against the part of AWX's API it uses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.awx.api import TOKEN, Awx
from tests.awx.collection import collections
from tests.awx.job import objects

ROOT = Path(__file__).parents[2]
SITE: dict[str, Any] = {
    "gpurun_awx_project_url": "https://git.example.com/gpurun.git",
    "gpurun_awx_image": "images.example.com/gpurun-ee:1",
    "gpurun_awx_hosts": {"gpu-01": {"ansible_host": "192.0.2.11"}, "gpu-02": None},
    "gpurun_awx_schedule_enabled": True,
}
pytestmark = pytest.mark.slow


def configure(awx: Awx, folder: Path, **site: Any) -> subprocess.CompletedProcess[str]:
    (folder / "site.yml").write_text(yaml.safe_dump(site))
    env = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(collections()),
        "CONTROLLER_HOST": awx.url,
        "CONTROLLER_OAUTH_TOKEN": TOKEN,
    }
    playbook = [str(Path(sys.executable).with_name("ansible-playbook")), str(ROOT / "awx" / "configure.yml")]
    argv = [*playbook, "-e", f"@{folder / 'site.yml'}"]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Awx, Path]]:
    folder = tmp_path_factory.mktemp("awx")
    with Awx(ROOT) as awx:
        done = configure(awx, folder, **SITE)
        assert done.returncode == 0, done.stdout + done.stderr
        yield awx, folder


def test_what_is_created(configured: tuple[Awx, Path]) -> None:
    awx, _ = configured
    names = {kind: {item["name"] for item in items if "name" in item} for kind, items in awx.objects.items()}
    verbs = {f"gpurun {verb}" for verb in ("preflight", "provision", "verify", "bench", "report", "stop")}
    assert names["job_templates"] == verbs
    assert len(names["credential_types"]) == 4
    environment = awx.named("execution_environments", "gpurun")
    for template in awx.objects["job_templates"]:
        assert template["execution_environment"] == environment["id"]
        assert template["timeout"] > 0 and template["use_fact_cache"] is False
    assert awx.names("hosts", awx.named("groups", "gpu_hosts"), "hosts") == ["gpu-01", "gpu-02"]
    assert awx.named("projects", "gpurun")["scm_url"] == SITE["gpurun_awx_project_url"]
    schedule = awx.named("schedules", "gpurun, every night")
    assert schedule["unified_job_template"] == awx.named("job_templates", "gpurun bench")["id"]
    assert schedule["enabled"] is True and "FREQ=DAILY" in schedule["rrule"]


def test_the_workflow_asks_a_person_before_it_provisions(configured: tuple[Awx, Path]) -> None:
    awx, _ = configured
    order, node = ["preflight"], awx.named("workflow_job_template_nodes", "preflight")
    while following := [
        name
        for relation in ("success_nodes", "always_nodes", "failure_nodes")
        for name in awx.names("workflow_job_template_nodes", node, relation)
    ]:
        order += following
        node = awx.named("workflow_job_template_nodes", following[0])
    assert order == ["preflight", "approval", "provision", "verify", "bench", "report"]
    approval = awx.named("workflow_job_template_nodes", "approval")
    assert approval["related"]["unified_job_template"].startswith("/api/v2/workflow_approval_templates/")


def test_a_second_run_changes_only_what_has_changed_in_the_data(configured: tuple[Awx, Path]) -> None:
    awx, folder = configured
    before = {item["url"]: dict(item) for items in awx.objects.values() for item in items}
    done = configure(awx, folder, **{**SITE, "gpurun_awx_image": "images.example.com/gpurun-ee:2"})
    assert done.returncode == 0 and "changed=1 " in done.stdout, done.stdout
    environment = awx.named("execution_environments", "gpurun")
    before[environment["url"]]["image"] = "images.example.com/gpurun-ee:2"
    assert {item["url"]: dict(item) for items in awx.objects.values() for item in items} == before


def test_what_has_no_default_is_asked_for(tmp_path: Path) -> None:
    with Awx(ROOT) as awx:
        done = configure(awx, tmp_path)
        assert done.returncode != 0 and "gpurun_awx_project_url" in done.stdout
        assert awx.writes == []


def test_a_survey_answers_what_a_playbook_reads() -> None:
    """A variable that nothing reads would be a question without effect."""
    data = objects()
    texts = [path.read_text() for folder in ("roles", "playbooks") for path in (ROOT / folder).rglob("*.yml")]
    for template in data["gpurun_awx_templates"]:
        assert (ROOT / template["playbook"]).is_file(), template["playbook"]
        given = yaml.safe_dump(template.get("extra_vars", {}))
        for question in template.get("survey", []):
            read = [text for text in [*texts, given] if question["variable"] in text]
            assert read, f"{template['name']}: {question['variable']}"
