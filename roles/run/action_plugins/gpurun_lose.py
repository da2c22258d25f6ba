"""Record the samples that a host can no longer measure."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from gpurun import steps

_ADVICE = "this is not a failure of the server; see what the task printed"


class ActionModule(ActionBase):
    """`gpurun_lose: {run_dir, why}` -> `lost`, how many samples were given up."""

    _VALID_ARGS = frozenset({"run_dir", "why"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        store, why = steps.open_store(self._task.args["run_dir"]), str(self._task.args["why"])
        pending = steps.pending(store, (task_vars or {})["inventory_hostname"])
        for planned in pending:
            steps.not_measured(store, planned, "unknown", "serving", why, _ADVICE)
        return {"changed": bool(pending), "lost": len(pending)}
