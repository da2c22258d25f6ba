"""Predictions against what engines reported in public logs; the table in docs/fit.md is made of them.

python -m tests.unit.test_fit_logs    writes the table anew
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpurun.engines import load_engine
from gpurun.fit.cards import read_gpus
from gpurun.fit.flags import read_flags
from gpurun.fit.question import Fit, Question
from gpurun.fit.sizes import GIB, knowledge, sizes_of
from gpurun.fit.verdict import fit

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "fit.md"
DATA = yaml.safe_load((ROOT / "tests" / "fixtures" / "memory_logs.yml").read_text(encoding="utf-8"))
LOGS: list[dict[str, Any]] = DATA["logs"]
MARKED = re.compile(r"(<!-- made by tests/unit/test_fit_logs\.py -->\n).*?(<!-- end -->)", re.DOTALL)


def predicted(log: dict[str, Any]) -> Fit:
    name, _, version = log["engine"].partition("==")
    config = DATA["models"][log["model"]]
    size = int(config["weights_gib"] * GIB)
    sizes = sizes_of({"config": config, "tensors": [["weights", "F8_E4M3", 1, size, size]]})
    settings = read_flags(log["flags"].split(), load_engine(name).flags, knowledge(name)["flags"])
    assert not settings.problems and not settings.others, log["flags"]
    given = log.get("given", {}).get("rest_gib")
    values = settings.values | ({"kv_bytes": int(given * GIB)} if given else {})
    return fit(Question(name, version, values, read_gpus(log["gpu"]), sizes))


def row(log: dict[str, Any]) -> tuple[str, float, float, float | None]:
    """What is compared, predicted, reported, error as a share; no share of a number below zero."""
    [(key, said)] = log["reported"].items()
    mine = getattr(predicted(log), key)
    return key, mine, said, mine / said - 1 if said > 0 else None


def table() -> str:
    lines = ["| model | on | flags | predicted | reported | error |", "|---|---|---|---:|---:|---:|"]
    for given in (False, True):
        lines += ["| *only what a token costs:* |||||" + "|"] if given else []
        for log in (each for each in LOGS if ("given" in each) == given):
            key, mine, said, error = row(log)
            unit = "{:,.0f} tokens" if key == "kv_tokens" else "{:.2f} GiB"
            share = f"{100 * error:+.1f} %" if error is not None else f"{mine - said:+.2f} GiB"
            model = f"{log['model']} [log]({log['source']})" + (f" ({log['note']})" if "note" in log else "")
            flags = f"`{log['flags']}`".replace("|", "\\|")
            on = f"{log['engine']}, {log['gpu']}"
            lines.append(f"| {model} | {on} | {flags} | {unit.format(mine)} | {unit.format(said)} | {share} |")
    return "\n".join(lines)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log['model']}-{log['engine']}-{log['gpu']}")
def test_each_prediction_is_near(log: dict[str, Any]) -> None:
    _, mine, said, error = row(log)
    if error is None:
        assert mine < 0 and abs(mine - said) < 0.5
    else:
        assert abs(error) < 0.30


def test_most_predictions_are_close() -> None:
    errors = [abs(error) for log in LOGS if (error := row(log)[3]) is not None]
    assert len(errors) >= 8
    assert statistics.median(errors) < 0.04
    assert sum(error > 0.10 for error in errors) <= len(errors) / 10


def test_the_table_in_the_docs_is_this_one() -> None:
    found = MARKED.search(DOC.read_text(encoding="utf-8"))
    assert found is not None
    assert found[0].splitlines()[1:-1] == table().splitlines(), "run: python -m tests.unit.test_fit_logs"


if __name__ == "__main__":
    fresh = MARKED.sub(lambda m: f"{m[1]}{table()}\n{m[2]}", DOC.read_text(encoding="utf-8"))
    DOC.write_text(fresh, encoding="utf-8")
