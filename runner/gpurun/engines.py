"""What gpurun knows about inference engines. An engine is a data file, `data/engines/<name>.yml`: how it is installed,
its argv, its flag conventions, when it is ready, where it tells its effective settings.

Templates in those files see the same facts as a campaign (`host`, `gpus`, `model`, `axes`, `port`, `bind`) and
`engine` (`version`, `dir`: its environment on the host, `python`, `bin`, `launcher`: path of our launcher, `binary`:
path of the host's own program).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Literal

from gpurun.data import names, table
from gpurun.samples import Record
from gpurun.tree import map_texts

ListForm = Literal["after", "repeat", "comma"]
"""`--x a b`, `--x a --x b` or `--x a,b`."""


class Install(Record):
    """An environment of the engine's own at `<home>/engines/<engine>-<version>`, made by uv from exact packages."""

    python: str | None = None  # version for the environment; null: the host's own
    packages: list[str]  # requirements; `{{ engine.version }}` is the version asked for
    exact: bool = False  # without what the packages ask for: they are all listed
    locked: list[str] = []  # versions that the role `engine` has a lock for: files/locks/<engine>-<version>.txt
    check: list[str] = []  # argv that must succeed in a complete environment
    env: dict[str, str] = {}  # of its servers, unless the campaign says otherwise; an empty text: not set
    prefetch: list[str] = []  # argv that fetches kernels, so that the first start does not; once, where there is a GPU
    disk_gib: float = 1  # free space that the environment and what is downloaded for it may take


class Command(Record):
    """How the server is called, before its flags. Each item is a template; an empty result is left out."""

    env: list[str] = []  # argv where gpurun has installed the engine
    binary: list[str] = []  # argv where the host has its own program
    container: list[str] | None = None  # argv that the engine's own image takes; null: not known


class FlagRules(Record):
    """How a `flags` mapping becomes argv. Key `x` becomes `--x`, a key of one letter `-x`.

    `true` is the bare flag and `false` its negative form: by `negative` where the flag is listed there, else by
    `false_form`. `on_off` names flags that want a word instead: `[word for true, word for false]`.
    """

    false_form: Literal["refuse", "no"] = "refuse"  # refuse: an error; no: `--no-x`
    negative: dict[str, str] = {}  # flag -> its negative flag, without dashes
    on_off: dict[str, tuple[str, str]] = {}
    lists: ListForm = "after"  # maps are always one compact JSON value
    list_forms: dict[str, ListForm] = {}  # exceptions
    aliases: dict[str, str] = {}  # other spellings of a flag -> its long name
    same_underscore: bool = True  # `a_b` and `a-b` are one flag to this engine
    reserved: dict[str, str] = {}  # flags that gpurun sets itself -> why


class Options(Record):
    """How the engine tells, without a GPU, which flags it takes: by `--help` after its command, or by its parser.

    `parser` is Python for the engine's environment that makes `parser` and, where it can, `version`.
    """

    help: bool = False
    parser: str | None = None
    underscores: bool = False  # `--a_b` is taken for `--a-b`
    dotted: bool = False  # `--a.b 1` sets one key of a JSON value


class Ready(Record):
    """When a server is ready: health answers 200, the model list names the model, a generation has answered."""

    health: str | None = "/health"
    models: str | None = "/v1/models"
    generate: dict[Literal["path", "body"], Any] | None = None
    answer: str | None = None  # JSON key that the generation's answer must have


class Effective(Record):
    """Where a running server tells the settings that it really uses; as flat names, dots between the levels."""

    path: str | None = None  # an address that answers with JSON
    metric: str | None = None  # a metric whose labels are settings
    log: dict[str, str] = {}  # setting -> pattern in the log, with one group
    keys: dict[str, str] = {}  # flag -> setting, where the names differ by more than `-` and `_`
    drop: list[str] = []  # patterns of names that differ from start to start by themselves


class Metrics(Record):
    """Where the engine's own counters are, and what they are called there."""

    path: str
    names: dict[str, str] = {}  # our name -> the engine's: counters
    gauges: dict[str, str] = {}  # the same of what rises and falls


class Reset(Record):
    """What empties a running server's caches."""

    path: str  # it is posted to; with `{n}`, for 0, 1, 2 and on
    count: str | None = None  # address that answers with JSON that says how many times, under `key`
    key: str | None = None
    needs: str = ""  # what a campaign sets so that the server takes it


class LoadHints(Record):
    """What a load client should know about this engine."""

    api: Literal["chat", "completions"] = "chat"
    extra_body: dict[str, Any] = {}  # request keys that fix the output length
    tokenize: str | None = None  # path that counts tokens of a text


class Engine(Record):
    """One inference engine."""

    name: str
    title: str
    docs: str
    default_version: str | None = None  # what `engine: name` means; null: no version is known
    install: Install | None = None
    binary: str | None = None  # program that is used, where a host has it, unless the campaign pins a version
    launcher: str | None = None  # file in the engine role that is copied to `engine.launcher`
    command: Command = Command()
    model: Literal["file", "directory", "optional"] = "directory"  # what `model.path` must be
    defaults: dict[str, Any] = {}  # flags unless the campaign says otherwise
    env: dict[str, str] = {}  # environment unless the campaign says otherwise
    flags: FlagRules = FlagRules()
    options: Options = Options()
    ready: Ready = Ready()
    effective: Effective | None = None
    metrics: Metrics | None = None
    reset: Reset | None = None
    load: LoadHints = LoadHints()
    asks: bool = False  # it answers chat requests as OpenAI does: it is asked a few questions at its start
    start_s: float = 60  # seconds that a start is assumed to take, until one was measured


def engine_names() -> tuple[str, ...]:
    """The engines that have a data file, sorted."""
    return names("engines")


@cache
def load_engine(name: str) -> Engine:
    """The engine of that name. KeyError where there is none (check `engine_names` first)."""
    if name not in engine_names():
        raise KeyError(name)
    return Engine.model_validate(table(f"engines/{name}"))


def canonical(rules: FlagRules, flag: str) -> str:
    """The long name of a flag in this engine's main spelling."""
    base, dot, key = flag.partition(".")  # what follows the dot is a key of JSON, which is spelled as it is
    plain = (base.replace("_", "-") if rules.same_underscore else base) + dot + key
    return rules.aliases.get(plain, plain)


def flag_argv(rules: FlagRules, flag: str, value: Any, render: Callable[[str], str] = str) -> list[str]:
    """The arguments that one flag becomes. ValueError where this engine has no way to say it.

    `render` fills in templates; what is not a text or not a template arrives as it was written.
    """
    name = canonical(rules, flag)
    dashed = f"-{flag}" if len(name) == 1 else f"--{name}"
    if isinstance(value, bool) and name in rules.on_off:
        return [dashed, rules.on_off[name][0 if value else 1]]
    if value is True:
        return [dashed]
    if value is False:
        negative = rules.negative.get(name) or (f"no-{name}" if rules.false_form == "no" else None)
        if negative is None:
            raise ValueError(f"`{flag}` has no negative form that gpurun knows")
        return [f"--{negative}"]
    words = [_word(item, render) for item in (value if isinstance(value, list) else [value])]
    form = rules.list_forms.get(name, rules.lists) if isinstance(value, list) else "after"
    if form == "comma" and any("," in word for word in words):
        raise ValueError(f"`{flag}` takes its values with commas between them, so none may hold a comma")
    if form == "repeat":
        return [part for word in words for part in (dashed, word)]
    return [dashed, ",".join(words)] if form == "comma" else [dashed, *words]


def flags_argv(rules: FlagRules, flags: Mapping[str, Any], render: Callable[[str], str] = str) -> list[str]:
    """The arguments of all flags, in their order; those with null are left out."""
    return [
        word for flag, value in flags.items() if value is not None for word in flag_argv(rules, flag, value, render)
    ]


def split_flags(rules: FlagRules, argv: Iterable[str]) -> Iterator[tuple[str, str, list[str], bool]]:
    """Each flag of an argv: its main spelling, how it is written, the words up to the next one, whether `=` joins them.

    For those who know no list of the engine's flags. Words before the first flag come under an empty name.
    """
    name, written, values, joined = "", "", list[str](), False
    for word in argv:
        if re.match(r"--?[A-Za-z]", word):  # what begins with a minus and a digit is a value
            yield name, written, values, joined
            written, equals, value = word.partition("=")
            name, values, joined = canonical(rules, written.lstrip("-")), [value] if equals else [], bool(equals)
        else:
            values.append(word)
    yield name, written, values, joined


def _word(value: Any, render: Callable[[str], str]) -> str:
    """One argument: text through its template, numbers as Python writes them, maps as compact JSON."""
    if isinstance(value, dict):
        return json.dumps(map_texts(value, render), ensure_ascii=False, separators=(",", ":"))
    return render(value) if isinstance(value, str) else str(value)
