"""Judge a run and store the result."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from gpurun import steps
from gpurun.errors import ExitCode
from gpurun.terminal import plain_text
from gpurun.terminal.tables import results_table

_NO_RUN: dict[str, Any] = {
    **dict.fromkeys(("run", "campaign", "dir", "store", "report")),
    "status": "failed",
    "exit_code": int(ExitCode.HOST_FAILED),
    "why": "host failed",
    "verdicts": {},
}


class ActionModule(ActionBase):
    """`gpurun_close: {run_dir, fail_on, lost}` -> `exit_code` as the CLI's, the table as `lines`, `summary` for
    set_stats, `failure` in words. `lost` are hosts that never came so far: all of them, where `run_dir` is empty."""

    _VALID_ARGS = frozenset({"run_dir", "fail_on", "lost"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        fail_on, lost = self._task.args.get("fail_on") or "failure", self._task.args.get("lost") or []
        if not self._task.args["run_dir"]:
            why = f"no host could be looked at, so that there is no run: {', '.join(lost)}"
            return {"lines": [why], "exit_code": _NO_RUN["exit_code"], "summary": _NO_RUN, "failure": why}
        store = steps.open_store(self._task.args["run_dir"])
        steps.give_up(store)
        closed = steps.close_run(store, fail_on=fail_on, host_failed=bool(lost))
        summary = steps.summary(store, closed)
        told = {"warnings": [f"not all of this run is in the results store: {closed.not_stored}"]}
        return {
            "changed": True,
            "lines": plain_text(results_table(closed.report)).splitlines(),
            "exit_code": int(closed.exit_code),
            "summary": summary,
            "failure": f"{summary['why']}; what was measured is in {summary['store'] or summary['dir']}",
            **(told if closed.not_stored else {}),
        }
