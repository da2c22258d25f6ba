"""Judge a run and store the result."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from gpurun import steps
from gpurun.terminal import plain_text
from gpurun.terminal.tables import results_table


class ActionModule(ActionBase):
    """`gpurun_close: {run_dir, fail_on, lost}` -> `exit_code` as the CLI's, the table as `lines`, `summary` for
    set_stats. `lost` are hosts that never came so far."""

    _VALID_ARGS = frozenset({"run_dir", "fail_on", "lost"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        store = steps.open_store(self._task.args["run_dir"])
        steps.give_up(store)
        fail_on, lost = self._task.args.get("fail_on") or "failure", bool(self._task.args.get("lost"))
        closed = steps.close_run(store, fail_on=fail_on, host_failed=lost)
        told = {"warnings": [f"not all of this run is in the results store: {closed.not_stored}"]}
        return {
            "changed": True,
            "lines": plain_text(results_table(closed.report)).splitlines(),
            "exit_code": int(closed.exit_code),
            "summary": steps.summary(store, closed),
            **(told if closed.not_stored else {}),
        }
