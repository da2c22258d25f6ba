"""The roles engine and load_tool through Ansible: real environments, made by the real uv."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpurun.engines import load_engine

ROOT = Path(__file__).parents[2]
LAUNCHER = "llamacpp_server.py"


def play(folder: Path, role: str, variables: dict[str, Any], env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a role on this machine; what its module returned, failed or not."""
    register = {"engine": "engine_installed", "load_tool": "load_tool_installed", "model": "model_fetched"}[role]
    out, book = folder / "out.json", folder / "play.yml"
    folder.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)
    keep = {"copy": {"content": f"{{{{ {register} | to_json }}}}", "dest": str(out)}}
    tasks = [{"block": [{"include_role": {"name": role}}], "always": [keep]}]
    book.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), str(book), "-e", json.dumps(variables)],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), **(env or {})},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert out.exists(), done.stdout + done.stderr
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def wheel(
    folder: Path, name: str, version: str, files: dict[str, bytes], requires: Sequence[str] = ()
) -> dict[str, str]:
    """A wheel of these files in a folder, and the environment in which uv finds packages there and nowhere else."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}")
            archive.writestr(path, data)
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    # An index that is named elsewhere does not count then; none that could answer is.
    return {"UV_OFFLINE": "1", "UV_FIND_LINKS": str(folder), "UV_DEFAULT_INDEX": "http://127.0.0.1:1/simple"}


def tiny(home: Path, version: str = "1.0", **more: Any) -> dict[str, Any]:
    return {
        "gpurun_home": str(home),
        "engine_name": "tiny",
        "engine_version": version,
        "engine_packages": [f"tiny=={version}"],
        **more,
    }


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "a home with spaces"


def test_an_environment_is_made_once_and_a_half_made_one_anew(tmp_path: Path, home: Path) -> None:
    env = wheel(tmp_path / "wheels", "tiny", "1.0", {"tiny.py": b"x = 1\n"})
    first = play(tmp_path, "engine", tiny(home), env)
    assert (first["changed"], first["status"], first["versions"]) == (True, "complete", {"tiny": "1.0"})
    assert first["dir"] == str(home / "engines/tiny-1.0")
    assert subprocess.run([first["python"], "-c", "import tiny"]).returncode == 0
    nothing = {**env, "UV_FIND_LINKS": str(tmp_path)}
    second = play(tmp_path, "engine", tiny(home), nothing)
    assert (second["changed"], second["seconds"]) == (False, 0)
    (home / "engines/tiny-1.0/.complete").unlink()
    (home / "engines/tiny-1.0/bin/python").unlink()
    third = play(tmp_path, "engine", tiny(home), env)
    assert (third["changed"], third["status"]) == (True, "complete")


def test_an_index_that_cannot_be_reached_is_said_with_what_to_set(tmp_path: Path, home: Path) -> None:
    env = {"UV_DEFAULT_INDEX": "http://user:hidden@127.0.0.1:1/simple", "UV_HTTP_RETRIES": "0"}
    failed = play(tmp_path, "engine", tiny(home), env)
    assert failed["failed"] is True
    assert failed["failure"]["class"] == "missing_dependency"
    assert "the package index cannot be reached" in failed["msg"]
    assert "127.0.0.1:1" in failed["failure"]["proof"], "uv's own words"
    assert "UV_DEFAULT_INDEX" in failed["failure"]["advice"]
    assert "hidden" not in json.dumps(failed)
    assert not (home / "engines/tiny-1.0/.complete").exists()


def test_a_version_that_does_not_exist_is_said(tmp_path: Path, home: Path) -> None:
    env = wheel(tmp_path / "wheels", "tiny", "1.0", {"tiny.py": b""})
    failed = play(tmp_path, "engine", tiny(home, "2.0"), env)
    assert failed["failure"]["class"] == "missing_dependency"
    assert "does not have this version" in failed["msg"]


def test_what_a_wheelhouse_lacks_is_said(tmp_path: Path, home: Path) -> None:
    env = wheel(tmp_path / "wheels", "tiny", "1.0", {"tiny.py": b""}, requires=["nonesuch==1"])
    failed = play(tmp_path, "engine", tiny(home), env)
    assert "a package is in no folder of wheels" in failed["msg"] and "nonesuch" in failed["failure"]["proof"]


def test_no_space_while_installing(root_mounts: None, tmp_path: Path) -> None:
    env = wheel(tmp_path / "wheels", "tiny", "1.0", {"tiny.bin": os.urandom(12 << 20)})
    with small_disk(tmp_path / "disk", 8) as disk:
        failed = play(tmp_path, "engine", tiny(disk / "home"), env)
        assert failed["failure"]["class"] == "disk_full", failed
        assert "no space left" in failed["msg"]
        assert not (disk / "home/engines/tiny-1.0/.complete").exists()


class small_disk:
    """A file system of a few MiB."""

    def __init__(self, path: Path, mib: int) -> None:
        self.path, self.mib = path, mib

    def __enter__(self) -> Path:
        self.path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.mib}m", "tmpfs", str(self.path)], check=True)
        return self.path

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=True)


# --- llama.cpp itself


@pytest.fixture(scope="module")
def llamacpp(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The engine as its data file says, from the package index."""
    folder, engine = tmp_path_factory.mktemp("llamacpp"), load_engine("llamacpp")
    assert engine.default_version is not None
    variables = {
        "gpurun_home": str(folder / "home"),
        "engine_name": "llamacpp",
        "engine_version": engine.default_version,
        "engine_packages": [f"xllamacpp=={engine.default_version}"],
        "engine_launcher": LAUNCHER,
        "engine_check": ["bin/python", LAUNCHER, "--version"],
    }
    installed = play(folder, "engine", variables)
    assert installed.get("status") == "complete", installed
    return installed


def launch(llamacpp: dict[str, Any], *argv: str) -> subprocess.CompletedProcess[str]:
    command = [llamacpp["python"], f"{llamacpp['dir']}/{LAUNCHER}", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_every_row_of_the_launchers_table_fits_the_wheel(llamacpp: dict[str, Any]) -> None:
    """Each flag sets the field that its row names, with a value that the wheel's type accepts."""
    script = """
import llamacpp_server as L, xllamacpp as x
tries = "/etc/hostname 7 none auto q8_0 layer distribute on 1,2 ngram-mod".split()
def get(node, path):
    for step in path.split("."):
        node = getattr(node, step)
    return node
for option in L.OPTIONS:
    for flag in option.flags.split():
        changed = False
        for text in tries if option.read else [None]:
            params, before = x.CommonParams(), x.CommonParams()
            try:
                L.parse([flag] + ([text] if text else []), params, x)
            except L.UsageError:
                continue
            changed = True
            [get(params, field) for field in option.to.split()]
        assert changed, f"{flag} accepts none of the values"
p = x.CommonParams()
L.parse("-t 3 -tb 2 -c 512 -np 2 -ctv q8_0 -fa off --spec-type ngram-mod,ngram-simple --no-mmap".split(), p, x)
assert (p.cpuparams.n_threads, p.cpuparams_batch.n_threads, p.n_ctx, p.n_parallel) == (3, 2, 512, 2)
assert p.cache_type_v == x.ggml_type.GGML_TYPE_Q8_0
assert p.flash_attn_type == x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
assert len(p.speculative.types) == 2 and p.load_mode == x.llama_load_mode.LLAMA_LOAD_MODE_NONE
"""
    done = subprocess.run(
        [llamacpp["python"], "-c", script], cwd=llamacpp["dir"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_bad_calls_and_bad_models_exit_with_1_and_say_why(llamacpp: dict[str, Any], tmp_path: Path) -> None:
    done = launch(llamacpp, "-m", "x", "--nope")
    assert (done.returncode, done.stderr.strip()) == (1, "error: invalid argument: --nope")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    done = launch(llamacpp, "-m", str(broken), "--port", "0")
    assert done.returncode == 1
    assert "exiting due to model loading error" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def model(llamacpp: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The quickstart's model."""
    source = yaml.safe_load((ROOT / "campaigns/quickstart.yml").read_text())["server"]["model"]
    home = Path(llamacpp["dir"]).parents[1]
    variables = {"gpurun_home": str(home), "model_source": {**source, "key": "m"}}
    fetched = play(tmp_path_factory.mktemp("model"), "model", variables)
    assert fetched.get("status") == "complete", fetched
    return str(fetched["path"])


@pytest.fixture
def served(llamacpp: dict[str, Any], model: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server with n-gram speculation and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    speculation = "--spec-type ngram-mod --spec-ngram-mod-n-match 4 --spec-ngram-mod-n-min 2 --spec-ngram-mod-n-max 8"
    argv = ["-m", model, "-a", "tiny", "--port", str(port), "-c", "1024", "-np", "2", "--metrics", *speculation.split()]
    command = [llamacpp["python"], f"{llamacpp['dir']}/{LAUNCHER}", *argv]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert process.stderr is not None
    lines = iter(process.stderr)
    drain = threading.Thread(target=list, args=(lines,))
    try:
        said = [next(lines, b"")]
        while said[-1] and b"serving on" not in said[-1]:
            said.append(next(lines, b""))
        assert said[-1], b"".join(said).decode()
        drain.start()  # keeps the pipe empty
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        if drain.is_alive():
            drain.join()
        process.stderr.close()


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        data = answer.read()
    return json.loads(data) if data[:1] in (b"{", b"[") else data.decode()


def test_it_serves_what_gpurun_reads_speculates_and_ends_at_once(served: tuple[subprocess.Popen[bytes], str]) -> None:
    process, url = served
    assert ask(f"{url}/health") == {"status": "ok"}
    assert [entry["id"] for entry in ask(f"{url}/v1/models")["data"]] == ["tiny"]
    props = ask(f"{url}/props")
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (2, 512)
    assert ask(f"{url}/tokenize", {"content": "hello you"})["tokens"]
    body = {"prompt": "one two three one two three one two", "max_tokens": 64, "ignore_eos": True, "temperature": 0}
    done = ask(f"{url}/v1/completions", body)
    assert done["usage"]["completion_tokens"] == 64
    assert done["timings"]["draft_n"] > 0, "the n-gram drafts are real"
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    assert ask(f"{url}/v1/chat/completions", chat)["usage"]["completion_tokens"] <= 4
    drafted = [line for line in ask(f"{url}/metrics").splitlines() if "num_draft_tokens_total" in line]
    assert float(drafted[-1].split()[1]) > 0
    endless = {**body, "max_tokens": 100000, "stream": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(endless).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.readline()  # a request is in flight
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
        assert time.monotonic() - begin < 5


def test_the_quickstarts_dead_end_is_real(llamacpp: dict[str, Any], model: str) -> None:
    variant = yaml.safe_load((ROOT / "campaigns/quickstart.yml").read_text())["variants"]["q8-cache-no-fa"]
    argv = [word for flag, value in variant["server"]["flags"].items() for word in (f"--{flag}", str(value))]
    done = launch(llamacpp, "-m", model, "--port", "0", *argv)
    assert done.returncode == 1
    assert "quantized V cache requires flash_attn to be enabled" in done.stderr


def test_the_load_tool_is_installed_and_can_be_run(tmp_path: Path, home: Path) -> None:
    installed = play(tmp_path, "load_tool", {"gpurun_home": str(home)})
    assert installed["status"] == "complete", installed
    done = subprocess.run([installed["python"], "-m", "loadgen", "--check", f"{installed['dir']}/check.json"], cwd="/")
    assert done.returncode == 0
    again = play(tmp_path, "load_tool", {"gpurun_home": str(home)})
    assert again["changed"] is False
