"""Plan a run for the hosts whose facts are known, and create its results directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from gpurun import steps
from gpurun.errors import GpurunError
from gpurun.manifest import Controller


class ActionModule(ActionBase):
    """`gpurun_open: {file, hosts, results_dir, force}` -> `dir`, `run`, `load_hosts` (other hosts: they send the load).

    `hosts` are the names of the hosts to measure on, `force` the rules of preflight that do not count.
    """

    _VALID_ARGS = frozenset({"file", "hosts", "results_dir", "force"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        facts = {
            host: variables["hostvars"][host]["ansible_facts"]["gpurun_facts"]
            for host in self._task.args["hosts"]
            if "gpurun_facts" in variables["hostvars"][host].get("ansible_facts", {})
        }
        try:
            campaign, cases = steps.read_campaign(self._task.args.get("file"), variables.get("gpurun_campaign"))
            load_hosts = steps.load_hosts(campaign, facts)
            plan = steps.make_plan(campaign, cases, facts, forced=self._task.args.get("force") or ())
            secrets = steps.secret_values(plan.secrets)
            store = steps.open_run(
                plan,
                campaign_text=campaign.document.text,
                results_dir=Path(self._task.args.get("results_dir") or campaign.results.dir),
                controller=Controller.of(os.getppid()),  # ansible-playbook itself: this process is one of its workers
                facts=facts,
                command=["ansible-playbook", "playbooks/bench.yml"],
                secrets=list(secrets.values()),
            )
        except GpurunError as error:
            raise AnsibleActionFail(error.render()) from error
        others = list(dict.fromkeys(load_hosts.values()))
        return {"changed": True, "dir": str(store.directory.resolve()), "run": plan.run, "load_hosts": others}
