"""Shell lines as campaigns that say the same: what a campaign's flags become is what stood in the command."""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpurun.cases import check
from gpurun.commands import init
from gpurun.config import Campaign
from gpurun.engines import flags_argv, load_engine
from gpurun.errors import ConfigError
from gpurun.from_command import Launch, campaign_from
from gpurun.launch import launch
from gpurun.load import load_text
from gpurun.shell import commands

COMMANDS = Path(__file__).parents[1] / "fixtures/flags/commands.yml"
FACTS: dict[str, Any] = {"host": {"home": "/h", "commands": {}}, "gpus": []}


def read(text: str) -> tuple[dict[str, Any], Launch, Campaign]:
    """The server that the campaign of a command has; the campaign is right."""
    written, found = campaign_from(text)
    campaign, _cases = check(load_text(written, "campaign.yml"))
    server: dict[str, Any] = yaml.safe_load(written)["server"]
    return server, found, campaign


def argv(text: str) -> list[str]:
    """What gpurun would run."""
    _, cases = check(load_text(campaign_from(text)[0], "campaign.yml"))
    words: list[str] = launch(cases[0], "h", FACTS).server["argv"]
    return words


@pytest.mark.parametrize("text", [each["shell"] for each in yaml.safe_load(COMMANDS.read_text())])
def test_a_command_is_taken_over_whole(text: str) -> None:
    server, found, _ = read(text)
    assert server["model"]
    assert found.open == []


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("vllm serve org/m -dcp 8 -cc.mode=3", {"decode-context-parallel-size": 8, "compilation-config.mode": 3}),
        ("llama-server -m /m.gguf -ngld 99 -no-kvu", {"spec-draft-ngl": 99, "kv-unified": False}),
        ("(venv) user@host:~/llm$ llama-server -m /m.gguf -fa 1", {"flash-attn": 1}),
    ],
)
def test_a_short_flag_has_its_long_name_in_a_campaign(text: str, flags: dict[str, Any]) -> None:
    assert read(text)[0]["flags"] == flags


@pytest.mark.parametrize("text", ["return `vllm serve my-${size}`;", "x=$(vllm serve org/m)", '`vllm serve "a b"`'])
def test_a_launch_that_the_shell_would_run_for_its_output_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="no server is launched"):
        campaign_from(text)


@pytest.mark.parametrize("text", ["vllm serve", 'exec vllm serve "$@"', "sglang serve --served-model-name m"])
def test_a_command_without_a_model_leaves_it_to_be_filled_in(text: str) -> None:
    server, found, _ = read(text)
    assert server["model"]["path"] == "/FILL-IN" and found.open == ["server.model.path"]


def test_a_line_of_a_recipe_with_everything() -> None:
    server, found, _ = read(
        """
        # the large one
        export NCCL_P2P_LEVEL=SYS
        MODEL=org/big-model
        $ sudo CUDA_VISIBLE_DEVICES=0,1 HF_TOKEN=hf_abcdefghijklmnopqrst nohup numactl --cpunodebind=0 \\
            python3 -m sglang.launch_server --model-path "$MODEL" --served-model-name big --host 0.0.0.0 --port 30000 \\
            --tp=8 --mem-frac 0.85 --trust-remote-code --cuda-graph-bs-decode 1 2 4 \\
            --json-model-override-args '{"rope_scaling": {"factor": 4.0}}' --api-key sk-aaaaaaaaaaaaaaaaaaaa \\
            --chat-template '{{ x }}' --no-enable-fused-qk-norm-rope > server.log 2>&1 &
        """
    )
    assert server == {
        "engine": "sglang",
        "model": {"hf": "org/big-model", "revision": "main", "name": "big"},
        "flags": {
            "tp-size": 8,
            "mem-fraction-static": 0.85,
            "trust-remote-code": True,
            "cuda-graph-bs-decode": [1, 2, 4],
            "json-model-override-args": '{"rope_scaling": {"factor": 4.0}}',
            "chat-template": "{% raw %}{{ x }}{% endraw %}",
            "enable-fused-qk-norm-rope": False,
        },
        "env": {"NCCL_P2P_LEVEL": "SYS", "CUDA_VISIBLE_DEVICES": "0,1"},
        "secrets": ["HF_TOKEN"],
    }
    assert [line.partition(":")[0] for line in found.left_out] == [
        "numactl --cpunodebind",
        "--host 0.0.0.0",
        "--port 30000",
        "--api-key",
    ]


def test_the_words_come_out_as_they_went_in() -> None:
    text = (
        "vllm serve org/m --max-model-len 16k -tp 2 --compilation-config.cudagraph_mode FULL -O3 "
        "--no-enable-prefix-caching --limit-mm-per-prompt '{\"image\":2}' --middleware a.b --middleware c.d "
        "--block_size 16 --seed 007"
    )
    words = argv(text)
    flags = words[words.index("--port") + 2 :]
    assert flags == shlex.split(
        "--max-model-len 16k --tensor-parallel-size 2 --compilation-config.cudagraph_mode FULL --optimization-level 3 "
        "--no-enable-prefix-caching --limit-mm-per-prompt '{\"image\":2}' --middleware a.b --middleware c.d "
        "--block-size 16 --seed 007"
    )


def test_several_values_of_a_flag_stay_several() -> None:
    assert argv("llama-server -m /m.gguf --control-vector-layer-range 3 9")[-2:] == ["3", "9"]
    assert argv("vllm serve org/m --ignore-patterns 1,2 '{{ x }}'")[-2:] == ["1,2", "{{ x }}"]


def test_a_container_stays_one() -> None:
    server, found, _ = read(
        "docker run --rm -d --gpus '\"device=2,3\"' --ipc=host --shm-size 16g -p 8000:8000 -v /data/m:/model:ro "
        "-v cache:/root/.cache --ulimit memlock=-1 -e HF_TOKEN -e VLLM_USE_V1=1 vllm/vllm-openai:v0.20.2 "
        "--model /model/q --max-num-seqs 8"
    )
    assert server == {
        "engine": "vllm==0.20.2",
        "runtime": "docker",
        "image": "vllm/vllm-openai:v0.20.2",
        "container": {
            "allow_tags": True,
            "ipc": "host",
            "mounts": ["/data/m:/model:ro"],
            "args": ["-v", "cache:/root/.cache", "--ulimit", "memlock=-1"],
        },
        "model": {"path": "/data/m/q"},
        "flags": {"max-num-seqs": 8},
        "env": {"CUDA_VISIBLE_DEVICES": "2,3", "VLLM_USE_V1": "1"},
        "secrets": ["HF_TOKEN"],
    }
    assert found.left_out == []


@pytest.mark.parametrize(
    "wrapped",
    [
        "bash -lc 'pip install -U vllm && {}'",
        'ssh user@gpu1 "cd /srv && {}"',
        "tmux new-session -d -s x '{}'",
        "uv run --with vllm {}",
        "cd /srv; ulimit -n 65535; exec {}",
        "timeout 3600 env -u X {} | tee log",
        "docker run --gpus all --entrypoint bash img:1 -c '{}'",
        "( {} ) &",
    ],
)
def test_wrappers_are_seen_through(wrapped: str) -> None:
    server, _, _ = read(wrapped.format("A=1 vllm serve org/m --seed 3"))
    assert server["model"]["hf"] == "org/m"
    assert server["flags"] == {"seed": 3}
    assert server["env"] == {"A": "1"}


def test_llama_server_with_a_repository() -> None:
    server, found, _ = read(
        "/opt/llama/bin/llama-server -hf org/m-GGUF:Q4_K_M -c 4096 -ngl 99 -fa on --no-mmap --temp 0.6"
    )
    assert server["binary"] == "/opt/llama/bin/llama-server"
    assert server["model"] == {"hf": "org/m-GGUF", "revision": "main", "file": "FILL-IN-Q4_K_M.gguf"}
    assert server["flags"] == {"ctx-size": 4096, "gpu-layers": 99, "flash-attn": "on", "mmap": False, "temp": 0.6}
    assert found.open == ["server.model.file"]


def test_what_the_command_takes_from_elsewhere_is_to_be_filled_in() -> None:
    server, found, _ = read('vllm serve "$MODEL" --max-model-len $LEN --node-rank <rank> "${ARGS[@]}" --revision abc')
    assert server["model"]["path"] == "/FILL-IN"
    assert server["flags"] == {"max-model-len": "$LEN", "node-rank": "<rank>"}
    assert found.open == ["server.model.path", "server.flags.max-model-len", "server.flags.node-rank"]
    assert "${ARGS[@]}: flags that are not in the command" in found.left_out


def test_no_value_of_a_secret_is_written() -> None:
    names = ("HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD")
    secret = "hf_qwertyuiopasdfghjkl"
    text = " ".join(f"{name}=s3cr3t-{name.lower()}" for name in names) + " sshpass -ps3cr3t-1 -p s3cr3t-2 ssh h"
    written, found = campaign_from(
        f"{text} X={secret} vllm serve org/m --api-key s3cr3t-key --hf-token {secret} --seed 1"
    )
    assert "s3cr3t" not in written + str(found) and secret not in written + str(found.left_out)
    assert yaml.safe_load(written)["server"]["secrets"] == [*names, "X"]


@pytest.mark.parametrize(
    "text",
    [
        "llama-server -m /m.gguf -hft S3CR3T",
        "vllm serve https://u:S3CR3T@h/m",
        "vllm serve --model https://u:S3CR3T@h/m",
        "vllm serve https://h/m?token=S3CR3T",
        "vllm serve org/m https://u:S3CR3T@h/m",
        """vllm serve org/m --kv-transfer-config '{"a": {"password": "S3CR3T"}}'""",
        "vllm serve org/m --kv-transfer-config.password S3CR3T",
        "vllm serve org/m --my-unknown-auth=S3CR3T",
        "docker run --label token=S3CR3T vllm/vllm-openai:v0.32.0 org/m",
        "docker run --log-opt=splunk-token=S3CR3T vllm/vllm-openai:v0.32.0 org/m",
        'docker run -e \'CFG={"api_key": "S3CR3T"}\' vllm/vllm-openai:v0.32.0 org/m',
        "MYTOKEN=S3CR3T MODEL_AUTH=S3CR3T API_KEYS=S3CR3T vllm serve org/m",
        "HEADERS='Authorization: Bearer S3CR3T' vllm serve org/m",
        "wrapper the-token=S3CR3T vllm serve org/m",
    ],
)
def test_secrets_are_known_by_their_name_wherever_they_stand(text: str) -> None:
    written, found = campaign_from(text)
    assert "S3CR3T" not in written + str(found.left_out) + str(found.open) + str(found.comments)


def test_a_dummy_is_written_and_a_key_that_the_server_would_want_is_left_out() -> None:
    text = "docker run -e OPENAI_API_KEY=EMPTY -e VLLM_API_KEY=EMPTY -e HF_TOKEN=$HF_TOKEN vllm/vllm-openai:v0.32.0"
    _, found = campaign_from(f"{text} --model org/m --api-key EMPTY --seed 1")
    assert (found.server["env"], found.server["secrets"]) == ({"OPENAI_API_KEY": "EMPTY"}, ["HF_TOKEN"])
    assert found.server["flags"] == {"seed": 1}
    assert [line.partition(":")[0] for line in found.left_out] == ["VLLM_API_KEY", "--api-key"]


def test_what_only_sounds_like_a_secret_is_written() -> None:
    text = (
        "llama-server -m /m.gguf --override-kv tokenizer.ggml.add_bos_token=bool:false --cors-credentials"
        " --chat-template-kwargs '{\"max_tokens\": 4}'"
    )
    _, found = campaign_from(text)
    assert set(found.server["flags"]) == {"override-kv", "cors-credentials", "chat-template-kwargs"}


@pytest.mark.parametrize(
    "text", ["", "ls -l", "python train.py --tp 8", "vllm bench serve", "echo 'vllm", "docker run", "|||"]
)
def test_what_launches_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        campaign_from(text)


def test_odd_texts_end_in_a_campaign_or_a_complaint() -> None:
    dice = random.Random(5)
    pieces = [
        "vllm serve ",
        "sglang serve ",
        "llama-server ",
        "'",
        '"',
        "\\",
        "\n",
        "$X ",
        "{",
        "}",
        "--tp ",
        "-m ",
        "2 ",
        "docker run ",
        "<a>",
        "=",
        "&& ",
    ]
    for _ in range(150):
        text = "".join(dice.choices(pieces, k=dice.randrange(1, 12)))
        try:
            written, _ = campaign_from(text)
        except ConfigError:
            continue
        yaml.safe_load(written)


def test_the_shell_is_read_as_a_shell_reads_it() -> None:
    text = (
        "A='x y' B=\"q\\\"$C\" prog --a=1 'it'\\''s' a\\ b \"{}\" # no\nnext | third && fourth > out 2>&1 < in; fifth"
    )
    assert commands(text) == [
        ["A=x y", 'B=q"$C', "prog", "--a=1", "it's", "a b", "{}"],
        ["next"],
        ["third"],
        ["fourth"],
        ["fifth"],
    ]


def test_variables_and_arrays_that_the_text_sets_are_words_as_in_a_shell() -> None:
    assert commands("A='x  y'; p $A \"$A\" '$A' q$A \"b$A\"c E=$A") == [
        ["p", "x", "y", "x  y", "$A", "qx", "y", "bx  yc", "E=x  y"]
    ]
    text = """A=(--a "1 2"
        --b)
    [ -n "$Q" ] && A+=(--c)
    local B=(--d)
    if true; then B+=(--e); fi
    exec p "${A[@]}" ${B[*]} "${C[@]}" """
    assert commands(text)[-1] == ["exec", "p", "--a", "1 2", "--b", "${A[@]}", "--d", "${B[@]}", "${C[@]}"]


def test_flags_in_a_variable_or_an_array_are_taken_over() -> None:
    text = """COMMON="--tp 2 --port 30000"
    EXTRA=(--mem-fraction-static 0.8
      --cuda-graph-bs 1 2)
    python3 -m sglang.launch_server --model-path ${MODEL:-"org/m"} $COMMON "${EXTRA[@]}" "$@" """
    server, found, _ = read(text)
    assert server["flags"] == {"tp-size": 2, "mem-fraction-static": 0.8, "cuda-graph-bs": [1, 2]}
    assert server["model"]["hf"] == "org/m" and found.open == []
    server, _, _ = read('CMD=(llama-server -m "/m.gguf"\n -ot exps=CPU)\n"${CMD[@]}"')
    assert server["flags"] == {"override-tensor": "exps=CPU"}


def test_flags_behind_a_comment_are_named_as_lost() -> None:
    assert read("vllm serve org/m\r\n")[0]["model"]["hf"] == "org/m"
    for cut in ("# --seed 1 \\", " \\   # two", "\r"):
        _, found, _ = read(f"vllm serve org/m \\\n --max-num-seqs 8 {cut}\n --max-model-len 10")
        assert found.server["flags"] == {"max-num-seqs": 8}
        assert [line.partition(":")[0] for line in found.left_out] == ["--max-model-len 10"]


def test_a_unit_of_systemd_is_read_as_what_it_starts() -> None:
    unit = '[Service]\nEnvironment="A=1 2" B=3\nEnvironmentFile=/e\nExecStart=-{}\nRestart=always\n'
    server, found, _ = read(unit.format("/opt/vllm/bin/vllm serve org/m \\\n  --seed 1"))
    assert (server["binary"], server["env"]) == ("/opt/vllm/bin/vllm", {"A": "1 2", "B": "3"})
    server, found, _ = read(unit.format("/usr/bin/docker run -e C=4 reg.example.org/vllm/vllm-openai:v0.33.0 org/m"))
    assert (server["image"], server["env"]) == ("reg.example.org/vllm/vllm-openai:v0.33.0", {"C": "4"})
    assert found.left_out == []


@pytest.mark.parametrize(
    ("said", "devices"),
    [
        ("docker run --gpus '\"device=0,1\"'", "0,1"),
        ("docker run --gpus device=GPU-1a2b", "GPU-1a2b"),
        ("podman run --device nvidia.com/gpu=2 --device=nvidia.com/gpu=3", "2,3"),
        ("podman run --device nvidia.com/gpu=all", None),
        ("docker run --gpus 2", None),
    ],
)
def test_the_gpus_of_a_container_are_those_that_the_server_may_see(said: str, devices: str | None) -> None:
    server, found, _ = read(f"{said} vllm/vllm-openai:v0.33.0 org/m")
    assert server.get("env", {}).get("CUDA_VISIBLE_DEVICES") == devices
    assert "args" not in server["container"] and found.open == []


def test_a_container_has_only_the_environment_that_it_is_given() -> None:
    text = "export A=1; B=2 docker run --gpus device=3 -e C=4 {} vllm/vllm-openai:v0.33.0 {}"
    server, found, _ = read(text.format("", "org/m"))
    assert server["env"] == {"CUDA_VISIBLE_DEVICES": "3", "C": "4"}
    assert found.left_out == ["B: the container is not given it"]
    server, _, _ = read(text.format("--entrypoint bash", "-c 'export D=5; vllm serve org/m'"))
    assert server["env"] == {"CUDA_VISIBLE_DEVICES": "3", "C": "4", "D": "5"}


def test_init_writes_it_and_keeps_what_is_there(tmp_path: Path) -> None:
    asked = [str(tmp_path / "x"), "--from-command", "vllm serve org/m --seed 3"]
    done = CliRunner().invoke(init.command, asked, catch_exceptions=False, standalone_mode=False)
    assert f"next: gpurun validate {tmp_path / 'x/campaign.yml'}" in done.output
    assert "seed: 3" in (tmp_path / "x/campaign.yml").read_text()
    again = CliRunner().invoke(init.command, asked, standalone_mode=False)
    assert isinstance(again.exception, ConfigError)
    piped = [str(tmp_path / "y"), "--from-command", "-"]
    CliRunner().invoke(
        init.command, piped, input="vllm serve org/m --seed 4", catch_exceptions=False, standalone_mode=False
    )
    assert "seed: 4" in (tmp_path / "y/campaign.yml").read_text()


def test_every_engine_can_be_launched() -> None:
    for engine, text in {
        "trtllm": "trtllm-serve serve /m --tp_size 2 --backend pytorch",
        "transformers": "transformers serve --force-model org/m --continuous-batching",
    }.items():
        server, _, _ = read(text)
        assert server["engine"] == engine
        assert flags_argv(load_engine(engine).flags, server["flags"])
        assert json.dumps(server["model"])


def test_other_names_of_a_model_are_kept_as_a_comment() -> None:
    written, found = campaign_from("vllm serve org/m --served-model-name a b c")
    assert found.server["model"]["name"] == "a"
    assert "#   --served-model-name b c: a model has one name here" in written


def test_what_is_set_under_a_condition_is_not_known() -> None:
    text = """
    DTYPE=auto
    export A=1
    if [ "$SM" = 10.0 ]; then
        export B=1
        DTYPE=fp8
    else export B=2; fi
    for i in 0 1; do CUDA_VISIBLE_DEVICES=$i vllm serve org/m --kv-cache-dtype $DTYPE --port $((8000+i)) & done"""
    server, found, _ = read(text)
    assert server["env"] == {"A": "1", "CUDA_VISIBLE_DEVICES": "$i"}
    assert server["flags"] == {"kv-cache-dtype": "$DTYPE"}
    assert "server.flags.kv-cache-dtype" in found.open and "server.env.CUDA_VISIBLE_DEVICES" in found.open
    assert "B: its value is not in the command" in found.left_out


KUBERNETES = """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.33.0
        command: ["/bin/sh", "-c"]
        args: ["vllm serve org/m --trust-remote-code --max-num-seqs 8"]
        env:
        - {name: VLLM_LOGGING_LEVEL, value: DEBUG}
        - name: HUGGING_FACE_HUB_TOKEN
          valueFrom: {secretKeyRef: {name: hf, key: token}}
"""
COMPOSE = """
services:
  llama:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda
    environment: [LLAMA_ARG_THREADS=8]
    volumes: ["/models:/models:ro"]
    command: >
      -m /models/a.gguf
      -c 4096 --flash-attn on
    deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ["1", "2"], capabilities: [gpu]}]}}}
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            KUBERNETES,
            {"engine": "vllm==0.33.0", "image": "vllm/vllm-openai:v0.33.0", "secrets": ["HUGGING_FACE_HUB_TOKEN"]},
        ),
        (
            KUBERNETES.replace('["/bin/sh", "-c"]', "[vllm, serve]").replace(
                '["vllm serve org/m --trust-remote-code --max-num-seqs 8"]',
                "\n        - org/m\n        - --trust-remote-code\n        - --max-num-seqs=8",
            ),
            {"flags": {"trust-remote-code": True, "max-num-seqs": 8}, "env": {"VLLM_LOGGING_LEVEL": "DEBUG"}},
        ),
        (
            COMPOSE,
            {
                "engine": "llamacpp",
                "model": {"path": "/models/a.gguf"},
                "flags": {"ctx-size": 4096, "flash-attn": "on"},
                "env": {"CUDA_VISIBLE_DEVICES": "1,2", "LLAMA_ARG_THREADS": "8"},
            },
        ),
        ('["vllm", "serve", "org/m", "--seed", "1"]', {"engine": "vllm", "flags": {"seed": 1}}),
    ],
)
def test_a_container_in_yaml_says_the_same_as_a_command(text: str, wanted: dict[str, Any]) -> None:
    server, _, _ = read(text)
    assert {key: server[key] for key in wanted} == wanted
