"""Read and validate a campaign, from a file or from an extra variable."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from gpurun import opening
from gpurun.errors import GpurunError


class ActionModule(ActionBase):
    """`gpurun_campaign: {file, set, variants, limit}` -> `hosts` (a pattern that `limit` narrows), `load_hosts`,
    `name`."""

    _VALID_ARGS = frozenset({"file", "set", "variants", "limit"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        try:
            campaign, _ = opening.campaign_of(self._task.args, task_vars or {})
        except GpurunError as error:
            raise AnsibleActionFail(error.render()) from error
        limit, source = self._task.args.get("limit"), opening.load_group(campaign)
        hosts = f"{campaign.hosts}:&{limit}" if limit else campaign.hosts
        return {"changed": False, "name": campaign.name, "hosts": hosts, "load_hosts": source}
