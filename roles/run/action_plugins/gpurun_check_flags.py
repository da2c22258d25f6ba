"""Check the flags of a host's servers against what its engines take, before any model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from gpurun import installed_flags, steps

_READER = Path(__file__).parents[2] / "engine" / "files" / "engine_options.py"


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
        answers = self._ask(str(store.manifest.hosts[host]["host"]["python"]["path"]), asked)
        refused, notes = installed_flags.refuse(store, host, asked, answers)
        told = [sample.model_dump(mode="json", by_alias=True) for sample in refused]
        return {"changed": bool(told), "refused": told, "notes": notes}

    def _ask(self, python: str, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What the host's engines answer. The program goes to its Python by standard input: no module has to start."""
        source = _READER.read_text(encoding="utf-8")
        program = f"{source}\nprint(json.dumps(read({asked!r}, {source!r})))\n"
        answer = self._low_level_execute_command(f"{quote(python)} -I -", in_data=program.encode())
        if answer["rc"] != 0:
            raise AnsibleActionFail(f"cannot ask which flags the engines take: {answer['stderr'].strip()[-500:]}")
        found = json.loads(answer["stdout"])
        assert isinstance(found, list)
        return found
