"""`gpurun fit`: whether a model fits on cards that need not be there."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence

import click

from gpurun.catalogue import nearest_version, renames, shipped
from gpurun.check_flags import Reading
from gpurun.commands import options
from gpurun.complaints import nearest
from gpurun.engines import Engine, canonical, load_engine
from gpurun.errors import ODD_DATA, ConfigError, Problem
from gpurun.find_launch import LAUNCHES, read_as
from gpurun.fit.cards import read_gpus
from gpurun.fit.flags import Settings, read_flags
from gpurun.fit.question import Fit, Question
from gpurun.fit.sizes import Sizes, knowledge, sizes_of
from gpurun.fit.verdict import BUDGETS, override, predict, sentence
from gpurun.hub import describe
from gpurun.text import fill

# Of `--json`, a contract.
KEYS = (
    *("default_mem_fraction_static", "kv_bytes_per_token", "weights_gib", "available_gib"),
    *("rest_gib", "min_mem_fraction_static", "kv_tokens", "fits"),
)


@click.command("fit", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="MODEL [ENGINE FLAGS]")
@click.option("--gpu", required=True, metavar="CARDS", help='such as "8x RTX PRO 6000", or "4x 80GiB"')
@click.option("--engine", required=True, metavar="NAME[==VERSION]", help="sglang, vllm, llamacpp or trtllm")
@click.option("--available-gib", type=float, help="measured: free on the fullest GPU after the weights")
@click.option("--total-gib", type=float, help="measured: free on it before the weights")
@options.as_json
def command(words: tuple[str, ...], gpu: str, engine: str, as_json: bool, **measured: float | None) -> None:
    """Predict whether MODEL fits, without hosts. All numbers are of one GPU.

    MODEL is a folder, a .gguf file, a hub id (`org/model`, only headers are read), or `none` for the engine's defaults
    alone. The engine's own flags stand among the options: --tp 8 --mem-fraction-static 0.55.

    The exit code is 0 whatever the answer: `fits` of --json is true, false, or null where it cannot be told.
    """
    question = ask(words, gpu, engine, **measured)
    found = predict(question)
    if found is None:
        message = "no memory can be predicted from a value of a flag or of the model"
        raise ConfigError(message, hint="look at their numbers")
    if as_json:
        known = {key: getattr(found, key) for key in KEYS}
        document = {"schema": "gpurun.fit/1", **known, "said": sentence(question, found), "notes": found.notes}
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(told(question, found))


def ask(
    words: tuple[str, ...], gpu: str, engine: str, available_gib: float | None = None, total_gib: float | None = None
) -> Question:
    """The question that a command line asks. ConfigError with all that is wrong with it."""
    name, _, version = engine.partition("==")
    version = version.removeprefix("v")
    with_budget = tuple(sorted(BUDGETS))
    if name not in with_budget:
        message = f"no memory rules for engine `{name}`"
        raise ConfigError([Problem(message, None, with_budget, nearest(name, with_budget))])
    known = load_engine(name)
    if version and not any(map(str.isdigit, version)):
        raise ConfigError(f"`{engine}` names no version of {name}", hint=f"write {name}=={known.default_version}")
    settings, problems = read_words(words, known, read_as(known, version))
    if len(settings.words) != 1 or not settings.words[0]:
        given = f"{len(settings.words)} are given: {', '.join(settings.words)}" if settings.words else "none is given"
        problems.append(Problem(f"one MODEL is wanted, {given}", hint="say `none` for the engine's defaults alone"))
    for value, option in ((available_gib, "--available-gib"), (total_gib, "--total-gib")):
        if value is not None and not 0 < value < 10_000:
            problems.append(Problem(f"`{option} {value:g}` is no memory of a GPU", hint="GiB of one GPU are wanted"))
    if available_gib is not None and total_gib is not None and 0 < total_gib < available_gib:
        message = "`--available-gib` is more than `--total-gib`"
        problems.append(Problem(message, hint="available is what the weights leave"))
    if problems:
        raise ConfigError(problems)
    cards, model = read_gpus(gpu), settings.words[0]
    sizes = None if model == "none" else _sizes(model)
    draft = settings.values.get("draft_model") or settings.values.get("draft_config", {}).get("model")
    draft_sizes = _sizes(draft) if draft and sizes is not None else None
    asked_of = (name, version or known.default_version, settings.values, cards)
    question = Question(*asked_of, sizes, draft_sizes, available_gib, total_gib)
    problems = wrong(question, settings)
    if problems:
        raise ConfigError(problems)
    return question


def read_words(words: Sequence[str], engine: Engine, version: str | None) -> tuple[Settings, list[Problem]]:
    """What the words of a command line set, MODEL among them however it is said, and what is wrong with the flags.

    The shipped options of the version, or of the nearest, say which words are a flag's values and which is MODEL.
    """
    flags = knowledge(engine.name)["flags"]
    nearest_one = nearest_version(engine.name, version)
    if nearest_one is None:
        settings = read_flags(words, engine.flags, flags)
        misspelt = [problem for flag in settings.others if (problem := _misspelt(flag, flags))]
        return settings, [*settings.problems, *misspelt]
    reading = Reading(shipped(engine.name, nearest_one), engine, words)
    starts = [*(part.at for part in reading.parts), *reading.strays, len(words)]
    models = [key for key, said in LAUNCHES["models"].get(engine.name, {}).items() if said == "model"]
    memory: list[str] = []
    found, problems = [words[at] for at in reading.strays], list[Problem]()
    for part in reading.parts:
        key = canonical(engine.flags, part.name.lstrip("-"))
        end = min(start for start in starts if start > part.at)
        said = [each for each in reading.findings if part.at <= each.at < end and not each.note]
        # Another version than that of the list may have had it.
        tolerated = nearest_one != version and (key in flags or part.name in renames(engine.name))
        if key in models and part.values:
            found.append(part.values[0])
        elif not tolerated and (part.option is None or part.option.removed):
            problems.append(next(each for each in reading.findings if each.at == part.at))
        elif nearest_one == version and part.option is not None and part.option.choices and said:
            problems.append(said[0])
        elif key in flags:
            memory += words[part.at : end]
    settings = read_flags(memory, engine.flags, flags)
    settings.words[:0] = found
    return settings, [*settings.problems, *problems]


def wrong(question: Question, settings: Settings) -> list[Problem]:
    """What no arithmetic helps: more GPUs than there are, heads that cannot be divided."""
    problems, split, cards = [], question.split, question.gpus
    if cards is not None and question.needs_gpus > cards.count:
        of = [each for each in ("tp", "pp", "dp") if each in settings.given]
        what = " ".join(f"{settings.given[each]} {settings.values[each]}" for each in of)
        hint = f'name that many cards: `--gpu "{question.needs_gpus}x {cards.name}"`'
        message = f"`{what}` needs {question.needs_gpus} GPUs, and `--gpu` names {cards.count}"
        problems.append(Problem(message, hint=hint))
    shares = int(question.get("attn_dp") or (question.get("dp", 1) if question.get("dp_attention") else 1))
    if split.tp % shares:
        hint = "data parallel attention splits the GPUs of tensor parallelism into equal groups"
        problems.append(Problem(f"{split.tp} GPUs cannot be divided into {shares} groups for attention", hint=hint))
        return problems
    if question.sizes is not None and question.sizes.heads % split.attention:
        heads, tp = question.sizes.heads, split.attention
        fits = ", ".join(str(each) for each in range(1, 65) if heads % each == 0)
        hint = f"{heads} can be divided by {fits}"
        problems.append(Problem(f"{heads} attention heads cannot be divided over {tp} GPUs", hint=hint))
    sizes, group = question.sizes, split.attention
    if not problems and sizes is not None and not sizes.latent and sizes.kv_heads % group and group % sizes.kv_heads:
        message = f"{sizes.kv_heads} KV heads can be neither divided over {group} GPUs nor repeated on them"
        problems.append(Problem(message, hint=f"take a number that divides {sizes.kv_heads}, or a multiple of it"))
    return problems


def told(question: Question, found: Fit) -> str:
    """A short table and a sentence."""
    change = override(question, found)
    return fill("fit.txt.j2", asked=question, found=found, said=sentence(question, found), change=change)


def _sizes(model: str) -> Sizes:
    try:
        return sizes_of(describe(model), model)
    except ODD_DATA as error:
        raise ConfigError(f"cannot make sense of the sizes of `{model}`: {error}") from None


def _misspelt(flag: str, flags: Iterable[str]) -> Problem | None:
    """A flag of memory that is misspelt or shortened; other flags are none of our business."""
    plain = flag.lstrip("-").replace("_", "-")
    names = {known.replace("_", "-"): known for known in flags}
    near = [name for name in names if name.startswith(plain)] or difflib.get_close_matches(plain, names, 1, 0.85)
    if not near:
        return None
    message = f"`{flag}` is no flag that counts here"
    return Problem(message, None, (), f"--{names[near[0]]}", "flags are written out in full")
