"""Hardware rules: each one fires where it should and nowhere else; what they refuse is recorded and can be forced."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpurun import opening, rules, steps
from gpurun.cases import check
from gpurun.commands.plan import command as plan_command
from gpurun.commands.validate import command as validate_command
from gpurun.errors import ConfigError
from gpurun.facts_file import read_facts
from gpurun.findings import Subject
from gpurun.load import load_text
from gpurun.manifest import Controller
from gpurun.plan import Plan, build
from gpurun.store import RunStore

ROOT = Path(__file__).parents[2]
HOSTS = {
    name: next(iter(read_facts(str(ROOT / f"campaigns/hosts/{name}.json")).values()))
    for name in ("8x-rtx-pro-6000", "8x-h100", "1x-rtx-4090")
}
RTX, H100, ADA = HOSTS.values()
SEED = ROOT / "campaigns/rtx-pro-6000-allreduce.yml"
SEED_FACTS = ROOT / "campaigns/hosts/8x-rtx-pro-6000.json"
LLAMA_70B = {"num_attention_heads": 64, "num_key_value_heads": 8}
MOE = {
    **LLAMA_70B,
    "num_experts": 128,
    "moe_intermediate_size": 768,
    "quantization_config": {"weight_block_size": [128, 128]},
}


def with_gpus(facts: dict[str, Any], number: int | None = None, **changes: Any) -> dict[str, Any]:
    """The host with so many of its GPUs, and something else about the first."""
    gpus = [dict(gpu) for gpu in facts["gpus"][:number]]
    gpus[0].update(changes)
    return {**facts, "gpus": gpus}


def with_nvlink(facts: dict[str, Any]) -> dict[str, Any]:
    return {**facts, "topology": H100["topology"]}


AMPERE = {**with_gpus(H100, 1, compute_capability="8.0", name="NVIDIA A100"), "topology": None}
TURING = {**with_gpus(H100, 1, compute_capability="7.5", name="Tesla T4"), "topology": None}
H100_PCIE = {**H100, "topology": RTX["topology"]}
TP8 = {"tp_size": 8}
VTP8 = {"tensor_parallel_size": 8}
# rule, engine, flags, host, model's config; then what is the same and does not break it
ROWS: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("wants-a-key", "sglang", {"api_key": "EMPTY"}, RTX, {}, {"flags": {}}),
    ("wants-a-key", "llamacpp", {"api_key_file": "/keys"}, RTX, {}, {"flags": {}}),
    ("flashinfer-fusion-arch", "sglang==0.5.9", {"enable_flashinfer_allreduce_fusion": True}, RTX, {}, {"host": H100}),
    (
        "flashinfer-fusion-arch",
        "sglang==0.5.23",
        {"flashinfer_allreduce_fusion_backend": "mnnvl"},
        RTX,
        {},
        {"flags": {}},
    ),
    ("fusion-cutedsl", "sglang==0.5.23", {"flashinfer_allreduce_fusion_backend": "cutedsl"}, H100, {}, {"flags": {}}),
    ("torch-symm-mem-arch", "sglang==0.5.9", {"enable_torch_symm_mem": True, **TP8}, RTX, {}, {"host": H100}),
    ("torch-symm-mem-nvlink", "sglang==0.5.9", {"enable_torch_symm_mem": True, **TP8}, H100_PCIE, {}, {"host": H100}),
    ("symm-mem-world-size", "sglang", {"enable_torch_symm_mem": True, "tp_size": 3}, H100, {}, {"flags": TP8}),
    ("flashinfer-alltoall-nvlink", "sglang", {"moe_a2a_backend": "flashinfer", **TP8}, RTX, {}, {"host": H100}),
    ("flashinfer-alltoall-nvlink", "vllm", {"all2all_backend": "flashinfer_all2allv"}, RTX, {}, {"host": H100}),
    (
        "flashinfer-alltoall-runner",
        "sglang==0.5.9",
        {"moe_a2a_backend": "flashinfer"},
        H100,
        {},
        {"engine": "sglang==0.5.23"},
    ),
    ("deepep-nvlink", "sglang", {"moe_a2a_backend": "deepep", **TP8}, RTX, {}, {"host": H100}),
    ("custom-all-reduce-off", "vllm", VTP8, RTX, {}, {"host": H100}),
    ("custom-all-reduce-off", "sglang", {"tp_size": 4}, RTX, {}, {"flags": {"tp_size": 2}}),
    ("custom-all-reduce-size", "sglang", {"tp_size": 3}, H100, {}, {"flags": {"tp_size": 6}}),
    ("nvls-nvswitch", "sglang", {"enable_nccl_nvls": True, **TP8}, RTX, {}, {"host": H100}),
    (
        "trtllm-mla-arch",
        "sglang",
        {"attention_backend": "trtllm_mla"},
        RTX,
        {},
        {"flags": {"attention_backend": "triton"}},
    ),
    (
        "trtllm-mha-arch",
        "sglang==0.5.9",
        {"decode_attention_backend": "trtllm_mha"},
        RTX,
        {},
        {"engine": "sglang==0.5.23"},
    ),
    ("trtllm-mha-arch-new", "sglang==0.5.23", {"attention_backend": "trtllm_mha"}, ADA, {}, {"host": RTX}),
    (
        "vllm-fusion-arch",
        "vllm==0.33.0",
        {**VTP8, "compilation_config": {"pass_config": {"fuse_allreduce_rms": True}}},
        RTX,
        {},
        {"host": H100},
    ),
    (
        "vllm-attention-arch",
        "vllm==0.33.0",
        {"attention_backend": "FLASHINFER_MLA"},
        RTX,
        {},
        {"engine": "vllm==0.10.0"},
    ),
    (
        "vllm-attention-arch",
        "vllm",
        {"attention_backend": "flashmla"},
        RTX,
        {},
        {"flags": {"attention_backend": "TRITON_MLA"}},
    ),
    ("vllm-attention-arch", "vllm", {"attention_backend": "FLASH_ATTN_MLA"}, RTX, {}, {"host": H100}),
    ("quantization-arch", "sglang==0.5.23", {"quantization": "w4afp8"}, ADA, {}, {"host": H100}),
    ("quantization-arch", "vllm==0.33.0", {"quantization": "fp_quant"}, H100, {}, {"host": RTX}),
    ("fa3-arch", "sglang", {"attention_backend": "fa3"}, RTX, {}, {"host": ADA}),
    ("fp8-arch", "vllm", {"kv_cache_dtype": "fp8"}, AMPERE, {}, {"host": ADA}),
    ("fp8-arch", "vllm", {}, AMPERE, {"quantization_config": {"quant_method": "fp8"}}, {"host": ADA}),
    ("fp4-arch-old", "sglang==0.5.9", {"quantization": "modelopt_fp4"}, H100, {}, {"engine": "sglang==0.5.23"}),
    ("fp4-emulated", "vllm", {}, H100, {"quantization_config": {"quant_method": "mxfp4"}}, {"host": RTX}),
    ("fp4-arch", "sglang", {"kv_cache_dtype": "nvfp4"}, H100, {}, {"host": RTX}),
    ("fp4-emulated", "vllm", {"quantization": "modelopt_fp4"}, H100, {}, {"host": RTX}),
    ("bf16-arch", "vllm", {"dtype": "bfloat16"}, TURING, {}, {"host": AMPERE}),
    ("gpu-count", "sglang", {"tp_size": 16}, RTX, {}, {"flags": TP8}),
    ("gpu-count", "vllm", {"tensor_parallel_size": 4, "data_parallel_size": 4}, RTX, {}, {"engine": "command"}),
    (
        "gpu-count",
        "sglang",
        {"tp_size": 8, "dp_size": 8},
        RTX,
        {},
        {"flags": {**TP8, "dp_size": 8, "enable_dp_attention": True}},
    ),
    ("gpu-count", "vllm", {"tensor_parallel_size": 2}, ADA, {}, {"host": RTX}),
    ("heads-divide", "vllm", {"tensor_parallel_size": 3}, RTX, LLAMA_70B, {"flags": VTP8}),
    (
        "kv-heads-divide",
        "vllm",
        {"tensor_parallel_size": 4},
        RTX,
        {**LLAMA_70B, "num_key_value_heads": 6},
        {"model": LLAMA_70B},
    ),
    ("kv-heads-replicated", "sglang", TP8, RTX, {**LLAMA_70B, "num_key_value_heads": 4}, {"model": LLAMA_70B}),
    ("experts-divide", "sglang", {"ep_size": 3, "tp_size": 3}, RTX, MOE, {"flags": {"ep_size": 4, "tp_size": 4}}),
    ("ep-needs-experts", "vllm", {"enable_expert_parallel": True}, RTX, LLAMA_70B, {"model": MOE}),
    ("ep-divides-tp", "sglang", {"ep_size": 3, "tp_size": 8}, RTX, {}, {"flags": {"ep_size": 4, "tp_size": 8}}),
    (
        "dp-divides-tp",
        "sglang",
        {**TP8, "dp_size": 3, "enable_dp_attention": True},
        RTX,
        {},
        {"flags": {**TP8, "dp_size": 3}},
    ),
    ("block-fp8-divide", "vllm", VTP8, RTX, MOE, {"flags": {"tensor_parallel_size": 2}}),
    ("mixed-cards", "vllm", VTP8, with_gpus(RTX, name="NVIDIA GeForce RTX 5090"), {}, {"host": RTX}),
    ("mig-parallel", "vllm", VTP8, with_gpus(H100, mig={"enabled": True, "devices": []}), {}, {"flags": {}}),
    ("driver-cuda", "sglang==0.5.23", {}, {**RTX, "driver": {"version": "575.57.08"}}, {}, {"engine": "sglang==0.5.9"}),
    ("driver-cuda", "vllm==0.33.0", {}, {**RTX, "driver": {"version": "535.86.05"}}, {}, {"host": RTX}),
]


def subject(engine: str, flags: dict[str, Any], host: dict[str, Any], model: dict[str, Any], **more: Any) -> Subject:
    name, _, version = engine.partition("==")
    return Subject(name, version or None, flags, more.get("env", {}), [], {"config": model}, host, more.get("baseline"))


def fired(*of: Any, **more: Any) -> set[str]:
    return {finding.rule for finding in rules.check(subject(*of, **more))}


@pytest.mark.parametrize(("rule", "engine", "flags", "host", "model", "but"), ROWS, ids=[row[0] for row in ROWS])
def test_rule_fires_there_and_only_there(
    rule: str, engine: str, flags: dict[str, Any], host: dict[str, Any], model: dict[str, Any], but: dict[str, Any]
) -> None:
    given = {"engine": engine, "flags": flags, "host": host, "model": model}
    assert rule in fired(*given.values())
    assert rule not in fired(*{**given, **but}.values())


def test_rules_about_the_environment_and_the_baseline() -> None:
    plain = subject("sglang", {**TP8, "disable_custom_all_reduce": True}, RTX, {})
    assert "custom-all-reduce-pcie" in fired("sglang", TP8, RTX, {}, baseline=plain)
    assert "custom-all-reduce-pcie" not in fired("sglang", TP8, H100, {}, baseline=plain)
    assert "custom-all-reduce-off" not in fired("sglang", TP8, RTX, {}, baseline=plain)  # said once
    assert "custom-all-reduce-forced" in fired("vllm", VTP8, RTX, {}, env={"VLLM_FORCE_CUSTOM_ALL_REDUCE": "1"})
    symmetric = {"VLLM_ALLREDUCE_USE_SYMM_MEM": "1"}
    assert "vllm-symm-mem-arch" in fired("vllm", VTP8, RTX, {}, env=symmetric)
    assert "vllm-symm-mem-arch" not in fired("vllm", VTP8, H100, {}, env=symmetric)
    assert "gpu-count" in fired("vllm", {"tensor_parallel_size": 4}, RTX, {}, env={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert "wants-a-key" in fired("vllm", {}, RTX, {}, env={"VLLM_API_KEY": "EMPTY"})
    assert "wants-a-key" not in fired("sglang", {}, RTX, {}, env={"VLLM_API_KEY": "EMPTY", "OPENAI_API_KEY": "EMPTY"})


@pytest.mark.parametrize("said", ["env: {VLLM_API_KEY: EMPTY}", "secrets: [VLLM_API_KEY]"])
def test_a_server_that_wants_a_key_is_refused_however_it_is_told(said: str) -> None:
    text = (ROOT / "campaigns/h100-8x.yml").read_text().replace("\nserver:\n", f"\nserver:\n  {said}\n", 1)
    campaign, cases = check(load_text(text, "h100-8x.yml"))
    plan = build(campaign, cases, read_facts(str(ROOT / "campaigns/hosts/8x-h100.json")), "20261130-0900-a1f3")
    assert any(finding.rule == "wants-a-key" and finding.severity == "refuse" for finding in plan.findings)


def test_values_of_another_kind_break_no_rule() -> None:
    flags = {"moe_a2a_backend": True, "tp_size": 0, "attention_backend": 3, "page_size": "\N{SUPERSCRIPT TWO}"}
    for model in (
        MOE,
        {"quantization_config": "none", "text_config": "none"},
        {"quantization_config": {"weight_block_size": 128}},
    ):
        for engine in ("sglang", "vllm"):
            fired(engine, flags, H100, model)


def test_every_rule_has_an_example_here_and_says_what_to_do() -> None:
    above = {"custom-all-reduce-pcie", "custom-all-reduce-forced", "vllm-symm-mem-arch"}
    assert set(rules.names()) == {row[0] for row in ROWS} | above
    assert len(rules.names()) == len(set(rules.names()))
    for _, engine, flags, host, model, _ in ROWS:
        for finding in rules.check(subject(engine, flags, host, model)):
            assert finding.message and finding.advice and finding.source
            assert "None" not in finding.message + finding.advice and "  " not in finding.message + finding.advice


def test_without_gpus_only_what_flags_and_model_say_by_themselves_is_ruled_out() -> None:
    nothing = {"host": {}, "gpus": []}
    by_themselves = {"flashinfer-alltoall-runner", "heads-divide", "kv-heads-divide", "kv-heads-replicated"}
    by_themselves |= {
        "wants-a-key",
        "experts-divide",
        "ep-needs-experts",
        "ep-divides-tp",
        "dp-divides-tp",
        "block-fp8-divide",
    }
    for _, engine, flags, _, model, _ in ROWS:
        assert fired(engine, flags, nothing, model) <= by_themselves


def seed_plan(**options: Any) -> Plan:
    campaign, cases = check(load_text(SEED.read_text(), "seed.yml"))
    return build(campaign, cases, read_facts(str(SEED_FACTS)), "20261130-0900-a1f3", **options)


@pytest.mark.parametrize("file", sorted(path.name for path in (ROOT / "campaigns").glob("*.yml")))
def test_every_campaign_that_is_shipped_is_right_and_refuses_only_what_it_expects(file: str) -> None:
    path = ROOT / "campaigns" / file
    done = CliRunner().invoke(validate_command, [str(path)], standalone_mode=False)
    assert done.exception is None and "is right" in done.output
    hosts = re.search(r"--facts (campaigns/hosts/\S+)", path.read_text())
    if hosts is None:
        assert file == "quickstart.yml"  # which needs no GPU
        return
    campaign, cases = check(load_text(path.read_text(), file))
    plan = build(campaign, cases, read_facts(str(ROOT / hosts[1])), "run")
    assert [sample.variant for sample in plan.samples if sample.refused and not sample.expect] == []
    assert [finding.rule for finding in plan.findings if finding.rule in ("also-changes", "several-changes")] == []


def test_a_plan_warns_of_flags_that_the_version_has_not() -> None:
    text = SEED.read_text().replace("variants:\n", "variants:\n  odd:\n    server: {flags: {mem-fraction: 0.8}}\n", 1)
    campaign, cases = check(load_text(text, "seed.yml"))
    plan = build(campaign, cases, read_facts(str(SEED_FACTS)), "run")
    [found] = [finding for finding in plan.findings if finding.rule == "flags"]
    assert found.severity == "warn" and found.variants == ("odd",)
    assert "has no `--mem-fraction`" in found.message and "by the shipped options of SGLang" in found.message
    assert "--mem-fraction-static" in found.advice


def test_a_plan_says_when_the_flags_of_an_image_are_checked() -> None:
    image = "runtime: docker\n  image: lmsysorg/sglang@sha256:" + 64 * "0"

    def notes(engine: str) -> list[str]:
        text = SEED.read_text().replace("engine: sglang==0.5.9\n", f"engine: {engine}\n  {image}\n", 1)
        text = text.replace("engine: sglang==0.5.23", "engine: sglang==0.5.10")
        campaign, cases = check(load_text(text, "seed.yml"))
        found = build(campaign, cases, read_facts(str(SEED_FACTS)), "run").findings
        return [one.message for one in found if one.rule == "flags" and one.severity == "note"]

    assert notes("sglang==0.5.9") == []
    (told,) = notes("sglang")
    assert "its flags are checked when a run asks the engine in it" in told


def test_only_what_would_refuse_is_forced() -> None:
    found = [finding for finding in seed_plan(forced=["fit"]).findings if finding.rule == "fit"]
    assert {finding.severity for finding in found if finding.forced} == {"refuse"}
    assert not [finding for finding in found if finding.severity != "refuse" and finding.forced]


DEAD = {  # what the campaign's own author found out by running it
    "flashinfer-fusion": "flashinfer-fusion-arch",
    "torch-symmetric-memory": "torch-symm-mem-arch",
    "custom-all-reduce": "custom-all-reduce-pcie",
    "expert-parallel": "flashinfer-alltoall-nvlink",
    "small-fraction": "fit",
}
ALIVE = {"baseline", "smaller-graphs", "eagle3", "cuda-13"}


def test_the_dead_ends_of_the_seed_campaign_are_called_and_nothing_else() -> None:
    plan = seed_plan()
    refused = {sample.variant: sample.refused["rule"] for sample in plan.samples if sample.refused is not None}
    assert refused == DEAD
    assert {sample.variant for sample in plan.samples if sample.start} == ALIVE
    assert all(sample.refused["class"] == sample.expect for sample in plan.samples if sample.refused)
    assert plan.estimate.starts == sum(sample.start for sample in plan.samples)
    where = {finding.rule: finding.where for finding in plan.findings}
    line = next(n for n, text in enumerate(SEED.read_text().splitlines(), 1) if "enable-torch-symm-mem: true" in text)
    assert where["torch-symm-mem-arch"].startswith(f"seed.yml:{line}:")


def test_the_plan_says_it_and_orders_the_rest() -> None:
    done = CliRunner().invoke(plan_command, ["-c", str(SEED), "--facts", str(SEED_FACTS)])
    assert done.exit_code == 0
    for rule in DEAD.values():
        assert f"({rule}, " in done.output
    order = [line for line in done.output.splitlines() if line.startswith("  round ")]
    assert len(order) == 5 and not any(variant in line for variant in DEAD for line in order)


def test_a_rule_can_be_forced_by_name_and_no_other() -> None:
    plan = seed_plan(forced=["torch-symm-mem-arch"])
    forced = [sample for sample in plan.samples if sample.variant == "torch-symmetric-memory"]
    assert forced and not any(sample.refused for sample in forced) and any(sample.start for sample in forced)
    assert [finding.rule for finding in plan.findings if finding.forced] == ["torch-symm-mem-arch"]
    assert plan.forced == ["torch-symm-mem-arch"]
    with pytest.raises(ConfigError) as caught:
        seed_plan(forced=["torch-symm-mem-arc"])
    assert caught.value.problems[0].nearest == "torch-symm-mem-arch"


def opened(tmp_path: Path, plan: Plan) -> RunStore:
    return opening.open_run(
        plan, campaign_text=SEED.read_text(), results_dir=tmp_path, controller=Controller.of(1 << 22), facts={}
    )


def test_what_is_refused_is_a_failed_sample_with_its_class(tmp_path: Path) -> None:
    plan = seed_plan()
    store = opened(tmp_path, plan)
    samples = {sample.variant: sample for sample in store.samples()}
    failure = samples["flashinfer-fusion"].failure
    assert failure is not None and (failure.klass, failure.phase) == ("unsupported_arch", "preflight")
    assert "SM120" in failure.proof and failure.advice and failure.expected
    left = steps.pending(store, "rtx-pro-6000")
    assert {one["variant"] for one in left} == ALIVE


def test_a_resumed_run_looks_anew_at_what_was_refused(tmp_path: Path) -> None:
    store = opened(tmp_path, seed_plan())
    before = len(steps.pending(store, "rtx-pro-6000"))
    forced = seed_plan(forced=["flashinfer-fusion-arch"])
    opening.resume_run(store, forced, campaign_text=SEED.read_text(), controller=Controller.this())
    left = steps.pending(store, "rtx-pro-6000")
    assert len(left) == before + 5 and "flashinfer-fusion" in {one["variant"] for one in left}
    assert store.manifest.forced == ["flashinfer-fusion-arch"]
    assert json.loads((store.directory / "plan.json").read_text())["forced"] == ["flashinfer-fusion-arch"]


def test_what_a_variant_changes_beyond_what_it_tests_is_named() -> None:
    text = SEED.read_text().replace(
        "flags: {cuda-graph-max-bs: 128}", "flags: {cuda-graph-max-bs: 128, mem-fraction-static: 0.8}"
    )
    campaign, cases = check(load_text(text, "seed.yml"))
    found = build(campaign, cases, read_facts(str(SEED_FACTS)), "run").findings
    (extra,) = [finding for finding in found if finding.rule == "also-changes"]
    assert extra.variants == ("smaller-graphs",) and "flags.mem-fraction-static (none -> 0.8)" in extra.message
    silent = SEED.read_text().replace("    tests: [speculative-*]\n", "")
    campaign, cases = check(load_text(silent, "seed.yml"))
    found = build(campaign, cases, read_facts(str(SEED_FACTS)), "run").findings
    assert [finding.variants for finding in found if finding.rule == "several-changes"] == [("eagle3",)]


def test_a_metric_that_a_script_does_not_give_is_told() -> None:
    script = "{command: [run-it], metrics: {output_tok_per_s: a}}"
    text = re.sub(r"  one-stream:\n", f"  one-stream:\n    tool: script\n    script: {script}\n", SEED.read_text())
    campaign, cases = check(load_text(text, "seed.yml"))
    found = build(campaign, cases, read_facts(str(SEED_FACTS)), "run").findings
    (told,) = [finding for finding in found if finding.rule == "script-metrics"]
    assert "gives no ttft_p50_ms, tpot_p50_ms," in told.message


def test_tests_that_names_no_change_is_an_error_with_its_place() -> None:
    text = SEED.read_text().replace("tests: [cuda-graph-max-bs]", "tests: [cuda-graph-max-b]")
    with pytest.raises(ConfigError) as caught:
        check(load_text(text, "seed.yml"))
    (problem,) = caught.value.problems
    assert problem.mark is not None and problem.mark.text.strip() == "tests: [cuda-graph-max-b]"
    assert problem.nearest == "flags.cuda-graph-max-bs"
