"""Score the diagnosis on a folder of logs with an index: `python tests/benchmarks/diagnose_captures.py DIR`.

DIR/index.tsv has the columns file, engine, expected_class, expected_phase, root_cause_line_number, note. Prints every
miss and the shares of right classes, phases and lines.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from gpurun.diagnose import classify

# The words that indexes use for the phases; both of our first two phases count as argument parsing.
PHASES = {
    "argument parsing": ("preflight", "start"),
    "weight load": ("weights",),
    "kv allocation": ("kv",),
    "graph capture": ("graphs",),
    "warm-up": ("warmup",),
    "serving": ("serving",),
    "none": (None,),
}


def main(folder: Path) -> int:
    """Print the score; 0 if every class is right."""
    rows = list(csv.DictReader((folder / "index.tsv").read_text(encoding="utf-8").splitlines(), delimiter="\t"))
    right = {"class": 0, "phase": 0, "line": 0}
    for row in rows:
        told = classify((folder / row["file"]).read_text(encoding="utf-8", errors="replace"))
        expected_line = row["root_cause_line_number"]
        good = {
            "class": told.klass == row["expected_class"],
            "phase": told.phase in PHASES.get(row["expected_phase"], (row["expected_phase"],)),
            "line": str(told.line).lower() == expected_line.lower(),
        }
        for key, value in good.items():
            right[key] += value
        if not all(good.values()):
            wanted = f"{row['expected_class']}/{row['expected_phase']}/{expected_line}"
            print(f"{row['file']}: {told.klass}/{told.phase}/{told.line} ({told.signature}), expected {wanted}")
            print(f"    {told.proof[:160]}")
    for key, value in right.items():
        print(f"{key}: {value} of {len(rows)} right ({value / len(rows):.0%})")
    return 0 if right["class"] == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
