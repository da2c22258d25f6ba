"""What is to be done on a host, why, and how it stands afterwards: gpurun.provisioning, for playbooks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from gpurun.errors import GpurunError
from gpurun.provisioning import decide, expected_reboot, look_for, problems, reboot_reasons, refusal_text
from gpurun.target import Wanted, check_wishes


class ActionModule(ActionBase):
    """`gpurun_decide: {wanted, facts, index, stage, decision}`, by stage:

    look    -> `look`: what gpurun_system is to look for
    decide  -> `decision`, `roles`, `refused` (a text, empty where nothing is refused)
    after   -> `status` (ok, reboot_needed or failed), `reboot` (whether to do it now), `reasons`, `problems`
    Whatever a person should see is in `provision`.
    """

    _VALID_ARGS = frozenset({"wanted", "facts", "index", "stage", "decision"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        given, args = dict(self._task.args["wanted"]), self._task.args
        branch = str(given.pop("branch"))
        try:
            check_wishes(branch, str(given["cuda"]))
        except GpurunError as error:
            raise AnsibleActionFail(error.render()) from error
        driver = branch != "none"
        wanted = Wanted(
            driver=driver, branch=int(branch) if driver else 0, **{**given, "remove": tuple(given["remove"])}
        )
        if args["stage"] == "look":
            return {"changed": False, "look": look_for(wanted)}
        facts = args["facts"]
        here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        is_controller = self._connection.transport == "local" or facts["boot_id"] == here
        if args["stage"] == "decide":
            return _decide(wanted, facts, args.get("index"), is_controller)
        return _after(wanted, facts, args["decision"], is_controller)


def _decide(wanted: Wanted, facts: Any, index: Any, is_controller: bool) -> dict[str, Any]:
    decision = decide(facts, wanted, index, is_controller=is_controller)
    final = decision.look is None or index is not None or bool(decision.refusals)
    reasons = expected_reboot(decision, facts)
    status = "refused" if decision.refusals else "planned" if decision.steps else "ok"
    told = {key: asdict(decision)[key] for key in ("summary", "steps", "refusals", "notes")}
    return {
        "changed": False,
        "decision": asdict(decision),
        "roles": [] if wanted.remove else list(dict.fromkeys(step.role for step in decision.steps)),
        "reboot_expected": bool(reasons) and wanted.reboot != "never" and not is_controller,
        "refused": refusal_text(decision.refusals),
        **({"provision": {**told, "status": status, "reboot_reasons": reasons}} if final else {}),
    }


def _after(wanted: Wanted, facts: Any, decision: Any, is_controller: bool) -> dict[str, Any]:
    reasons, wrong = reboot_reasons(facts, wanted), problems(facts, wanted)
    needed = bool(reasons) or (wanted.reboot == "always" and bool(decision["steps"]))
    status = "reboot_needed" if reasons else "failed" if wrong else "ok"
    return {
        "changed": False,
        "status": status,
        "reboot": needed and wanted.reboot != "never" and not is_controller,
        "reasons": reasons or (["it was asked for"] if needed else []),
        "problems": wrong,
        "provision": {
            "status": status,
            "reboot_reasons": reasons,
            "problems": [] if reasons else wrong,
            "driver": facts["module"]["loaded"],
        },
    }
