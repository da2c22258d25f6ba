"""What `gpurun init` writes is right by gpurun's own and Ansible's judgement, and nothing of the user's is replaced."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from gpurun.commands import init, validate


@pytest.fixture
def written(tmp_path: Path) -> Path:
    place = tmp_path / "a new folder"
    done = CliRunner().invoke(init.command, [str(place)], catch_exceptions=False, standalone_mode=False)
    assert done.output.count("wrote ") == 3
    assert f"gpurun doctor -i '{place}/inventory.yml'" in done.output.splitlines()[-1]
    return place


def test_the_campaign_is_right(written: Path) -> None:
    CliRunner().invoke(validate.command, [str(written / "campaign.yml")], catch_exceptions=False, standalone_mode=False)
    first = (written / "campaign.yml").read_text().splitlines()[0]
    schema = json.loads((written / first.partition("$schema=")[2]).read_text())
    jsonschema.validate(yaml.safe_load((written / "campaign.yml").read_text()), schema)


def test_the_campaign_is_right_with_all_its_comments_taken_in(written: Path) -> None:
    text = (written / "campaign.yml").read_text()
    for line in ("  # no-such-thing:", "# matrix:", "  # env:"):
        assert line in text
    lines = text.splitlines()
    begun = lines.index("version: 1")
    known = [line.replace("# ", "", 1) if line.lstrip().startswith("# ") else line for line in lines[begun:]]
    prose = ("One of:", "hf:", "revision:", "secrets:")
    whole = "\n".join(line for line in known if not line.strip().startswith(prose))
    (written / "whole.yml").write_text(whole)
    CliRunner().invoke(validate.command, [str(written / "whole.yml")], catch_exceptions=False, standalone_mode=False)


def test_ansible_reads_the_inventory(written: Path) -> None:
    program = str(Path(sys.executable).with_name("ansible-inventory"))
    command = [program, "-i", str(written / "inventory.yml"), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["gpu_hosts"]["hosts"] == ["localhost"]


def test_what_is_there_stays(written: Path) -> None:
    (written / "campaign.yml").write_text("mine")
    (written / "inventory.yml").unlink()
    done = CliRunner().invoke(init.command, [str(written)], catch_exceptions=False, standalone_mode=False)
    assert (written / "campaign.yml").read_text() == "mine"
    assert (written / "inventory.yml").exists()
    assert [line.split()[0] for line in done.output.splitlines()] == ["wrote", "kept", "kept", "next:"]
