"""A benchmark script is checked while the server boots: whole, parses, imports, arguments, dry run."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from gpurun import script_check

_FILE = Path(__file__).parents[2] / "roles/load/files/check_script.py"
_SPEC = importlib.util.spec_from_file_location("check_script", _FILE)
assert _SPEC is not None and _SPEC.loader is not None
check_script = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(check_script)

GOOD = """
import argparse, json
try:
    import nothing_like_this
except ImportError:
    pass
parser = argparse.ArgumentParser()
parser.add_argument("--base-url", required=True)
parser.add_argument("--dry-run", action="store_true")
options = parser.parse_args()
print(json.dumps({"throughput": 1.5}))
"""


def asked(text: str, *args: str, name: str = "bench.py", **more: Any) -> dict[str, Any]:
    program = sys.executable if name.endswith(".py") else "bash"
    question: dict[str, Any] = {"argv": [program, f"/out/{name}", *args], "out": "/out", "files": {name: text}}
    question |= {"sha256": {name: hashlib.sha256(text.encode()).hexdigest()}, "env": {}, "dry_run": None, "limit_s": 20}
    found = check_script.check({**question, **more})
    assert isinstance(found, dict) and bool(found["problem"]) == bool(found["advice"])
    return found


def test_a_good_script_has_no_problem() -> None:
    assert asked(GOOD, "--base-url", "http://127.0.0.1:1")["problem"] is None
    assert asked("echo done\n", name="bench.sh")["problem"] is None


@pytest.mark.parametrize(
    ("text", "args", "name", "said"),
    [
        ("def f(:\n", [], "bench.py", "does not parse"),
        ("if then\n", [], "bench.sh", "does not parse"),
        ("import os\nimport no_such_package\n", [], "bench.py", "bench.py:2 imports `no_such_package`"),
        ("def f():\n    from no_such.thing import x\n", [], "bench.py", "imports `no_such`"),
        (GOOD, ["--base-ur", "x"], "bench.py", "does not know the option `--base-ur`"),
        ("import argparse\nraise SystemExit('broken')\n", [], "bench.py", "--help ended with 1: broken"),
    ],
)
def test_what_is_wrong_is_said(text: str, args: list[str], name: str, said: str) -> None:
    assert said in asked(text, *args, name=name)["problem"]


def test_it_sees_no_more_of_the_environment_than_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPURUN_SECRET_HF_TOKEN", "hf_planted")
    code = "import json, os; print(json.dumps({'said': sorted(os.environ)}))"
    found = asked(code, dry_run=[], env={"MINE": "1"})
    assert "MINE" in found["output"] and "PATH" in found["output"] and "SECRET" not in found["output"]


def test_a_changed_file_a_missing_program_and_one_that_does_not_end() -> None:
    assert "checksum" in asked(GOOD, sha256={"bench.py": "0" * 64})["problem"]
    missing = asked("", argv=["no-such-program", "--x"], files={}, sha256={})
    assert missing["problem"] == "no-such-program is not there"
    slow = asked("import argparse, time\ntime.sleep(60)\n", limit_s=0.5)
    assert "had not ended after 0.5 s" in slow["problem"]


def test_a_script_without_help_is_not_run_and_that_is_noted() -> None:
    found = asked("raise SystemExit('it measures')\n")
    assert found["problem"] is None and "not checked" in found["notes"][0]


def test_the_output_of_a_dry_run_has_to_give_the_metrics() -> None:
    wanted = {"format": "json", "metrics": {"output_tok_per_s": "throughput"}, "scale": {}}
    load = {"tool": "script", "parser": "script", "parse": wanted, "spec": {"requests": 1}}
    answer = {"problem": None, "advice": None, "notes": [], "output": '{"throughput": 1.5}'}
    assert script_check.failure({"load": load}, answer) is None
    found = script_check.failure({"load": load}, {**answer, "output": '{"speed": 1.5}'})
    assert found is not None and (found["class"], found["phase"]) == ("client_error", "preflight")
    assert "output_tok_per_s" in found["proof"] or "throughput" in found["proof"]


def test_a_dry_run_gives_its_output() -> None:
    found = asked(GOOD, dry_run=["--base-url", "x", "--dry-run"])
    assert (found["problem"], found["output"]) == (None, '{"throughput": 1.5}\n')
    assert "dry run ended with 2" in asked(GOOD, dry_run=["--nonsense"])["problem"]
    assert "wrote no raw.json" in asked(GOOD, dry_run=["--base-url", "x"], written="raw.json")["problem"]
