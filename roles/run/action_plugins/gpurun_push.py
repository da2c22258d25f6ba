"""Bring what a host has measured to the run's results store."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from gpurun import steps


class ActionModule(ActionBase):
    """`gpurun_push: {run_dir}` -> `not_stored`, why the store lacks something for now (empty: it does not).

    A store that fails is a warning, never a failed task: the next push brings what is missing.
    """

    _VALID_ARGS = frozenset({"run_dir"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        store = steps.open_store(self._task.args["run_dir"])
        why = steps.push(store, [(task_vars or {})["inventory_hostname"]], tries=2)
        told = {"warnings": [f"not in the results store for now: {why}"]} if why else {}
        return {"changed": not why, "not_stored": why, **told}
