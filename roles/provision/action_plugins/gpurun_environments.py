"""Which environments and models the login user of a host shall have: gpurun.environments, for playbooks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from gpurun import environments
from gpurun.errors import GpurunError
from gpurun.hardware import knowledge
from gpurun.provisioning import Step, refusal_text

_ROLES = Path(__file__).parents[2]


class ActionModule(ActionBase):
    """`gpurun_environments: {wanted, facts}` -> `engines`, `models`, `cuda` for the roles of these names, and
    `environments`: what gpurun_env is asked to compare.

    With `there` (its answers and gpurun_model's, each with its `item`), `made` (environments that are there) and
    `holder` (whether a run holds the host) -> `changes`, `remove`, `refused` (a text) and, for people, `provision`.
    """

    _VALID_ARGS = frozenset({"wanted", "facts", "there", "made", "held"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        wanted, facts, args = self._task.args["wanted"], self._task.args["facts"], self._task.args
        try:
            if "there" not in args:
                return {"changed": False, **_wanted(wanted, facts)}
        except GpurunError as error:
            raise AnsibleActionFail(error.render()) from error
        return {"changed": False, **_decided(wanted, facts, args)}


def _wanted(wanted: Any, facts: Any) -> dict[str, Any]:
    host, remove = facts["host"], wanted["remove"]
    engines = environments.engines_on(host, [] if remove else wanted["engines"], wanted["builds"], bool(facts["gpus"]))
    models = environments.models_on(host, [] if remove else wanted["models"])
    cuda = wanted["cuda"] if wanted["cuda_from"] == "wheels" and not remove else ""
    environments.check_cuda(cuda)
    there = [_environment("engine", f"engines/{one['name']}-{one['version']}", host, one) for one in engines]
    if cuda:
        own = {"name": "CUDA", "version": cuda, "lock": f"cuda-{cuda}.txt", "gib": knowledge()["cuda"]["wheels_gib"]}
        there.append(_environment("cuda", f"cuda/{cuda}", host, {**own, "python": None, "builds": []}))
    return {"engines": engines, "models": models, "cuda": cuda, "environments": there}


def _environment(role: str, folder: str, host: Any, one: Any) -> dict[str, Any]:
    text = "\n".join(one.get("packages", ()))
    if one["lock"]:
        files = _ROLES / role / "files"
        text = (files / ("locks" if role == "engine" else "") / one["lock"]).read_text(encoding="utf-8")
    told = {key: one[key] for key in ("python", "builds", "gib")}
    told |= {"what": f"{one['name']} {one['version']}", "path": f"{host['home']}/{folder}", "text": text}
    return {"role": role, **told}


def _decided(wanted: Any, facts: Any, args: Any) -> dict[str, Any]:
    host, missing, gib = facts["host"], [], 0.0
    for answer in args["there"]:
        if answer["status"] == "missing":
            item = answer["item"]
            why = f"it is not in {host['home']}, or not as it should be"
            missing.append(Step(item.get("role", "model"), f"install {item.get('what') or item['name']}", why))
            gib += float(item.get("gib", 0))
    kinds = {"engine": f"{host['home']}/engines/", "cuda": f"{host['home']}/cuda/"}
    places = tuple(kinds[kind] for kind in wanted["remove"] if kind in kinds)
    remove = sorted(path for path in args["made"] if path.startswith(places)) if places else []
    steps, refusals = environments.decide(host, missing, gib, remove, args["held"])
    return {
        "changes": bool(steps),
        "remove": remove,
        "refused": refusal_text(refusals),
        "provision": {
            "summary": f"{host['os']['name']}, {host['arch']}, {len(facts['gpus']) or 'no'} GPUs with a driver",
            "status": "refused" if refusals else "planned" if steps else "ok",
            "steps": [asdict(step) for step in steps],
            "refusals": [asdict(one) for one in refusals],
        },
    }
