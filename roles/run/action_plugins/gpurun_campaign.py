"""Read and validate a campaign, from a file or from the extra variable `gpurun_campaign`."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from gpurun import steps
from gpurun.errors import GpurunError


class ActionModule(ActionBase):
    """`gpurun_campaign: {file}` -> `hosts`, `load_hosts`, `name`.

    The variable is read as it was given, never as a template: a campaign has templates of its own.
    """

    _VALID_ARGS = frozenset({"file"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        try:
            campaign, _ = steps.read_campaign(self._task.args.get("file"), (task_vars or {}).get("gpurun_campaign"))
        except GpurunError as error:
            raise AnsibleActionFail(error.render()) from error
        source = steps.load_group(campaign)
        return {"changed": False, "name": campaign.name, "hosts": campaign.hosts, "load_hosts": source}
