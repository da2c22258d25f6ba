"""Fetching models: real files, a real web server on loopback with a hub's addresses, no mocks."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from ansible.module_utils import gpurun_download, gpurun_formats, gpurun_hub  # type: ignore[attr-defined]
from ansible.module_utils.gpurun_worker import Trouble, carry_on  # type: ignore[import-not-found]

_FILE = Path(__file__).parents[2] / "roles/model/library/gpurun_model.py"
_SPEC = importlib.util.spec_from_file_location("gpurun_model", _FILE)
assert _SPEC is not None and _SPEC.loader is not None
gpurun_model: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(gpurun_model)

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def gguf(elements: int = 64, kind: int = 8) -> bytes:
    """A small GGUF: three metadata values and one tensor (Q8_0: 34 bytes for each 32 elements)."""

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    meta = text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
    meta += text(b"general.alignment") + struct.pack("<II", 4, 64)
    meta += text(b"tokens") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text(b"bc")
    tensor = text(b"weight") + struct.pack("<IQIQ", 1, elements, kind, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 3) + meta + tensor
    return head + bytes(-len(head) % 64) + bytes(elements // 32 * 34)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Site:
    """A web server: path -> content; what was asked with which headers; how it misbehaves."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.status: dict[str, tuple[int, dict[str, str]]] = {}
        self.links: dict[str, str] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.cut_after: int | None = None  # bytes of the next answer's body
        self.ranges = True
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = urlsplit(self.path).path
                site.asked.append((self.path, dict(self.headers)))
                if path in site.redirects:
                    return self.answer(302, {"Location": site.redirects[path]})
                if path in site.status:
                    return self.answer(*site.status[path])
                if path not in site.files:
                    return self.answer(404, {})
                data, code, headers = site.files[path], 200, {}
                asked = self.headers.get("Range")
                if asked and site.ranges:
                    begin = int(asked.removeprefix("bytes=").rstrip("-"))
                    if begin >= len(data):
                        return self.answer(416, {"Content-Range": f"bytes */{len(data)}"})
                    headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
                    data, code = data[begin:], 206
                if self.path in site.links:
                    headers["Link"] = f'<{site.links[self.path]}>; rel="next"'
                return self.answer(code, headers, data)

            def answer(self, code: int, headers: dict[str, str], data: bytes = b"") -> None:
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                cut, site.cut_after = site.cut_after, None
                self.wfile.write(data[:cut])

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def fetch(folder: Path, source: dict[str, Any], **more: Any) -> dict[str, Any]:
    params = {"dir": str(folder / "model"), "source": source, "uv": "uv", "token": None, "endpoint": "", **more}
    model = gpurun_model.Fetched(params)
    result: dict[str, Any] = model.make(lambda **_: None)
    assert model.complete() is not None
    return result


def refused(folder: Path, source: dict[str, Any], **more: Any) -> Any:
    with pytest.raises(Trouble) as caught:
        fetch(folder, source, **more)
    assert not (folder / "model").exists()
    return caught.value


# --- is a file whole?


def test_a_whole_gguf_passes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf())
    gpurun_formats.check_file(path)


@pytest.mark.parametrize("lost", [1, 40, 68, 69, 150])
def test_a_gguf_that_is_cut_off_anywhere_is_noticed(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf()[:-lost])
    with pytest.raises(Trouble, match="is cut off") as caught:
        gpurun_formats.check_file(path)
    assert caught.value.klass == "bad_model"


# A key whose value is a list of one list, of one list, and so on.
NESTED = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000


@pytest.mark.parametrize(
    "data", [b"<html>not found</html>", b"GGUF" + b"\xff" * 64, b"", b"GGUF\x01\0\0\0" + bytes(64), NESTED]
)
def test_what_is_no_gguf_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(Trouble) as caught:
        gpurun_formats.check_file(path)
    assert caught.value.klass == "bad_model"


def safetensors(size: int) -> bytes:
    head = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(size)


def test_safetensors_and_the_folder_around_them(tmp_path: Path) -> None:
    weights = tmp_path / "model-00001-of-00001.safetensors"
    weights.write_bytes(safetensors(64))
    with pytest.raises(Trouble, match=r"no config\.json|is no model directory"):
        gpurun_formats.check_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": weights.name}}))
    gpurun_formats.check_folder(tmp_path)
    weights.write_bytes(safetensors(64)[:-1])
    with pytest.raises(Trouble, match="is cut off"):
        gpurun_formats.check_folder(tmp_path)
    index.write_text(json.dumps({"weight_map": {"w": "other.safetensors"}}))
    with pytest.raises(Trouble, match="lacks weight files"):
        gpurun_formats.check_folder(tmp_path)


# --- url


def test_a_file_is_fetched_and_named_only_when_it_is_right(tmp_path: Path, site: Site) -> None:
    site.files["/a/m.gguf"] = data = gguf()
    result = fetch(tmp_path, {"url": f"{site.url}/a/m.gguf", "sha256": sha256(data)})
    assert result["files"] == {"m.gguf": {"bytes": len(data), "sha256": sha256(data)}}
    assert (tmp_path / "model/m.gguf").read_bytes() == data
    fetch(tmp_path, {"url": f"{site.url}/a/m.gguf", "sha256": sha256(data)})
    assert len(site.asked) == 1, "what is there is used"


def test_another_checksum_is_refused_and_what_was_fetched_is_not_kept(tmp_path: Path, site: Site) -> None:
    site.files["/m.gguf"] = gguf()
    trouble = refused(tmp_path, {"url": f"{site.url}/m.gguf", "sha256": "0" * 64})
    assert trouble.klass == "bad_model"
    assert sha256(gguf()) in trouble.proof and "0" * 64 in trouble.proof
    assert not list(tmp_path.rglob("*.gguf"))


def test_a_truncated_file_is_refused_even_when_its_checksum_is_right(tmp_path: Path, site: Site) -> None:
    site.files["/m.gguf"] = data = gguf()[:-10]
    trouble = refused(tmp_path, {"url": f"{site.url}/m.gguf", "sha256": sha256(data)})
    assert (trouble.klass, "cut off" in trouble.message) == ("bad_model", True)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_connection_is_gone_on_with(tmp_path: Path, site: Site, ranges: bool) -> None:
    site.files["/m.bin"] = data = bytes(range(256)) * 64
    site.cut_after, site.ranges = 1000, ranges
    fetch(tmp_path, {"url": f"{site.url}/m.bin", "sha256": sha256(data)})
    assert site.asked[1][1]["Range"] == "bytes=1000-"


def test_a_file_that_was_whole_before_it_was_verified_is_not_fetched_again(tmp_path: Path, site: Site) -> None:
    site.files["/m.bin"] = data = b"x" * 5000
    (tmp_path / "model.partial").mkdir()
    (tmp_path / "model.partial/m.bin").write_bytes(data)
    fetch(tmp_path, {"url": f"{site.url}/m.bin", "sha256": sha256(data)})
    assert [headers.get("Range") for _, headers in site.asked] == ["bytes=5000-"]


def test_damage_after_the_fetch_is_noticed_and_cured(tmp_path: Path, site: Site) -> None:
    site.files["/m.gguf"] = data = gguf()
    source = {"url": f"{site.url}/m.gguf", "sha256": sha256(data)}
    fetch(tmp_path, source)
    (tmp_path / "model/m.gguf").write_bytes(data[:-1])
    fetch(tmp_path, source)
    assert (tmp_path / "model/m.gguf").read_bytes() == data


def test_no_space_is_said_before_a_byte_is_written(tmp_path: Path, site: Site) -> None:
    with pytest.raises(Trouble) as caught:
        gpurun_download.need_space(tmp_path / "m", 1 << 60)
    assert caught.value.klass == "disk_full"
    assert "MiB are free" in caught.value.proof


def test_an_address_that_answers_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpurun_download, "_TRIES", 1)
    trouble = refused(tmp_path, {"url": "http://127.0.0.1:1/m.gguf", "sha256": "0" * 64})
    assert (trouble.klass, "cannot be fetched" in trouble.message) == ("bad_model", True)


# --- hf


@pytest.fixture
def hub(site: Site) -> Site:
    """A repository with two pages of files; the large one comes from another host, as the hub's do."""
    weights, config = gguf(), b'{"model_type": "llama"}'
    blob = hashlib.sha1(b"blob %d\0" % len(config) + config).hexdigest()
    api = "/api/models/org/tiny"
    site.files[f"{api}/revision/main"] = json.dumps({"sha": COMMIT}).encode()
    tree = f"{api}/tree/{COMMIT}"
    first = [{"type": "directory", "path": "sub", "size": 0, "oid": "x"}]
    first += [{"type": "file", "path": "config.json", "size": len(config), "oid": blob}]
    lfs = {"oid": sha256(weights), "size": len(weights)}
    second = [{"type": "file", "path": "sub/m.gguf", "size": len(weights), "oid": "pointer", "lfs": lfs}]
    site.files[tree] = json.dumps(first).encode()
    site.files[f"{tree}/2"] = json.dumps(second).encode()
    site.links[f"{tree}?recursive=true"] = f"{site.url}{tree}/2"
    site.files[f"/org/tiny/resolve/{COMMIT}/config.json"] = config
    site.files["/cdn/weights"] = weights
    # `localhost` is another origin than `127.0.0.1`, and the same server.
    other = site.url.replace("127.0.0.1", "localhost")
    site.redirects[f"/org/tiny/resolve/{COMMIT}/sub/m.gguf"] = f"{other}/cdn/weights?Signature=abc"
    return site


def test_one_file_of_a_repository_at_the_commit_behind_a_branch(tmp_path: Path, hub: Site) -> None:
    source = {"hf": "org/tiny", "revision": "main", "file": "sub/m.gguf"}
    result = fetch(tmp_path, source, endpoint=hub.url, token="hf_secret")
    assert result["revision"] == COMMIT
    assert (tmp_path / "model/sub/m.gguf").read_bytes() == gguf()
    tokens = {path: headers.get("Authorization") for path, headers in hub.asked}
    assert tokens.pop("/cdn/weights?Signature=abc") is None, "the token is for the hub alone"
    assert set(tokens.values()) == {"Bearer hf_secret"}


def test_a_whole_repository_leaves_out_other_formats_of_the_weights(tmp_path: Path, hub: Site) -> None:
    result = fetch(tmp_path, {"hf": "org/tiny", "revision": "main"}, endpoint=hub.url)
    assert list(result["files"]) == ["config.json"]
    names = ["a.safetensors", "a.bin", "original/a.pth", "tokenizer.json"]
    assert [e["path"] for e in gpurun_hub.choose([{"path": n} for n in names], None)] == [names[0], names[3]]


def test_a_file_that_is_not_what_the_hub_lists_is_refused(tmp_path: Path, hub: Site) -> None:
    hub.files["/cdn/weights"] = gguf()[:-1] + b"!"
    trouble = refused(tmp_path, {"hf": "org/tiny", "revision": "main", "file": "*.gguf"}, endpoint=hub.url)
    assert "not what the hub lists" in trouble.message
    hub.files[f"/org/tiny/resolve/{COMMIT}/config.json"] = b'{"model_type": "other"}'
    trouble = refused(tmp_path, {"hf": "org/tiny", "revision": "main", "file": "config.json"}, endpoint=hub.url)
    assert "not what the hub lists" in trouble.message


@pytest.mark.parametrize(
    ("status", "code", "token", "words"),
    [
        (401, "GatedRepo", None, "name HF_TOKEN under `secrets`"),
        (403, "GatedRepo", "t", "accept its licence at"),
        (401, "RepoNotFound", None, "does not exist"),
        (404, "RevisionNotFound", "t", "there is no such revision"),
    ],
)
def test_the_hubs_refusals_in_words(
    tmp_path: Path, hub: Site, status: int, code: str, token: str | None, words: str
) -> None:
    hub.status["/api/models/org/tiny/revision/main"] = (status, {"X-Error-Code": code})
    trouble = refused(tmp_path, {"hf": "org/tiny", "revision": "main"}, endpoint=hub.url, token=token)
    assert trouble.klass == "bad_model"
    assert words in f"{trouble.proof} {trouble.advice}"
    assert f"{hub.url}/org/tiny" in trouble.advice


# --- the worker


def test_work_goes_on_between_calls_and_two_callers_share_it(tmp_path: Path) -> None:
    target, gate = tmp_path / "thing", tmp_path / "gate"
    os.mkfifo(gate)

    def work(report: Any) -> str:
        report(line="waiting")
        return gate.read_text()

    assert carry_on(str(target), work, wait_s=0.2, life_s=30)["progress"] == {"line": "waiting"}
    assert carry_on(str(target), lambda _: "another", wait_s=0.0, life_s=30)["status"] == "working"
    gate.write_text("done by the first")
    assert carry_on(str(target), work, wait_s=20, life_s=30) == {"status": "done", "result": "done by the first"}


def test_a_workers_trouble_is_the_callers(tmp_path: Path) -> None:
    def work(_: Any) -> None:
        raise Trouble("disk_full", "no space", "proof", "advice")

    with pytest.raises(Trouble) as caught:
        carry_on(str(tmp_path / "thing"), work, wait_s=20, life_s=30)
    assert caught.value.document() == {
        "class": "disk_full",
        "message": "no space",
        "proof": "proof",
        "advice": "advice",
    }
    assert carry_on(str(tmp_path / "thing"), lambda _: 1, wait_s=20, life_s=30)["result"] == 1, "tried again"


def test_a_worker_that_is_killed_or_out_of_time_is_noticed(tmp_path: Path) -> None:
    def work(_: Any) -> None:
        signal.pause()

    with pytest.raises(Trouble, match="ended from outside"):
        carry_on(str(tmp_path / "thing"), work, wait_s=20, life_s=1)
