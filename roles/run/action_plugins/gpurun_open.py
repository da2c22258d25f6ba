"""Plan a run for the hosts whose facts are known, and create its results directory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from gpurun import opening, steps
from gpurun.errors import GpurunError, NoSuchRunError
from gpurun.manifest import Controller
from gpurun.remote import VARIABLE


class ActionModule(ActionBase):
    """`gpurun_open: {file, set, variants, hosts, results_dir, force, resume, run}` -> `dir`, `run`, `rounds`,
    `kept` (samples of the run that is gone on with), `hosts`, `load_hosts` (other hosts: they send the load), `lost`
    (hosts without facts; where that is all of them, there is no run: `dir` is empty).

    `hosts` are the names of the hosts to measure on, `force` the rules of preflight that do not count. `run` is an id
    that several jobs share, each with hosts of its own: one that is there is gone on with.
    """

    _VALID_ARGS = frozenset({"file", "set", "variants", "hosts", "results_dir", "force", "resume", "run"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args, variables = self._task.args, task_vars or {}
        facts = {
            host: variables["hostvars"][host]["ansible_facts"]["gpurun_facts"]
            for host in args["hosts"]
            if "gpurun_facts" in variables["hostvars"][host].get("ansible_facts", {})
        }
        lost = [host for host in args["hosts"] if host not in facts]
        if lost and not facts:
            return {"dir": "", "run": "", "rounds": 0, "hosts": [], "load_hosts": [], "lost": lost}
        try:
            campaign, cases = opening.campaign_of(args, variables)
            load_hosts = opening.load_hosts(campaign, facts)
            results_dir = Path(args.get("results_dir") or campaign.results.dir)
            url = opening.store_url(campaign, os.environ.get(VARIABLE))
            secrets = opening.secret_values({name for case in cases for name in case.server.secrets or []})
            earlier = None
            if reference := args.get("resume") or args.get("run"):
                with contextlib.suppress(*([] if args.get("resume") else [NoSuchRunError])):
                    earlier = opening.find_earlier(campaign, results_dir, reference, url, secrets, facts)
            store, began, _ = opening.begin(
                campaign,
                cases,
                facts,
                results_dir=results_dir,
                controller=Controller.of(os.getppid()),  # ansible-playbook itself: this process is one of its workers
                command=["ansible-playbook", "playbooks/bench.yml"],
                secrets=secrets,
                url=url,
                forced=args.get("force") or (),
                earlier=earlier,
                run=args.get("run") or None,
                lost={host: steps.out_of_reach(host) for host in lost},
            )
        except GpurunError as error:
            raise AnsibleActionFail(error.render()) from error
        others = list(dict.fromkeys(load_hosts.values()))
        told = {"dir": str(store.directory.resolve()), "run": began.run, "rounds": began.rounds, "kept": began.reused}
        return {"changed": True, "hosts": list(facts), "load_hosts": others, "lost": lost, **told}
