"""Judge a run and store the result."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from gpurun import steps
from gpurun.terminal import plain_text
from gpurun.terminal.tables import results_table


class ActionModule(ActionBase):
    """`gpurun_close: {run_dir, fail_on}` -> `verdicts`, `exit_code`, the table as `msg`; fails where the CLI would."""

    _VALID_ARGS = frozenset({"run_dir", "fail_on"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        store = steps.open_store(self._task.args["run_dir"])
        document, report, code = steps.close_run(store, fail_on=self._task.args.get("fail_on") or "failure")
        return {
            "changed": True,
            "failed": code != 0,
            "msg": plain_text(results_table(report)).splitlines(),
            "exit_code": int(code),
            "dir": document["run"]["dir"],
            "verdicts": [
                {"variant": e.case.variant, "label": e.case.label, "metric": e.metric, "verdict": e.verdict}
                for e in report.effects
            ],
        }
