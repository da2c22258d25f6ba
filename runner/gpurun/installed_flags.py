"""Before a model is loaded: each planned server's flags against the options that its host's engine really has.

An engine tells them itself (roles/engine/files/engine_options.py), one in an image in a container of it. One that
cannot tell them is not checked, and the run says so; its own words will do.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from gpurun import steps
from gpurun.catalogue import Catalogue, parse_catalogue
from gpurun.check_flags import check_argv
from gpurun.engines import load_engine
from gpurun.launch import home_of
from gpurun.samples import Sample
from gpurun.store import RunStore
from gpurun.tree import digest

_PYTHON = "python3"  # what images call the one that has their engine
_OF_CONTAINER: Mapping[str, Any] = {"runtime": None, "image": None, "mounts": [], "args": []}


def questions(store: RunStore, host: str) -> list[dict[str, Any]]:
    """What `host` is asked: once for each engine of which it has samples to measure."""
    home = home_of(store.manifest.hosts[host])
    found = {}
    for planned in steps.pending(store, host):
        question = _question(planned["server"], home)
        if question is not None:
            found[digest(question)] = question
    return list(found.values())


def _question(server: Mapping[str, Any], home: str) -> dict[str, Any] | None:
    """Which program tells the options, and where the answer is kept on the host."""
    name, version, program = server["engine"]["name"], server["engine"]["version"], server["engine"].get("binary")
    engine = load_engine(name)
    if not (engine.options.parser or engine.options.help):
        return None
    words = itertools.takewhile(lambda word: not word.startswith("-"), server["argv"])
    question = {"name": name, "version": version, "parser": engine.options.parser, "help": [*words, "--help"]}
    inside, place = server["container"], f"{home}/engines/{name}-{version}"
    other = {key: inside.get(key) or default for key, default in _OF_CONTAINER.items()} if inside else program
    return question | {
        "python": _PYTHON if inside else None if program else f"{place}/bin/python",
        "binary": program,
        "launcher": f"{place}/{engine.launcher}" if engine.launcher and not other else None,
        "container": other if inside else None,
        "cache": f"{home}/options/{name}-{digest(other)[:8]}.json" if other else f"{place}/options.json",
    }


def refuse(
    store: RunStore, host: str, asked: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
) -> tuple[list[Sample], list[str]]:
    """Record as failed each sample of `host` whose flags its engine does not take. Returns those, and notes."""
    known: dict[str, Catalogue] = {}
    notes = []
    for question, answer in zip(asked, answers, strict=True):
        if "error" in answer:
            notes.append(f"the flags of {question['name']} are not checked beforehand: {answer['error']}")
        else:
            known[digest(question)] = parse_catalogue(answer)
    home, refused = home_of(store.manifest.hosts[host]), []
    for planned in steps.pending(store, host):
        server = planned["server"]
        catalogue = known.get(digest(_question(server, home)))
        if catalogue is None:
            continue
        remarks = check_argv(catalogue, load_engine(server["engine"]["name"]), server["argv"][server["flags_from"] :])
        wrong = [remark for remark in remarks if not remark.note]
        notes += [f"`{planned['variant']}`: {remark.message}; {remark.advice}" for remark in remarks if remark.note]
        if wrong:
            proof = "; ".join(dict.fromkeys(remark.message for remark in wrong))
            advice = "; ".join(dict.fromkeys(remark.advice for remark in wrong if remark.advice))
            advice = advice or "see what the engine's `--help` says of it"
            refused.append(steps.not_measured(store, planned, "bad_flag", "preflight", proof, advice))
    return refused, list(dict.fromkeys(notes))
