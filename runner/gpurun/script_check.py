"""A benchmark script before it measures: what its host is asked while the server boots, and what the answer means."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from gpurun.errors import GpurunError
from gpurun.foreign import parse

LIMIT_S = 10.0  # for each of its steps
_PROGRAM = "{source}\nprint(json.dumps(check({question!r})))\n"


def program(source: str, planned: Mapping[str, Any], run: str) -> str:
    """What the host's Python is given: `source` (check_script.py) and the question about a planned sample's script."""
    load = planned["load"]
    question = {
        "argv": load["argv"],
        "out": f"{load['home']}/jobs/{run}/{load['job']}",
        "files": load["files"],
        "sha256": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in load["files"].items()},
        "env": {**load["env"], "GPURUN_HOME": load["home"], "GPURUN_JOB": f"{run}/prepare"},
        "dry_run": load["dry_run"],
        "written": None if load["output"] == "log" else load["output"],
        "limit_s": LIMIT_S,
    }
    return _PROGRAM.format(source=source, question=question)


def failure(planned: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, str] | None:
    """Why the script cannot measure, as a sample's failure; None if nothing speaks against it."""
    problem, advice = answer["problem"], answer["advice"]
    if problem is None and answer["output"] is not None:
        try:
            parse(planned["load"], answer["output"])
        except GpurunError as error:
            problem, advice = f"its dry run does not give the metrics: {error}", "see `script.metrics` of the benchmark"
    if problem is None:
        return None
    return {"class": "client_error", "phase": "preflight", "proof": str(problem), "advice": str(advice)}
