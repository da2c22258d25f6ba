"""What a host needs before it can measure: engines, models, the lock that the run will hold."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from gpurun import steps


class ActionModule(ActionBase):
    """`gpurun_needs: {run_dir}` -> `engines`, `models`, `tools`, `images`, `lock`."""

    _VALID_ARGS = frozenset({"run_dir"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        store = steps.open_store(self._task.args["run_dir"])
        return {"changed": False, **steps.needs(store, (task_vars or {})["inventory_hostname"])}
