"""Have what may have passed measured again, once a round of a host is home."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from gpurun import steps


class ActionModule(ActionBase):
    """`gpurun_end_round: {run_dir, round}` -> `repeated`, what is said of each sample that is to be measured again."""

    _VALID_ARGS = frozenset({"run_dir", "round"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        store, number = steps.open_store(self._task.args["run_dir"]), int(self._task.args["round"])
        told = steps.end_round(store, (task_vars or {})["inventory_hostname"], number)
        return {"changed": bool(told), "repeated": [notice.message for notice in told]}
