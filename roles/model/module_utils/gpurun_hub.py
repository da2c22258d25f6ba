"""Models from the Hugging Face hub, or a mirror with its URL layout (HF_ENDPOINT).

https://huggingface.co/docs/hub/api: `/api/models/<repo>/revision/<rev>` names the commit,
`/api/models/<repo>/tree/<rev>` lists the files with sizes and checksums, `/<repo>/resolve/<rev>/<path>` gives a file.
"""

from __future__ import annotations

import fnmatch
import hashlib
from urllib.parse import quote

from ansible.module_utils.gpurun_download import Web, sha256_of
from ansible.module_utils.gpurun_worker import Trouble

# Other formats of the same weights, which no engine here reads beside safetensors.
_DUPLICATES = ("original/*", "*.pth", "*.pt", "*.msgpack", "*.h5", "*.onnx", "onnx/*", "*.tflite", "*.ot", "*.gguf")


def fetch(source, folder, endpoint, token, report):
    """Download a repository, or of it what `file` names. Returns the commit and what was fetched: path -> sha256."""
    hub = Hub(source["hf"], endpoint.rstrip("/"), token)
    commit = hub.commit(source["revision"])
    wanted = choose(hub.files(commit), source.get("file"))
    if not wanted:
        what = f"nothing that matches {source['file']!r}" if source.get("file") else "no files"
        raise Trouble("bad_model", f"{source['hf']} at {commit} has {what}", "", "check `file` in the campaign")
    return commit, {entry["path"]: hub.download(commit, entry, folder / entry["path"], report) for entry in wanted}


def choose(entries, pattern):
    """The files to fetch: those that match the pattern; without one, all but other formats of the same weights."""
    if pattern:
        return [entry for entry in entries if fnmatch.fnmatchcase(entry["path"], pattern)]
    skip = _DUPLICATES
    if any(entry["path"].endswith(".safetensors") for entry in entries):
        skip += ("*.bin",)
    return [entry for entry in entries if not any(fnmatch.fnmatchcase(entry["path"], each) for each in skip)]


class Hub:
    """One repository."""

    def __init__(self, repo, endpoint, token):
        self._repo, self._endpoint = repo, endpoint
        self._web = Web(token=token, origin=endpoint, meaning=self._meaning)
        self._has_token = bool(token)

    def commit(self, revision):
        """The commit that a branch, tag or commit stands for."""
        answer, _ = self._web.json(
            f"{self._endpoint}/api/models/{quote(self._repo)}/revision/{quote(revision, safe='')}"
        )
        return answer["sha"]

    def files(self, commit):
        """Every file, in pages as the hub gives them."""
        url, found = f"{self._endpoint}/api/models/{quote(self._repo)}/tree/{commit}?recursive=true", []
        while url:
            entries, url = self._web.json(url)
            found += [entry for entry in entries if entry["type"] == "file"]
        return found

    def download(self, commit, entry, target, report):
        """One file; its checksum is compared with the hub's: SHA-256 of a large file, git's own of a small one."""
        target.parent.mkdir(parents=True, exist_ok=True)
        url = f"{self._endpoint}/{quote(self._repo)}/resolve/{commit}/{quote(entry['path'])}"
        lfs = entry.get("lfs")
        self._web.fetch(url, target, lambda **at: report(line=entry["path"], **at), entry["size"])
        digest = sha256_of(target, report)
        wrong = digest != lfs["oid"] if lfs else _git_id(target) != entry["oid"]
        if wrong:
            size = target.stat().st_size
            target.unlink()
            raise Trouble(
                "bad_model",
                f"{entry['path']} of {self._repo} is not what the hub lists",
                f"{size} bytes with sha256 {digest}, listed are {entry['size']} bytes with {(lfs or entry)['oid']}",
                "try again; if it stays so, the mirror or a proxy on the way changes files",
            )
        return digest

    def _meaning(self, status, headers):
        code = headers.get("X-Error-Code", "")
        page = f"{self._endpoint}/{self._repo}"
        if status in (401, 403) or code == "GatedRepo":
            why = "it is gated or private, or does not exist"
            advice = f"accept its licence at {page}; name HF_TOKEN under `secrets`, and set it to your access token"
            if self._has_token:
                why = "the token has no access to it"
                advice = f"accept its licence at {page} with the token's account, or use a token that may read it"
            return Trouble("bad_model", f"the hub refuses {self._repo} ({status})", why, advice)
        if status == 404:
            why = {"RevisionNotFound": "there is no such revision", "EntryNotFound": "there is no such file"}
            return Trouble(
                "bad_model",
                f"the hub does not have what was asked of {self._repo}",
                why.get(code, "there is no such repository, revision or file"),
                f"look at {page}",
            )
        return None


def _git_id(path):
    """The id that git gives a file: SHA-1 of its length and content."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324 (git's choice)
