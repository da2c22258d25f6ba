"""Check the flags of a host's servers against what its engines take, before any model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from gpurun import host_python, installed_flags, steps
from gpurun.launch import home_of

_ROLES = Path(__file__).parents[2]
_READER = _ROLES / "engine/files/engine_options.py"
_WORKER = _ROLES / "uv/module_utils/gpurun_worker.py"
_PROGRAM = """
import json, os
os.environ.update({marks!r})
reader, worker = {{"__name__": "reader"}}, {{"__name__": "worker"}}
exec({reader!r}, reader)
exec({worker!r}, worker)
print(json.dumps(reader["read"]({asked!r}, {reader!r}, worker["carry_on"])))
"""


class ActionModule(ActionBase):
    """`gpurun_check_flags: {run_dir}` -> `refused` (samples that were recorded as failed) and `notes`."""

    _VALID_ARGS = frozenset({"run_dir"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        host = (task_vars or {})["inventory_hostname"]
        store = steps.open_store(self._task.args["run_dir"])
        asked = installed_flags.questions(store, host) if host in store.plan["hosts"] else []
        if not asked:
            return {"changed": False, "refused": [], "notes": []}
        known = store.manifest.hosts[host]
        # Of this run: stopping it ends what works for it.
        marks = {"GPURUN_HOME": home_of(known), "GPURUN_JOB": f"{store.manifest.run}/prepare"}
        answers = self._ask(str(known["host"]["python"]["path"]), asked, marks)
        refused, notes = installed_flags.refuse(store, host, asked, answers)
        told = [sample.model_dump(mode="json", by_alias=True) for sample in refused]
        return {"changed": bool(told), "refused": told, "notes": notes}

    def _ask(self, python: str, asked: list[dict[str, Any]], marks: dict[str, str]) -> list[dict[str, Any]]:
        """What the host's engines answer.

        Each call is short; what takes longer (an engine is imported for the first time) goes on in a worker there.
        """
        program = _PROGRAM.format(worker=_WORKER.read_text(), reader=_READER.read_text(), asked=asked, marks=marks)
        while True:
            what = "ask which flags the engines take"
            found = host_python.ask(self._low_level_execute_command, python, program, what)
            assert isinstance(found, list)
            if not any(one.get("working") for one in found):
                return found
