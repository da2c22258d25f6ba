"""Each planned server's flags against the options of its engine's version that gpurun ships, where it ships them. Pure.

It only warns: a run asks the host's own engine, and that one refuses.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpurun.catalogue import nearest_version, shipped, versions
from gpurun.check_flags import check_argv
from gpurun.engines import load_engine
from gpurun.findings import Finding, Subject


def check(subject: Subject) -> Iterator[Finding]:
    """A warning for each thing that the engine's parser would refuse. Nothing where the version is not known."""
    version = nearest_version(subject.engine, subject.version) if subject.version else None
    engine = load_engine(subject.engine)
    if subject.image and version is None and versions(engine.name):
        yield Finding(
            rule="flags",
            severity="note",
            message="what is in the image is not known: its flags are checked when a run asks the engine in it",
            advice=f"`engine: {engine.name}==VERSION` has them checked here as well",
        )
    if version is None:
        return
    near = "" if version == subject.version else f", the nearest to {subject.version}"
    for remark in check_argv(shipped(engine.name, version), engine, subject.argv[subject.flags_from :]):
        if not remark.note:
            yield Finding(
                rule="flags",
                severity="warn",
                message=f"{remark.message} (by the shipped options of {engine.title} {version}{near})",
                advice=remark.advice or "see what the engine's `--help` says of it",
            )
