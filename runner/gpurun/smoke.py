"""The all-reduce before a run: what is to be tried on a host, and which samples its outcome refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpurun import steps
from gpurun.rules import visible_gpus
from gpurun.samples import FailureClass, Sample
from gpurun.store import RunStore
from gpurun.tree import digest

LIMIT_S = 30.0  # for the all-reduce itself
_IMPORT_S = 30.0  # for torch, which may lie on a slow disk
_PYTHON = "python3"  # what images call the one that has their engine
_OF_CONTAINER = ("runtime", "image", "mounts", "ipc", "shm_size", "args")
_REFUSES: Mapping[str, FailureClass] = {"hang": "comm_hang", "wrong": "comm_error", "failed": "comm_error"}
_ADVICE = (
    "look at the IOMMU and ACS (`gpurun doctor`), try `env: {NCCL_P2P_DISABLE: 1}` in the campaign, and read what the "
    "driver logs (dmesg | grep -i -e xid -e nvrm)"
)


def questions(store: RunStore, host: str) -> list[dict[str, Any]]:
    """One for each way in which samples of this host use several GPUs: engine, environment of NCCL, GPUs, how many.

    One in an image is asked in a container of it. Nothing for a host's own program, whose Python is not known.
    """
    facts = store.manifest.hosts.get(host) or {}
    asked: dict[str, dict[str, Any]] = {}
    for planned in steps.pending(store, host):
        server = planned["server"]
        engine, env, inside = server["engine"], server["env"], server["container"]
        gpus = visible_gpus(facts, env)
        ranks = min(server["gpus"], len(gpus))
        if ranks < 2 or engine.get("binary") or engine["name"] == "command" or not (inside or engine["version"]):
            continue
        home = facts["host"]["home"]
        place = f"{home}/engines/{engine['name']}-{engine['version']}"
        own = {name: value for name, value in env.items() if name.startswith(("NCCL_", "CUDA_"))}
        host_now = [facts["host"].get("boot_id"), facts.get("driver"), [gpu.get("uuid") for gpu in gpus]]
        box = {name: inside[name] for name in _OF_CONTAINER if inside.get(name)} if inside else None
        key = digest([box or place, own, ranks])[:8]
        marks = {"GPURUN_HOME": home, "GPURUN_JOB": f"{store.manifest.run}/prepare"}
        question = {"python": _PYTHON if box else f"{place}/bin/python", "env": {**own, **marks}, "ranks": ranks}
        question |= {"backend": "nccl", "import_s": _IMPORT_S, "limit_s": LIMIT_S, "same": host_now, "container": box}
        question["remember"] = f"{home}/options/allreduce-{key}" if box else f"{place}/.allreduce-{key}"
        asked.setdefault(key, {"question": question, "samples": []})["samples"].append(planned)
    return list(asked.values())


def program(source: str, question: Mapping[str, Any]) -> str:
    """What the host's Python is given: `source` (allreduce.py), and the question to answer as JSON."""
    inside = question.get("container")
    asked = {**question, "container": {**inside, "source": source} if inside else None}
    return f"{source}\nprint(json.dumps(answer({asked!r})))\n"


def refuse(
    store: RunStore, asked: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
) -> tuple[list[Sample], list[str]]:
    """The samples that are recorded as failed because of the answers, and what else is to be said."""
    refused, notes = [], []
    for one, answer in zip(asked, answers, strict=True):
        klass = _REFUSES.get(answer["status"])
        if klass is None:
            if answer["status"] != "ok":
                notes.append(f"the all-reduce over {one['question']['ranks']} GPUs was not tried: {answer['message']}")
            continue
        proof = f"all-reduce over {one['question']['ranks']} GPUs, before the start: {answer['message']}"
        refused += [steps.not_measured(store, each, klass, "preflight", proof, _ADVICE) for each in one["samples"]]
    return refused, notes
