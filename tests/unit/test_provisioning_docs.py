"""docs/provisioning.md names, for each report, tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.test_provisioning import REFUSED

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs/provisioning.md").read_text().partition("| # | Report |")[2]
FILES = {
    True: ("tests/unit/test_provisioning.py", "tests/unit/test_provision_cuda.py"),
    False: tuple(f"tests/e2e/test_provision{name}.py" for name in ("", "_others", "_cuda")),
}


def test_every_report_names_tests_that_exist() -> None:
    missing, numbers = [], set()
    texts = {unit: "".join((ROOT / path).read_text() for path in paths) for unit, paths in FILES.items()}
    defined = {unit: re.findall(r"^def test_(\w+)", text, re.M) for unit, text in texts.items()}
    for line in TABLE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) != 4 or cells[0] == "#":
            continue
        numbers.update(map(int, cells[0].split(", ")))
        assert "`" in cells[3] or cells[3].startswith("none"), line
        for part in cells[3].split(";"):
            for name, case in re.findall(r"`(\w+)(?:\[(\w+)\])?`", part):
                known = any(name in test for test in defined[part.strip().startswith("unit")])
                if not known or (case and case not in {check for check, *_ in REFUSED}):
                    missing.append(f"{cells[0]}: {name}[{case}]")
    assert missing == [] and numbers == set(range(1, 42))
