"""Why a host cannot be used, in plain words, by what ssh, sudo and Ansible say (data/reachability.yml). Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from gpurun.data import table

LOGIN = "\nlogin: "
_NAMED = re.compile(r'remote host "([^"]+)"')
_NOISE = re.compile(
    r'Task failed: |Data could not be sent to remote host "[^"]*"\. |Make sure this host can be reached over ssh: |'
    r"Failed to connect to the host via ssh: "
)


@dataclass(frozen=True)
class Trouble:
    """What keeps a host from being used. `kind` is a word of the table, or None where no pattern matches."""

    kind: str | None
    message: str
    fix: str


def explain(said: str, host: str = "the host") -> Trouble:
    """The cause behind a task's message, and how to proceed. What is unknown is told as it is, with an empty `fix`.

    `host` is its name in the inventory. A line that LOGIN begins has the command that logs in there by hand.
    """
    text, _, login = said.replace("\r\n", "\n").partition(LOGIN)
    problem, _, own = text.partition("\nhint: ")
    if own:  # our own modules know the next step themselves
        return Trouble(None, _NOISE.sub("", problem).strip(), own.strip())
    named = _NAMED.search(text)
    for pattern, entry in _table():
        found = pattern.search(text)
        if found:
            known = {key: value for key, value in found.groupdict().items() if value}
            words = {"host": host, "address": named.group(1) if named else host, "port": "22", **known}
            words["login"] = login or f"ssh {words['address']}"
            return Trouble(entry["kind"], entry["message"].format_map(words), entry["fix"].format_map(words))
    return Trouble(None, _NOISE.sub("", text).strip(), "")


def told(troubles: Mapping[str, str]) -> tuple[str, str]:
    """What is wrong with several hosts (name -> a task's message), as one sentence, and as one hint how to proceed."""
    known = {host: explain(said, host) for host, said in troubles.items()}
    fixes: dict[str, list[str]] = {}
    for host, trouble in ((host, trouble) for host, trouble in known.items() if trouble.fix):
        fixes.setdefault(trouble.fix, []).append(host)
    hint = "; ".join(fix if len(known) == len(hosts) else f"{', '.join(hosts)}: {fix}" for fix, hosts in fixes.items())
    return "; ".join(f"{host}: {trouble.message}" for host, trouble in known.items()), hint


def by_hand(host: str, variables: Mapping[str, object]) -> str:
    """The command that logs in as Ansible does, by a host's variables. What only a template tells is left out."""

    def value(*names: str) -> str:
        found = (str(variables[name]) for name in names if variables.get(name))
        return next((text for text in found if "{{" not in text), "")

    port, user = value("ansible_port", "ansible_ssh_port"), value("ansible_user", "ansible_ssh_user")
    key = value("ansible_ssh_private_key_file", "ansible_private_key_file")
    address = value("ansible_host", "ansible_ssh_host") or host
    words = [*(["-i", key] if key else []), *(["-p", port] if port else [])]
    options = value("ansible_ssh_common_args")  # words for a shell already, such as a ProxyJump
    to = f"{user}@{address}" if user else address
    return " ".join(filter(None, ["ssh", shlex.join(words), options, shlex.quote(to)]))


@cache
def _table() -> list[tuple[re.Pattern[str], dict[str, str]]]:
    entries = table("reachability")
    return [(re.compile(entry["pattern"], re.DOTALL), entry) for entry in entries]
