"""The arrows between modules: the core stays pure, imports go one way, one place for each outside thing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import gpurun
from gpurun import data
from gpurun.engines import engine_names

PACKAGE = Path(gpurun.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if "content" not in path.parts
}
PURE = (
    *("errors", "data", "load", "fields", "tree", "config", "complaints", "template", "engines", "resolve"),
    *("matrix", "cases", "launch", "plan", "plan_text"),
    *("fit.verdict", "fit.cards", "fit.flags", "fit.sizes", "fit.question"),
    *("fit.check", "started"),
    *("tools", "loads", "foreign", "counters", "telemetry", "validity", "outcome"),
    *("provisioning", "target", "hardware", "repositories", "environments", "verification"),
    *("samples", "parsers", "diagnose", "stats", "compare", "assess", "result", "redact", "text", "wording"),
)
EDGE = (
    "cli",
    "commands",
    "terminal",
    "playbooks",
    "session",
    "execute",
    "serve",
    "opening",
    "steps",
    "remote",
    "slices",
    "references",
    "store",
    "child",
    "interrupts",
    "manifest",
    "host_python",
    "hub",
    "report",
    "facts_file",
)
OUTSIDE = ("subprocess", "click", "rich", "ansible_runner", "ansible", "socket", "threading", "signal")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, also inside functions; `gpurun.x.y` as it is written."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (
                f"{node.module}.{alias.name}" if node.module == "gpurun" else node.module for alias in node.names
            )


def top_level_imports(path: Path) -> set[str]:
    """The gpurun modules that are imported when this one is."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "gpurun":
            rest = node.module.split(".")[1:]
            names = [".".join([*rest, alias.name]) for alias in node.names] + [".".join(rest)]
            found |= {name for name in names if name in MODULES}
    return found


def importers_of(package: str) -> set[str]:
    return {name for name, path in MODULES.items() if any(used.split(".")[0] == package for used in imports(path))}


def core() -> set[str]:
    """The modules of the core and all that they import, transitively."""
    found: set[str] = set()
    todo = [name for name in PURE if name in MODULES]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += top_level_imports(MODULES[name])
    return found


def test_the_core_imports_nothing_from_outside() -> None:
    for name in core():
        used = {module.split(".")[0] for module in imports(MODULES[name])}
        assert not used & set(OUTSIDE), name


def test_the_core_does_not_know_the_edge() -> None:
    for name in core():
        known = {module.removeprefix("gpurun.").split(".")[0] for module in imports(MODULES[name])}
        assert not known & set(EDGE), name


def test_imports_go_one_way() -> None:
    arrows = {name: top_level_imports(path) - {name} for name, path in MODULES.items()}
    list(TopologicalSorter(arrows).static_order())  # CycleError names the cycle


def test_one_place_for_each_outside_thing() -> None:
    assert importers_of("ansible_runner") <= {"playbooks"}
    assert all(name.split(".")[0] == "terminal" for name in importers_of("rich"))
    assert importers_of("fsspec") == importers_of("s3fs") == importers_of("sshfs") == {"remote"}


def test_data_files_are_loaded_in_one_place() -> None:
    campaigns = {"load", "report.view", "plan_text", "from_command", "container_spec"}  # and what one is made of
    assert importers_of("yaml") <= {"data", *campaigns}
    assert data.table("facts") is data.table("facts")
    assert data.names("engines") == engine_names()


def test_only_the_command_line_ends_the_process() -> None:
    enders = set()
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sys.exit", "exit", "os._exit", "os.abort"):
                enders.add(name)
            if isinstance(node, ast.Raise) and node.exc is not None and "SystemExit" in ast.unparse(node.exc):
                enders.add(name)
    assert enders <= {"cli", "__main__", "child"}


def test_files_can_be_held_in_the_head() -> None:
    long = {
        name: n for name, path in MODULES.items() if (n := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert long == {}


def test_the_check_itself_sees_imports(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text("def f():\n    import subprocess\n    from rich.table import Table\nfrom gpurun import plan\n")
    assert set(imports(source)) == {"subprocess", "rich.table", "gpurun.plan"}
    assert top_level_imports(source) == {"plan"}
