"""Try an all-reduce over a host's GPUs, before any model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from gpurun import host_python, smoke, steps

_PROGRAM = Path(__file__).parents[2] / "engine" / "files" / "allreduce.py"


class ActionModule(ActionBase):
    """`gpurun_allreduce: {run_dir}` -> `refused` (samples that were recorded as failed), `notes` and `answers`."""

    _VALID_ARGS = frozenset({"run_dir"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        host = (task_vars or {})["inventory_hostname"]
        store = steps.open_store(self._task.args["run_dir"])
        asked = smoke.questions(store, host) if host in store.plan["hosts"] else []
        python = str((store.manifest.hosts.get(host) or {"host": {"python": {"path": ""}}})["host"]["python"]["path"])
        answers = [self._ask(python, one["question"]) for one in asked]
        refused, notes = smoke.refuse(store, asked, answers)
        told = [sample.model_dump(mode="json", by_alias=True) for sample in refused]
        return {"changed": False, "refused": told, "notes": notes, "answers": answers}

    def _ask(self, python: str, question: dict[str, Any]) -> dict[str, Any]:
        program = smoke.program(_PROGRAM.read_text(encoding="utf-8"), question)
        found = host_python.ask(self._low_level_execute_command, python, program, "try an all-reduce")
        assert isinstance(found, dict)
        return found
