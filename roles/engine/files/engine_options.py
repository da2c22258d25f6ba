"""The options that an engine's own command line has, read from the engine itself, without a GPU.

Runs on a host, with its Python (>= 3.9): `read` answers for several engines, each from its cache where that is fresh.
An engine written in Python is asked in its own environment, where this same text builds its argparse parser (`dump`);
any other tells its options by `--help` (`options_of_help`). One in an image is asked in a container of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

SCHEMA = "gpurun.options/1"
LIMIT_S = 300
ANSWER_S = 30  # of a container engine, about what it has
ENV = {"PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
NUMBER = re.compile(r"N|[A-Z_]*INDEX|SECONDS|SEED|SIMILARITY")  # what --help calls a number
WORDS = re.compile(r"'([A-Za-z][\w-]*)'")


# --- argparse


def accepts(convert, text):
    """Whether an option's type takes this text."""
    try:
        convert(text)
    except Exception:  # the engine's own code: whatever it raises, it has refused
        return False
    return True


def type_of(convert):
    """What an option's type is by what it takes, since engines wrap and nest their converters."""
    if convert in (None, str):
        return {}
    takes = {
        text: accepts(convert, text) for text in ("1", "8080", "1.5", "1k", "auto", "x", "{}", "{x}", "[]", "None")
    }
    if takes["x"]:
        return {} if takes["{x}"] else {"type": "text_or_json"}
    optional = {"none": True} if takes["None"] else {}
    if takes["{}"] or dataclass_in(convert):
        return {"type": "json", **keys_of(convert), **optional}
    if takes["[]"]:
        return {"type": "json", **optional}
    if takes["1k"]:
        return {"type": "size_or_auto" if takes["auto"] else "size", **optional}
    if takes["1"] or takes["8080"]:
        return {"type": "float" if takes["1.5"] else "int", **optional}
    return {}


def dataclass_in(convert, depth=4):
    """The dataclass that a converter closes over, if any: it reads JSON into it."""
    if depth and callable(convert):
        found = [*(getattr(convert, "__defaults__", None) or ())]
        found += [cell.cell_contents for cell in getattr(convert, "__closure__", None) or ()]
        for item in found:
            inside = (
                item if isinstance(item, type) and dataclasses.is_dataclass(item) else dataclass_in(item, depth - 1)
            )
            if inside:
                return inside
    return None


def keys_of(convert):
    """The keys of a JSON value, where the engine refuses others."""
    model = dataclass_in(convert)
    if model is None or accepts(convert, '{"gpurun_no_such_key": 1}'):
        return {}
    return {"keys": sorted(field.name for field in dataclasses.fields(model) if field.init)}


def plain(value):
    """A default or choice as JSON has it."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return None


def told(action, deprecated):
    """What the parser says about the end of an option: a note, or that it is refused, and what to use instead."""
    text = " ".join((action.help or "").replace("%%", "%").split())
    error, new = getattr(action, "error_message", None), getattr(action, "new_flag", None)
    if error:
        return {"removed": error, **instead(error, action)}
    about_itself = re.match(r"[\[(]?\s*deprecated|\S+ (\(\S+\) )?is deprecated", text, re.IGNORECASE)
    if not (about_itself or action in deprecated or new or getattr(action, "deprecated", False)):
        return {}
    words = f"Use {new} instead." if new else text[:200] if about_itself else "It is deprecated."
    return {"deprecated": words, **instead(words, action)}


def instead(text, action):
    """The options that a text about the end of another one names."""
    names = [name.rstrip(".-") for name in re.findall(r"--[A-Za-z0-9][\w.-]*", text)]
    names = [name for name in dict.fromkeys(names) if name not in action.option_strings]
    return {"instead": names} if names else {}


def option_of(action, names, deprecated):
    """One option as plain data, without what is usual."""
    names = [*action.option_strings, *(name for name in names if name not in action.option_strings)]
    negative = getattr(action, "negative_option_strings", None)
    if negative is None:
        negative = [name for name in names if isinstance(action, argparse.BooleanOptionalAction) and "--no-" in name]
    option = {"names": [name for name in names if name not in negative]}
    if negative:
        option["negative"] = [name for name in names if name in negative]
    if action.nargs is not None:
        option["takes"] = action.nargs
    if action.nargs != 0:
        option |= type_of(action.type)
    if action.choices is not None:
        option["choices"] = [choice for choice in map(plain, action.choices) if choice is not None]
    if "append" in type(action).__name__.lower():
        option["repeats"] = True
    if action.required:
        option["required"] = True
    default = plain(action.default)
    if default not in (None, False, [], argparse.SUPPRESS):
        option["default"] = default
    return {**option, **told(action, deprecated)}


def options_of_parser(parser):
    """Every option of an argparse parser, in its order."""
    names = {}
    for name, action in parser._option_string_actions.items():
        names.setdefault(id(action), (action, []))[1].append(name)
    deprecated = getattr(parser, "_deprecated", ())
    return [option_of(action, own, deprecated) for action, own in names.values() if "-h" not in own]


def dump(code):
    """In the engine's own Python: `code` makes `parser`; its options as JSON on the last line of standard output."""
    signal.alarm(LIMIT_S)  # a container outlives whoever asked
    space = {}
    exec(compile(code, "<parser>", "exec"), space)  # noqa: S102 (from the engine's data file)
    told = {"version": space.get("version"), "options": options_of_parser(space["parser"])}
    print("\n" + json.dumps(told), flush=True)


# --- --help


def options_of_help(text):
    """The options that llama-server's --help lists: names, a metavariable if a value follows, then what they do."""
    options = []
    for block in re.split(r"\n(?=-)", "\n" + text):
        if not re.match(r"--?[A-Za-z]", block):
            continue
        first, *more = block.splitlines()
        head, _, words = re.sub(r"^(--?[\w-]+,) {2,}", r"\1 ", first).partition("  ")
        about = " ".join([words.strip(), *(line.strip() for line in more if line.startswith("   "))])
        found = re.match(r"((?:--?[\w.-]+, )*--?[\w.-]+)(?: (.+))?$", head.strip())
        if found is None:
            continue
        names, value = found.group(1).split(", "), found.group(2)
        options.append({"names": names, **_switch(value, names), **_takes(value, about), **_ended(about, names)})
    return [option for option in options if "--help" not in option["names"]]


def _switch(value, names):
    """What takes no value: its names for, then those against it."""
    if value is not None:
        return {}
    against = [bool(re.match(r"--no-|-n", name)) for name in names]
    first = len(names) if against[0] or True not in against else against.index(True)
    return {"takes": 0, "names": names[:first], **({"negative": names[first:]} if names[first:] else {})}


def _takes(value, about):
    if value is None:
        return {}
    choices = re.fullmatch(r"[{\[<]([\w.-]+(?:[,|][\w.-]+)+)[}\]>]", value)
    allowed = re.search(r"allowed values: ([\w-]+(?:, [\w-]+)*)", about)
    if choices and ".." not in value:
        return {"choices": re.split(r"[,|]", choices.group(1))}
    if allowed:
        return {"choices": allowed.group(1).split(", ")}
    several = re.fullmatch(r"[a-z0-9-]+(?:,[a-z0-9-]+){2,}", value)
    if several:
        return {"choices": value.split(","), "commas": True}
    if len(value.split()) == 2 and value.isupper():  # START END
        return {"takes": 2}
    if NUMBER.fullmatch(value):
        words = WORDS.findall(about)
        return {"type": "number", **({"words": words} if words else {})}
    return {}


def _ended(about, names):
    if "the argument has been removed" in about:
        named = re.findall(r"--[a-z][\w*-]*", about)
        return {"removed": about.split(" (env:")[0][:200], **({"instead": list(dict.fromkeys(named))} if named else {})}
    old = re.search(r"deprecated", about, re.IGNORECASE)
    if not old:
        return {}
    named = [name for name in re.findall(r"--[a-z][\w-]*", about) if name not in names]
    return {"deprecated": about[:120].strip(), **({"instead": named[:1]} if named else {})}


# --- on a host


def python_of(program):
    """The Python that a script's first line names."""
    with Path(program).open("rb") as stream:
        line = stream.readline(512)
    words = line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
    if words and Path(words[0]).name == "env" and len(words) > 1:
        words = words[1:]
    return words[0] if words and "python" in Path(words[0]).name else None


def identity(want):
    """What the cache is keyed on: the question, and the state of the program that answers it."""
    parts = [want["parser"], want["help"], want["version"]]
    if want.get("container"):
        parts += [want["container"], said_by(want["container"], "image", "inspect", "--format", "{{.Id}}")]
    for path in (want["python"], want["binary"], want["launcher"]):
        if path and Path(path).exists():
            real = Path(path).resolve()
            parts += [str(real), real.stat().st_size, int(real.stat().st_mtime)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def said_by(box, *words):
    """What a container engine says of the image. RuntimeError where it has none, or does not answer."""
    argv = [box["runtime"], *words, box["image"]]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S)
    return finished(argv, done).strip()


def in_container(want, name, argv):
    """`argv` in a container of the image with the mounts and options of the server's, but no network and no GPU."""
    box = want["container"]
    command = [box["runtime"], "run", "--rm", "--init", "--pull", "never", "--network", "none", "--name", name]
    run, _, job = os.environ.get("GPURUN_JOB", "").partition("/")
    labels = {"gpurun.home": os.environ.get("GPURUN_HOME", ""), "gpurun.run": run, "gpurun.job": job}  # for `stop`
    command += [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
    command += [word for name, value in ENV.items() for word in ("--env", f"{name}={value}")]
    command += [word for mount in box["mounts"] for word in ("--volume", mount)] + box["args"]
    if want["parser"]:
        command += ["--workdir", "/", "--entrypoint", argv[0]]
        argv = argv[1:]
    return [*command, box["image"], *argv]


def ask(want, source):
    """The options of one engine. RuntimeError says why they cannot be had."""
    if want["parser"]:
        python = want["python"] or python_of(want["binary"])
        if python is None:
            raise RuntimeError(f"{want['binary']} is no Python script")
        argv = [python, "-c", source, "dump", want["parser"]]
    else:
        argv = want["help"]
    name = f"gpurun-options-{os.getpid()}"
    if want.get("container"):
        argv = in_container(want, name, argv)
    try:
        with tempfile.TemporaryDirectory() as folder:  # nothing of ours or of the user's is imported from there
            env = {**os.environ, **ENV}
            done = subprocess.run(
                argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
            )
    except subprocess.TimeoutExpired:
        if want.get("container"):  # it outlives its client
            subprocess.run([argv[0], "rm", "--force", name], capture_output=True, timeout=ANSWER_S)
        raise RuntimeError(f"`{argv[0]}` gave no answer within {LIMIT_S} s") from None
    said = finished(argv, done)
    found = json.loads(said.splitlines()[-1]) if want["parser"] else {"options": options_of_help(said)}
    if not found["options"]:
        raise RuntimeError(f"`{argv[0]}` told no options")
    return {**found, "version": found.get("version") or want["version"]}


def finished(argv, done):
    """The standard output of a program that did what it should."""
    if done.returncode != 0:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise RuntimeError(f"`{shlex.join(argv[:1])}` ended with {done.returncode}: {(said or [''])[-1][:300]}")
    return done.stdout


def read(wants, source, carry_on=None, wait_s=20.0):
    """For each engine wanted its catalogue, `{"error": ...}`, or `{"working": true}`: ask again.

    A fresh one is kept in the engine's folder. `carry_on` (gpurun_worker's) lets what takes longer go on without us.
    """
    return [answer(want, source, carry_on, wait_s) for want in wants]


def answer(want, source, carry_on, wait_s):
    """The answer of one engine."""
    cache = Path(want["cache"]).expanduser()
    try:
        key = identity(want)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # of an image that cannot be looked at
        return {"error": str(error)[:500]}
    try:
        kept = json.loads(cache.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = {}
    if kept.get("key") == key:
        return kept
    while True:
        if carry_on is None:
            return make(want, key, cache, source)
        try:
            news = carry_on(cache, lambda report: make(want, key, cache, source), wait_s, LIMIT_S + 30)
        except Exception as error:  # the worker's own Trouble, as when it was ended from outside
            return {"error": str(error)}
        if news["status"] == "working":
            return {"working": True}
        if news["result"]["key"] == key:  # else one that nobody fetched, of a program that has changed since
            return news["result"]


def make(want, key, cache, source):
    """Ask an engine and keep what it says."""
    try:
        found = {"schema": SCHEMA, "engine": want["name"], "key": key, **ask(want, source)}
        cache.parent.mkdir(parents=True, exist_ok=True)
        fresh = cache.with_name(cache.name + ".new")
        fresh.write_text(json.dumps(found), encoding="utf-8")
        fresh.replace(cache)
    except (OSError, ValueError, RuntimeError, subprocess.SubprocessError) as error:
        return {"error": f"{type(error).__name__}: {error}"[:500], "key": key}
    return found


if __name__ == "__main__" and sys.argv[1:2] == ["dump"]:
    dump(sys.argv[2])
