"""Environments and models of a host's login user: from wishes and facts to steps, or to refusals. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from gpurun.config import Model
from gpurun.engines import engine_names, load_engine
from gpurun.errors import ConfigError
from gpurun.hardware import knowledge
from gpurun.launch import home_of, model_on_host, to_install
from gpurun.provisioning import Refusal, Step

_GIB = 1 << 30
_HINT = "write it as `model` in a campaign"
Decided = tuple[list[Step], list[Refusal]]


def engines_on(
    host: Mapping[str, Any], wanted: Sequence[str], builds: Mapping[str, Sequence[str]], gpus: bool
) -> list[dict[str, Any]]:
    """What the role `engine` is told of each engine: `NAME` or `NAME==VERSION`. ConfigError where there is no such."""
    found = []
    for text in wanted:
        name, _, version = text.partition("==")
        known = [one for one in engine_names() if load_engine(one).install]
        if name not in known:
            raise ConfigError(f"gpurun installs no engine `{name}`", hint=f"it installs {', '.join(known)}")
        engine = load_engine(name)
        one = to_install(engine, version or engine.default_version, host)
        assert engine.install is not None
        one |= {"builds": list(builds.get(name, ())), "gib": engine.install.disk_gib}
        found.append({**one, "prefetch": one["prefetch"] if gpus else []})
    return found


def models_on(host: Mapping[str, Any], wanted: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the role `model` is told of each model, as a campaign says it. ConfigError where it is not pinned."""
    found = []
    for one in wanted:
        try:
            model = model_on_host(Model.model_validate(one), home_of({"host": host}))
        except ValidationError as error:
            raise ConfigError(f"model {dict(one)}: {error.errors()[0]['msg']}", hint=_HINT) from None
        pin = {"hf": "revision", "url": "sha256"}.get(str(model["kind"]))
        if model["kind"] is None or (pin and not model.get(pin)):
            raise ConfigError(f"model {dict(one)} lacks {pin or 'hf, url, wheel or path'}", hint=_HINT)
        found.append(model)
    return found


def check_cuda(version: str) -> None:
    """ConfigError where there is no lock for the wheels of this CUDA."""
    locked = knowledge()["cuda"]["wheels"]
    if version and version not in locked:
        raise ConfigError(
            f"CUDA {version} cannot be installed from wheels", hint=f"there are locks for {', '.join(locked)}"
        )


def decide(host: Mapping[str, Any], missing: Sequence[Step], gib: float, remove: Sequence[str], held: bool) -> Decided:
    """What is to be done, of what is missing (it takes `gib` in all) and what is to go, and why it cannot be done."""
    steps = [*missing, *(Step("remove", f"remove {what}", "gpurun has made it") for what in remove)]
    free = (host.get("disk_free_bytes") or 0) / _GIB
    if missing and gib > free and host.get("disk_free_bytes") is not None:
        say = f"too little free space: {host['home']} has {free:.1f} GiB and needs {gib:.1f}"
        return steps, [Refusal("disk", say, "make room there, or set `gpurun_home` to a folder on a larger disk")]
    if remove and held:
        return steps, [Refusal("in_use", "a run of gpurun holds this host", "wait for its end, or end it: gpurun stop")]
    if steps and not host.get("home_writable", True):
        say = f"{host['user']} may not write {host['home']}"
        return steps, [Refusal("home", say, "set `gpurun_home` to a folder that this user may write")]
    return steps, []
