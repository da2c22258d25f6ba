"""Wrong campaigns, broken models, full disks, dead networks: each is told in words, with the right exit code."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.program import Place, Program, server


def refused(place: Place, program: Program, *says: str) -> None:
    """A campaign that was refused before anything was touched: exit 2, and what is wrong with it."""
    assert program.finish() == 2, program.stderr
    assert program.stdout == ""
    for text in says:
        assert text in program.stderr
    assert "Traceback" not in program.stderr
    assert not (place.folder / "results").exists()
    assert place.leftovers() == []


def failed(place: Place, program: Program, code: int, *says: str) -> str:
    """A run that could not be done: the code, what it says in the end, and nothing left behind."""
    assert program.finish() == code, program.stderr
    end = program.stderr[program.stderr.index("error: ") :]
    for text in says:
        assert text in end, end
    assert "Traceback" not in program.stderr
    assert "hint: " in end
    assert place.leftovers() == []
    assert list(place.temporary.iterdir()) == []
    return end


def test_broken_yaml(place: Place) -> None:
    (place.folder / "campaign.yml").write_text("version: 1\nname: [a, b\nserver: {}\n")
    refused(place, place.bench(), "campaign.yml:", "^")


def test_a_campaign_that_is_not_text(place: Place) -> None:
    (place.folder / "campaign.yml").write_bytes(b"\xff\xfe\x00v\x00e")
    refused(place, place.bench(), "campaign.yml")


@pytest.mark.parametrize("name", ["rack1/box2", "gpu*"])
def test_a_host_name_that_is_a_pattern_or_a_path(place: Place, name: str) -> None:
    place.campaign()
    inventory = {"gpu_hosts": {"hosts": {name: {"ansible_connection": "local"}}}}
    (place.folder / "inventory.yml").write_text(json.dumps(inventory))
    refused(
        place, place.bench(), f"the host name {name!r} is a pattern or a path to Ansible", "hint: call it otherwise"
    )


def test_a_missing_campaign(place: Place) -> None:
    refused(place, place.bench(), "there is no file `campaign.yml`", "hint: ")


def test_a_campaign_that_is_a_folder(place: Place) -> None:
    (place.folder / "campaign.yml").mkdir()
    refused(place, place.bench(), "campaign.yml")


@pytest.mark.parametrize(
    "name", ["../escape", "two words", 'quo"te', "quo'te", "new\nline", "", "é", "a/b", "-x", "{{ x }}"]
)
def test_a_name_that_is_no_folder_name(place: Place, name: str) -> None:
    place.campaign(name=name)
    refused(place, place.bench(), "campaign.yml:2:7", "names become directory names", "hint: use letters")
    assert not list(place.folder.parent.glob("escape*"))


@pytest.mark.parametrize("text", ["nul \0", "half \ud83d", "@GPURUN_PORT@"])
def test_a_value_that_no_program_can_be_given(place: Place, text: str) -> None:
    place.campaign(server=server("x"))
    path = place.folder / "campaign.yml"
    path.write_text(path.read_text().replace("- x\n", f"- {json.dumps(text)}\n"))
    refused(place, place.bench(), "campaign.yml:")


def test_an_inventory_that_is_missing_is_refused_as_json_too(place: Place) -> None:
    place.campaign()
    program = place.start("bench", "-c", "campaign.yml", "-i", "nowhere.yml", "--json")
    assert program.finish() == 2
    assert json.loads(program.stdout)["error"]["code"] == 2
    assert "nowhere.yml" in program.stderr


def test_errors_are_one_document_with_json(place: Place) -> None:
    place.campaign(name="a b", rounds=0)
    program = place.bench("--json")
    assert program.finish() == 2
    error = json.loads(program.stdout)["error"]
    assert error["code"] == 2
    assert len(error["problems"]) == 2
    assert "directory names" in program.stderr


def test_an_inventory_without_such_hosts(place: Place) -> None:
    place.campaign(hosts="nobody")
    refused(place, place.bench(), "no host for `nobody`", "inventory.yml", "hint: ")
    place.campaign()
    refused(place, place.bench("--limit", "nobody"), "no host for `gpu_hosts` with `--limit nobody`", "hint: ")


def test_an_inventory_that_is_broken(place: Place) -> None:
    place.campaign()
    (place.folder / "inventory.yml").write_text("gpu_hosts: [\n")
    program = place.bench()
    refused(place, program, "the inventory cannot be read: ", "inventory.yml:2:1", "hint: ")
    assert len(program.lines) < 5


@pytest.mark.parametrize("name", ["two words", "{{ x }}"])
def test_a_host_name_that_ansible_takes_for_a_pattern(place: Place, name: str) -> None:
    place.campaign()
    inventory = place.folder / "inventory.yml"
    inventory.write_text(inventory.read_text().replace("here:", f'"{name}":'))
    refused(place, place.bench(), repr(name), "ansible_host")


def test_a_missing_secret(place: Place) -> None:
    place.campaign(server=server(secrets=["E2E_NOT_SET"]))
    refused(place, place.bench(), "E2E_NOT_SET", "export")


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that this process holds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@pytest.mark.slow
def test_variants_that_fail_do_not_end_the_campaign(place: Place, taken_port: int) -> None:
    place.campaign(
        variants={
            "taken": {"server": {"port": taken_port}},
            "nothing": {"server": {"argv": ["/no/such/program"]}},
            "late": {"server": {**server("--start-delay", "60")}},
            "dead": {"server": server("--crash", "error: unrecognized arguments: --bad")},
        },
        timeouts={"start": "3s", "sample": "30s", "stop": "2s"},
        order="fixed",
    )
    program = place.bench("--json")
    assert program.finish(120) == 1, program.stderr
    samples = {one["variant"]: one for one in json.loads(program.stdout)["samples"]}
    assert samples["baseline"]["status"] == "measured"
    found = {name: one["failure"]["class"] for name, one in samples.items() if one["failure"]}
    assert found["taken"] == "port_in_use"
    assert found["late"] == "start_timeout"
    assert found["dead"] == "bad_flag"
    assert f"pid {os.getpid()}" in samples["taken"]["failure"]["proof"]
    assert "/no/such/program" in samples["nothing"]["failure"]["proof"]
    assert all(one["failure"]["advice"] for one in samples.values() if one["failure"])
    place.nothing_left()


def test_nothing_measured_is_5_and_never_fails_only_on_request(place: Place) -> None:
    place.campaign(server=server("--crash", "no"))
    program = place.bench()
    assert program.finish() == 5, program.stderr
    assert "failed" in program.stdout


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves files quietly."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server on loopback and the folder that it serves."""
    folder = tmp_path / "web"
    folder.mkdir()
    handler = functools.partial(Files, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}", folder
        httpd.shutdown()


def gguf(weights: int) -> bytes:
    """A model file (GGUF 3) whose header promises one tensor of 1024 floats, with so many bytes of it."""
    tensor = struct.pack("<Q", 1) + b"w" + struct.pack("<IQIQ", 1, 1024, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor
    return head + b"\0" * (-len(head) % 32) + b"\0" * weights


def test_a_model_with_another_checksum(place: Place, web: tuple[str, Path]) -> None:
    address, folder = web
    (folder / "model.gguf").write_bytes(gguf(4096))
    wanted = hashlib.sha256(b"something else").hexdigest()
    place.campaign(server=server(model={"url": f"{address}/model.gguf", "sha256": wanted}))
    failed(place, place.bench(), 3, "here: Fetch the model: model.gguf is not the file", wanted, "check `sha256`")
    assert not list((place.home / "models").rglob("model.gguf"))


def test_a_model_that_is_cut_off(place: Place) -> None:
    model = place.folder / "model.gguf"
    model.write_bytes(gguf(1000))
    place.campaign(server=server(model={"path": str(model)}))
    failed(place, place.bench(), 3, "here: Fetch the model:", f"{model} is cut off", "fetch the file again")


def test_a_model_that_is_no_file(place: Place) -> None:
    """Who opened this one would wait for ever."""
    model = place.folder / "model.gguf"
    os.mkfifo(model)
    place.campaign(server=server(model={"path": str(model)}))
    failed(place, place.bench(), 3, f"{model} is neither a file nor a folder", "check `path`")


def test_one_variants_missing_model_does_not_end_the_others(place: Place) -> None:
    """The step says what it misses; the server that wants the model says so again (this one wants none)."""
    model = place.folder / "model.gguf"
    model.write_bytes(gguf(4096))
    variants = {"lost": {"server": {"model": {"path": "/nowhere/model.gguf", "name": "stub"}}}}
    place.campaign(server=server(model={"path": str(model), "name": "stub"}), variants=variants, rounds=1)
    program = place.bench()
    assert program.finish() == 0, program.stderr
    assert "/nowhere/model.gguf does not exist on this host" in program.stderr


def test_a_package_index_that_cannot_be_reached(fresh_place: Place) -> None:
    fresh_place.campaign()
    nowhere = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_CACHE_DIR": str(fresh_place.folder / "cache")}
    program = fresh_place.bench(env={**nowhere, "UV_HTTP_RETRIES": "0"})
    end = failed(
        fresh_place, program, 3, "here: Install the load tool:", "the package index cannot be reached", "127.0.0.1:9"
    )
    assert "httptools" in end
    assert "UV_DEFAULT_INDEX" in end
    assert len(end.splitlines()) < 15, "too long to be read by a tired person"


@pytest.fixture
def small_disk(root_mounts: None, tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 1 MiB."""
    yield from mounted(tmp_path / "small disk", "size=1m")


@pytest.fixture
def read_only(root_mounts: None, tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that nobody may write."""
    yield from mounted(tmp_path / "read only", "ro")


def mounted(place: Path, options: str) -> Iterator[Path]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "gpurun-test", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_no_space_for_what_is_installed(fresh_place: Place, small_disk: Path) -> None:
    full = Place(fresh_place.folder, small_disk / "home")
    full.campaign()
    failed(full, full.bench(), 3, "here:", "no space left on the disk", "gpurun_home")


def test_no_space_for_results(place: Place, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"\0" * ((1 << 20) - 40_000))
    place.campaign(rounds=3)
    end = failed(place, place.bench("--results", str(small_disk)), 4, "cannot write results: no space left on device")
    assert str(small_disk) in end
    assert "--results DIR" in end
    assert not (place.home / "lock.json").exists()


def test_a_results_folder_that_is_read_only(place: Place, read_only: Path) -> None:
    place.campaign()
    end = failed(place, place.bench("--results", str(read_only)), 4, "cannot write results: read-only file system")
    assert str(read_only) in end
    assert not (place.home / "lock.json").exists()


def test_a_home_that_is_read_only(fresh_place: Place, read_only: Path) -> None:
    there = Place(fresh_place.folder, read_only / "home")
    there.campaign()
    failed(there, there.bench(), 3, "here:", f"{there.home} cannot be written: Read-only file", "gpurun_home")


def test_a_host_without_a_python(place: Place) -> None:
    place.campaign()
    inventory = place.folder / "inventory.yml"
    inventory.write_text(inventory.read_text().replace("'{{ ansible_playbook_python }}'", "/no/such/python"))
    failed(place, place.bench(), 3, "here: there is no Python", "ansible_python_interpreter")


def test_this_machine_is_not_ready(place: Place, tmp_path: Path) -> None:
    """Without ansible-playbook beside the interpreter or on PATH."""
    place.campaign()
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "python").symlink_to(os.path.realpath(sys.executable))
    env = {"PATH": str(bare), "PYTHONPATH": os.pathsep.join(sys.path)}
    program = place.bench(env=env, program=[str(bare / "python"), "-m", "gpurun"])
    assert program.finish() == 4, program.stderr
    assert "ansible-playbook is not installed beside gpurun" in program.stderr
