"""Which runs there are, and which one is meant: by its id, by either end of that, its directory, a name, or `last`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpurun.errors import ConfigError, GpurunError, NoSuchRunError
from gpurun.store import LIST_THEM, RunStore, put, replacing, safe_name, sample_files


@dataclass(frozen=True)
class RunSummary:
    """One line of `gpurun runs`, and one of its `--json`. `status` is `unreadable` where the manifest is damaged;
    `names` are those that the run was given."""

    id: str
    campaign: str
    status: str
    started_at: str | None
    ended_at: str | None
    samples: int
    dir: str
    names: tuple[str, ...] = ()


def list_runs(results_dir: Path) -> list[RunSummary]:
    """Every run under a results directory, newest first. A damaged one is listed as `unreadable`, not hidden."""
    found, given = [], names(results_dir)
    for path in results_dir.glob("*/*/manifest.json"):
        *_, campaign, run = path.parent.parts
        told: tuple[str, str | None, str | None] = "unreadable", None, None
        with contextlib.suppress(GpurunError):
            known = RunStore(path.parent).manifest
            told = known.status_now, known.started_at, known.ended_at
        own = tuple(name for name, of in given.items() if of == f"{campaign}/{run}")
        found.append(RunSummary(run, campaign, *told, len(sample_files(path.parent)), str(path.parent), own))
    return sorted(found, key=lambda run: (run.started_at or "", run.id), reverse=True)


def find(results_dir: Path, reference: str, secrets: Sequence[str] = ()) -> RunStore:
    """A run by id, by either end of its id, by its directory, by a name that it was given (`name_run`), or `last`.
    GpurunError where that is not one run."""
    if (Path(reference) / "manifest.json").is_file():
        return RunStore.open(Path(reference), secrets)
    run = choose(list_runs(results_dir), reference, str(results_dir))
    return RunStore.open(Path(run.dir), secrets)


def choose(runs: Sequence[RunSummary], reference: str, where: str) -> RunSummary:
    """The run that `reference` means. NoSuchRunError where that is not one run."""
    if not runs:
        hint = "`gpurun bench --config FILE` makes one; --results DIR looks elsewhere"
        raise NoSuchRunError("there are no runs here yet", where=where, hint=hint)
    # A run that was refused, say because another one held its host, is hardly the last one that is meant.
    begun = [run for run in runs if run.samples or run.status in ("running", "interrupted", "done")]
    alike = (begun or runs)[:1] if reference == "last" else []
    alike = alike or [run for run in runs if reference in run.names]
    alike = alike or [run for run in runs if reference in (run.id, f"{run.campaign}/{run.id}")]
    alike = alike or [run for run in runs if reference and (run.id.startswith(reference) or run.id.endswith(reference))]
    if len(alike) == 1:
        return alike[0]
    if alike:
        some = ", ".join(f"{run.campaign}/{run.id}" for run in alike[:5])
        raise NoSuchRunError(f"`{reference}` could be {len(alike)} runs: {some}", where=where)
    raise NoSuchRunError(f"there is no run `{reference}`", where=where, hint=LIST_THEM)


def names(results_dir: Path) -> dict[str, str]:
    """The names that runs were given -> `campaign/run`."""
    try:
        return dict(json.loads((results_dir / "names.json").read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise GpurunError(f"cannot read the names of runs: {error}", where=str(results_dir / "names.json")) from error


def name_run(results_dir: Path, store: RunStore, name: str) -> str | None:
    """Let `name` stand for this run from now on, a baseline of last week for example. Returns the id of another run
    that it stood for. ConfigError where the name means a run already: `last`, or either end of an id."""
    known = names(results_dir)
    safe_name(name, "run")
    if name == "last" or any(run.id.startswith(name) or run.id.endswith(name) for run in list_runs(results_dir)):
        raise ConfigError(f"`{name}` names a run by itself", hint="choose a word that is no part of a run's id")
    given = f"{store.manifest.campaign}/{store.manifest.run}"
    with replacing(results_dir / "names.json", keep=False) as fresh:
        put(fresh, (json.dumps(known | {name: given}, indent=1, sort_keys=True) + "\n").encode())
    return known[name].rpartition("/")[2] if known.get(name, given) != given else None
