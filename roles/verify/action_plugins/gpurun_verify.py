"""Try what works on a host, and judge it: the module gpurun_verify and gpurun.verification, for playbooks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible.plugins.action import ActionBase

from gpurun.verification import SERVICES, engine_checks, judge


class ActionModule(ActionBase):
    """`gpurun_verify: {home, root, machine, arch}` -> `report` (`checks` and what was `found`), `problems` (texts)."""

    _VALID_ARGS = frozenset({"home", "root", "machine", "arch"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args = {**self._task.args, "checks": engine_checks(), "services": list(SERVICES.values())}
        answer = self._execute_module(module_name="gpurun_verify", module_args=args, task_vars=task_vars)
        if "found" not in answer:
            return dict(answer)
        checks = judge(answer["found"])
        problems = [f"{one.check}: {one.say} (fix: {one.fix})" for one in checks if one.status == "failed"]
        told = [asdict(one) for one in checks]
        report = {"schema": "gpurun.verify/1", "status": "failed" if problems else "ok", "checks": told}
        report["found"] = {key: value for key, value in answer["found"].items() if key != "system"}
        return {"changed": False, "report": report, "problems": problems, "provision": {"checks": told}}
