"""Look at a benchmark script on the host that will run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from gpurun import host_python, script_check, steps

_SOURCE = Path(__file__).parents[2] / "load" / "files" / "check_script.py"


class ActionModule(ActionBase):
    """`gpurun_check_script: {run_dir, sample}` -> `failure` (null: it may measure; else a sample's) and `notes`."""

    _VALID_ARGS = frozenset({"run_dir", "sample"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        planned = self._task.args["sample"]
        store = steps.open_store(self._task.args["run_dir"])
        # Of another host that sends the load, the Python that its modules run on is not known here.
        own = store.manifest.hosts[planned["host"]]["host"]["python"]["path"]
        python = "python3" if planned["load"].get("host") else str(own)
        program = script_check.program(_SOURCE.read_text(encoding="utf-8"), planned, store.manifest.run)
        answer = host_python.ask(self._low_level_execute_command, python, program, "look at the script")
        return {"changed": False, "failure": script_check.failure(planned, answer), "notes": answer["notes"]}
