"""Whether a benchmark script would run here, found out while the server boots: it is whole, it parses, what it imports
is there, and it knows its arguments. Sends nothing to the server.

Runs on the Python of the host that sends the load; the script's own Python is the first word of its command.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

# In the script's own Python: imports of the top level and of functions, but for those that a `try` guards.
IMPORTS = """
import ast, importlib.util, json, sys
path = sys.argv[1]
sys.path.insert(0, sys.argv[2])
tree = ast.parse(open(path, "rb").read(), path)
guarded = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.Try) and node.handlers
           for part in node.body for inner in ast.walk(part)}
wanted = {}
for node in ast.walk(tree):
    if id(node) in guarded:
        continue
    if isinstance(node, ast.Import):
        wanted.update((alias.name.partition(".")[0], node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        wanted[node.module.partition(".")[0]] = node.lineno
def there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
print(json.dumps([[name, line] for name, line in sorted(wanted.items()) if not there(name)]))
"""
# What a job gets of the login's environment (gpurun_spawn): with a local connection there are secrets among the rest.
INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES"),
)
# What parses options, and so knows --help; a script with none of these might start to measure.
_HAS_HELP = re.compile(r"\b(argparse|optparse|click|typer|docopt|fire|simple_parsing|tyro|absl)\b|--help")


def check(question: dict) -> dict:
    """`problem`: null, or what is wrong, in a sentence; `advice`; `notes`; `output`: what a dry run printed, or wrote.

    A question has `argv`, `out` (the job's folder, as argv names it), `files` (name: text), `sha256` (name: sum),
    `env`, `dry_run` (null, or arguments that make it check itself), `written` (the file that it writes then, or null)
    and `limit_s`.
    """
    with tempfile.TemporaryDirectory(prefix="gpurun-script-") as folder:
        try:
            return {"problem": None, "advice": None, "notes": [], "output": None, **_check(question, Path(folder))}
        except _WrongError as wrong:
            return {"problem": wrong.args[0], "advice": wrong.args[1], "notes": [], "output": None}


class _WrongError(Exception):
    """What is wrong, and what to do."""


def _check(question: dict, folder: Path) -> dict:
    argv = [word.replace(question["out"], str(folder)) for word in question["argv"]]
    for name, text in question["files"].items():
        (folder / name).write_text(text, encoding="utf-8")
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != question["sha256"][name]:
            raise _WrongError(f"{name} arrived with another checksum", "was it changed during the run? Start a new one")
    if shutil.which(argv[0], path=question["env"].get("PATH", os.environ.get("PATH"))) is None:
        raise _WrongError(f"{argv[0]} is not there", "install it on the host that sends the load, or give its path")
    notes: list[str] = []
    script = Path(argv[1]) if question["files"] and len(argv) > 1 else None
    if script is not None and script.suffix == ".py":
        _check_python(argv[0], script, question, folder)
    elif script is not None:
        code, _, error = _run([argv[0], "-n", str(script)], question, folder)
        if code != 0:
            raise _WrongError(f"{script.name} does not parse: {_last(error, folder)}", "correct the script")
    if question["dry_run"] is not None:
        begin = argv[:2] if script is not None else argv[:1]
        return _dry_run([*begin, *question["dry_run"]], question, folder)
    if script is not None:
        notes += _check_arguments(argv, script, question, folder)
    return {"notes": notes}


def _check_python(python: str, script: Path, question: dict, folder: Path) -> None:
    code, out, error = _run([python, "-c", IMPORTS, str(script), str(folder)], question, folder)
    if code != 0:
        raise _WrongError(f"{script.name} does not parse: {_last(error, folder)}", "correct the script")
    missing = json.loads(out)
    if missing:
        name, line = missing[0]
        others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        advice = "name its package in `script.packages`, or put the file that it means beside it"
        raise _WrongError(f"{script.name}:{line} imports `{name}`, which is not there{others}", advice)


def _check_arguments(argv: list, script: Path, question: dict, folder: Path) -> list:
    """Notes; wrong where its own --help does not know an option."""
    given = [word.partition("=")[0] for word in argv[2:] if word.startswith("--") and word != "--"]
    if not _HAS_HELP.search(script.read_text(encoding="utf-8")):
        return [f"{script.name} has no --help, so that its arguments were not checked"]
    code, out, error = _run([*argv[:2], "--help"], question, folder)
    if code != 0:
        raise _WrongError(f"{script.name} --help ended with {code}: {_last(error, folder)}", "correct the script")
    known = set(re.findall(r"(?<![\w-])--[A-Za-z0-9][\w-]*", out))
    unknown = [option for option in given if option not in known] if known - {"--help"} else []
    if unknown:
        advice = f"its --help knows {', '.join(sorted(known))}"
        raise _WrongError(f"{script.name} does not know the option `{unknown[0]}`", advice)
    return []


def _dry_run(argv: list, question: dict, folder: Path) -> dict:
    code, out, error = _run(argv, question, folder)
    if code != 0:
        raise _WrongError(f"its dry run ended with {code}: {_last(error or out, folder)}", "correct the script")
    written = question.get("written")
    if written and not (folder / written).is_file():
        raise _WrongError(f"its dry run wrote no {written}", "it should give results of the same form as a measurement")
    return {"output": (folder / written).read_text(errors="replace") if written else out}


def _run(argv: list, question: dict, folder: Path) -> tuple:
    env = {**{name: os.environ[name] for name in INHERITED if name in os.environ}, **question["env"]}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, env=env, cwd=folder, start_new_session=True, errors="replace", **pipes) as process:
        try:
            out, error = process.communicate(timeout=question["limit_s"])
        except subprocess.TimeoutExpired:
            advice = "what checks it must end at once: give `script.dry_run`, or let --help come first"
            message = f"`{' '.join(argv[1:3])}` had not ended after {question['limit_s']:g} s"
            raise _WrongError(message, advice) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, error


def _last(text: str, folder: Path) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-3:])[-300:].replace(f"{folder}/", "") if lines else "it said nothing"
