#!/usr/bin/python
"""A Python environment, made once by uv from pinned packages: see DOCUMENTATION."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

# isort: split
from ansible.module_utils.gpurun_uv import environment, explain, find_uv, run
from ansible.module_utils.gpurun_worker import Trouble, carry_on, fail, from_os_error

DOCUMENTATION = r"""
module: gpurun_env
short_description: One uv environment for an engine or a tool
description:
  - Makes a virtual environment from exact packages, checks what is in it, and marks it complete as the last step.
  - A complete environment is left alone. A half-made or different one is made anew.
  - Waits at most O(wait_s); call again while RV(status=working). Two runs at once wait for one another.
options:
  path: {description: Folder of the environment., type: str, required: true}
  requirements:
    description: Lines of a requirements file with exact versions; hashes are checked where given.
    type: str
    required: true
  uv: {description: "uv on this host; where it does not run, one on PATH.", type: str, required: true}
  exact: {description: "Install these packages only, without what they ask for.", type: bool, default: false}
  cache: {description: "uv's cache, unless UV_CACHE_DIR is set.", type: str, required: true}
  python: {description: "Python version of the environment; by default the Python that runs this module.", type: str}
  files:
    description:
      - Files to keep in the environment's folder, by relative path.
      - Python packages among them can be imported in the environment, from any working directory.
    type: dict
    default: {}
  check:
    description: A command that must succeed in the environment's folder, after the installation and after a change.
    type: list
    elements: str
    default: []
  prefetch:
    description: A command that fetches what the first start would, after the installation. Its failure is only told.
    type: list
    elements: str
    default: []
  builds:
    description:
      - Requirements to build from source with what is in the environment, one after the other, after the installation.
      - As many compilers at once (C(MAX_JOBS)) as the memory allows, unless the environment says.
    type: list
    elements: str
    default: []
  wait_s: {description: Seconds that one call may take., type: float, default: 20}
  life_s: {description: Seconds after which the installation is given up., type: int, default: 3600}
author: gpurun
"""

EXAMPLES = r"""
- name: Install
  gpurun_env:
    path: ~/.gpurun/engines/llamacpp-1.2.3
    requirements: "xllamacpp==1.2.3"
    uv: ~/.gpurun/bin/uv
    cache: ~/.gpurun/cache/uv
  register: result
  until: result.status != "working"
  retries: 100
  delay: 0
"""

RETURN = r"""
status: {description: "complete or working; missing, in check mode.", type: str, returned: always}
dir: {description: The environment's folder., type: str, returned: when complete}
python: {description: Its Python., type: str, returned: when complete}
versions: {description: Version of each package pinned without condition., type: dict, returned: when complete}
note: {description: "Why nothing was prefetched, or empty.", type: str, returned: when complete}
seconds: {description: "What making it took; 0 where it was there.", type: float, returned: when complete}
progress: {description: What the installation last said., type: dict, returned: when working}
failure: {description: "class, message, proof, advice.", type: dict, returned: on failure}
"""

MARKER = ".complete"
_VERSIONS = "import importlib.metadata as m,json,sys;print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"


class Environment:
    """The environment as asked for, and what is there of it."""

    def __init__(self, params):
        self.path = Path(params["path"]).expanduser().absolute()
        self.python = self.path / "bin" / "python"
        self.requirements = params["requirements"].strip() + "\n"
        self.params = params
        self.interpreter = params["python"] or str(Path(sys.executable).resolve())
        # Those with a condition (`; python_version < "3.12"`) are uv's to judge.
        self.pins = dict(re.findall(r"(?m)^([\w.-]+)(?:\[[^]]*\])?==([^\s;\\]+)\s*\\?$", self.requirements))
        identity = [self.requirements, params["python"] or platform.python_version_tuple()[:2]]
        self.hash = hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def complete(self):
        """What the marker says, if this very environment is complete and its Python still exists."""
        try:
            marker = json.loads((self.path / MARKER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return marker if marker.get("hash") == self.hash and self.python.exists() else None

    def make(self, report):
        """Build it; the marker comes last, so that whatever ends this leaves an environment that is not complete."""
        begin = time.monotonic()
        marker = self.complete() or self.install(report)
        for package in self.unbuilt(marker):
            self.build(package, report)
            marker["builds"].append(package)
            self.mark(marker)
        return {**marker, "seconds": round(time.monotonic() - begin, 3)}

    def unbuilt(self, marker):
        """What is still to be built in a complete environment."""
        return [package for package in self.params["builds"] if package not in marker.setdefault("builds", [])]

    def install(self, report):
        """Make the environment anew; what the marker then says."""
        uv = find_uv(self.params["uv"])
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        env = environment(str(Path(self.params["cache"]).expanduser()))
        if not self.params["python"]:
            env["UV_PYTHON_DOWNLOADS"] = "never"
        what = self.path.name
        run([uv, "venv", "--clear", "--python", self.interpreter, str(self.path)], "/", env, what, report)
        listing = self.path / "requirements.txt"
        listing.write_text(self.requirements, encoding="utf-8")
        install = [uv, "pip", "install", "--python", str(self.python), "-r", str(listing)]
        install += ["--no-deps"] if self.params["exact"] else []
        run(install, str(self.path), env, what, report)
        versions = self.versions()
        for packages in (self.path / "lib").glob("python*/site-packages"):
            (packages / "gpurun.pth").write_text("../../..\n", encoding="utf-8")
        self.write_files()
        self.check()
        env["PATH"] = os.pathsep.join([str(Path(uv).parent), env.get("PATH", os.defpath)])
        note = self.prefetch(env, report)
        document = {"hash": self.hash, "versions": versions, "note": note, "builds": [], "made_at": time.time()}
        self.mark(document)
        return document

    def mark(self, document):
        """Say that the environment is complete."""
        replace(self.path / MARKER, json.dumps(document).encode())

    def prefetch(self, env, report):
        """Fetch what the first start would, by commands that want uv on PATH: there is no pip here. Its failure costs
        that start time, and nothing else: returns why."""
        if not self.params["prefetch"]:
            return ""
        try:
            run(self.params["prefetch"], str(self.path), env, f"{self.path.name}, kernels", report)
        except Trouble as trouble:
            why = trouble.message if trouble.advice else (trouble.proof or trouble.message).splitlines()[-1]
            return f"nothing was prefetched, so the first start takes longer: {why}"
        return ""

    def build(self, package, report):
        """Build one package against those that are there. Such a compiler takes gigabytes: some 8 each are reckoned."""
        env = environment(str(Path(self.params["cache"]).expanduser()))
        pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        env.setdefault("MAX_JOBS", str(max(1, min(len(os.sched_getaffinity(0)) // 2, pages >> 33))))
        argv = [find_uv(self.params["uv"]), "pip", "install", "--python", str(self.python), "--no-build-isolation"]
        argv += ["--constraint", str(self.path / "requirements.txt"), package]
        run(argv, str(self.path), env, f"{package} for {self.path.name}", report)

    def versions(self):
        """Versions as the environment itself tells them. Trouble where they are not those asked for."""
        answer = self.ask([str(self.python), "-c", _VERSIONS, *self.pins])
        if answer.returncode:
            message = f"{self.path} is not usable after the installation"
            raise Trouble("missing_dependency", message, answer.stderr[-2000:])
        found = json.loads(answer.stdout)
        wrong = [f"{name} {found[name]}, not {pin}" for name, pin in self.pins.items() if found[name] != pin]
        if wrong:
            raise Trouble("missing_dependency", f"{self.path} got {'; '.join(wrong)}", "", "check the package index")
        return found

    def write_files(self):
        """Put our files in place, each atomically. True where any was not there as it should be."""
        changed = False
        for name, text in self.params["files"].items():
            path, data = self.path / name, text.encode("utf-8")
            if not path.is_file() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                replace(path, data)
                changed = True
        return changed

    def check(self):
        """Run the check that was asked for."""
        if self.params["check"]:
            answer = self.ask(self.params["check"])
            if answer.returncode:
                lines = (answer.stdout + answer.stderr).splitlines()
                raise explain(lines, f"{' '.join(self.params['check'])} in {self.path}", answer.returncode)

    def ask(self, argv):
        """Run a command in the environment's folder."""
        return subprocess.run(
            argv, cwd=self.path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
        )


def replace(path, data):
    """Write a file so that it is there as a whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(data)
    fresh.replace(path)


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "str", "required": True},
            "requirements": {"type": "str", "required": True},
            "uv": {"type": "str", "required": True},
            "cache": {"type": "str", "required": True},
            "exact": {"type": "bool", "default": False},
            "python": {"type": "str"},
            "files": {"type": "dict", "default": {}},
            "check": {"type": "list", "elements": "str", "default": []},
            "prefetch": {"type": "list", "elements": "str", "default": []},
            "builds": {"type": "list", "elements": "str", "default": []},
            "wait_s": {"type": "float", "default": 20.0},
            "life_s": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    wanted = Environment(module.params)
    marker, seconds, changed = wanted.complete(), 0.0, False
    todo = marker is None or bool(wanted.unbuilt(marker))
    if module.check_mode:
        module.exit_json(
            changed=todo, status="missing" if todo else "complete", dir=str(wanted.path), python=str(wanted.python)
        )
    try:
        if todo:
            news = carry_on(str(wanted.path), wanted.make, module.params["wait_s"], module.params["life_s"])
            if news["status"] == "working":
                module.exit_json(changed=False, status="working", progress=news["progress"])
            marker, seconds, changed = news["result"], news["result"]["seconds"], True
        elif wanted.write_files():
            wanted.check()
            changed = True
    except Trouble as trouble:
        fail(module, trouble)
    except OSError as error:
        fail(module, from_os_error(error))
    versions = marker["versions"]
    module.exit_json(
        changed=changed,
        status="complete",
        dir=str(wanted.path),
        python=str(wanted.python),
        versions=versions,
        note=marker.get("note", ""),
        seconds=seconds,
    )


if __name__ == "__main__":
    main()
