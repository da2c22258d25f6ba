"""What data/catalogues/renames.yml rests on: options that one version has and a later one has not, and what the
versions between them say of those.

    python -m tests.engines.renames sglang 0.5.9 0.5.11 0.5.14 0.5.17 0.5.20 0.5.23

The first and the last version are shipped catalogues. Of the others only the source is read: where it registers an
option with `new_flag=`, that is its successor.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from gpurun.catalogue import shipped


def main(engine: str, first: str, *between: str) -> None:
    """Print one line for each option that is gone: its successor if any, and the first version without it."""
    before, after = set(shipped(engine, first).by_name), set(shipped(engine, between[-1]).by_name)
    texts = {version: source(engine, version) for version in between[:-1]}
    told = {old: new for text in texts.values() for old, new in successors(text)}
    for old in sorted((before | set(told)) - after):
        field = old[2:].replace("-", "_")
        without = [version for version, text in texts.items() if f'"{old}"' not in text and f"{field}:" not in text]
        print(old, told.get(old, ""), (without or between)[0 if without else -1], sep="\t")


def source(engine: str, version: str) -> str:
    """The Python text of a released version that registers options."""
    with tempfile.TemporaryDirectory() as folder:
        fetch = [sys.executable, "-m", "pip", "-q", "download", "--no-deps", "-d", folder, f"{engine}=={version}"]
        subprocess.run(fetch, check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".py")]
            wanted = [
                name
                for name in names
                if "arg_groups/" in name or name.endswith(("/arg_utils.py", "srt/server_args.py"))
            ]
            return "\n".join(
                wheel.read(name).decode().replace("from __future__", "# from __future__") for name in wanted
            )


def successors(text: str) -> Iterator[tuple[str, str]]:
    """Options registered with `new_flag`, and that."""
    for call in ast.walk(ast.parse(text)):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument":
            new = [
                word.value.value
                for word in call.keywords
                if word.arg == "new_flag" and isinstance(word.value, ast.Constant)
            ]
            yield from ((str(name.value), str(new[0])) for name in call.args if new and isinstance(name, ast.Constant))


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 3 else sys.exit(__doc__)
