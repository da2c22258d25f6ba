"""Read and validate a campaign, from a file or from an extra variable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from gpurun import __version__, opening, paths
from gpurun.errors import GpurunError

_CHECKOUT = Path(__file__).resolve().parents[3]


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
        found = {"changed": False, "name": campaign.name, "hosts": hosts, "load_hosts": source}
        if other := paths.differing(_CHECKOUT):
            more = f", as do {len(other) - 1} other files" if len(other) > 1 else ""
            why = f"the installed gpurun {__version__} is not of this checkout's commit: {other[0]} differs{more}"
            found["warnings"] = [f"{why}; make the execution environment anew from this commit"]
        return found
