"""docs/awx.md, step by step, by somebody with a fresh checkout and an AWX (the part of its API that this takes)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.awx.api import TOKEN, Awx
from tests.awx.job import checkout
from tests.e2e.test_docs import DOCS, blocks
from tests.stores import begin, measure

from gpurun import steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_every_command_of_the_awx_page_runs(tmp_path: Path) -> None:
    here = checkout(tmp_path / "gpurun")
    url = f"file://{tmp_path / 'store'}"
    run = begin(tmp_path / "results", url, run="awx-17")
    measure(run, "alpha")
    assert steps.close_run(run).not_stored == ""
    said: list[str] = []
    with Awx(here) as awx:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        env = {**os.environ, "PATH": path, "CONTROLLER_HOST": awx.url, "CONTROLLER_OAUTH_TOKEN": TOKEN, "NO_COLOR": "1"}
        env |= {"GPURUN_RESULTS_STORE": url, "ANSIBLE_CONFIG": str(here / "ansible.cfg")}
        for language, text in blocks("awx.md"):
            if language == "yaml":
                (here / text.split("\n", 1)[0].removeprefix("# ")).write_text(text)
            for command in re.findall(r"^\$ (.*)$", text, re.MULTILINE) if language == "console" else []:
                argv = ["bash", "-euo", "pipefail", "-c", command]
                done = subprocess.run(argv, cwd=here, env=env, capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
                said.append(done.stdout)
    assert len(said) == len(re.findall(r"^\$ ", (DOCS / "awx.md").read_text(), re.MULTILINE)) == 7
    assert "changed=0 " in said[4]
    assert "awx-17" in said[5] and said[6].strip().endswith("report.html")
    site = yaml.safe_load((here / "my-site.yml").read_text())
    assert awx.named("projects", "gpurun")["scm_url"] == site["gpurun_awx_project_url"]
    assert {item["name"] for item in awx.objects["hosts"]} == set(site["gpurun_awx_hosts"])
