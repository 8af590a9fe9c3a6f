# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Flags of Megatron, SGLang and the router: recognised without their packages, given to their own backend only."""

from __future__ import annotations

import json

import pytest

from relax.backends.sglang.spec import OWN_FLAGS
from relax.config.external.architecture import ARCHITECTURE, architecture, architecture_differences
from relax.config.external.rules import (
    FSDP_HINTS,
    FSDP_MEANING,
    FSDP_NEUTRAL,
    NATIVE_HINTS,
    NATIVE_NEUTRAL,
    ROUTER_OWN,
    SGLANG_MAPPED,
    SGLANG_OWN,
    Backends,
    judge,
)
from relax.config.external.tables import ExternalFlag, ExternalFlags, table, version
from relax.config.machine import Machine
from relax.config.run import RunConfig, parse_args
from relax.core.build import optimizer_spec
from relax.utils.errors import ConfigError

BASE = """
    --hf-checkpoint m --prompt-data p --num-rollout 1 --rollout-batch-size 4 --n-samples-per-prompt 2 --rm-type math
"""
QWEN3_4B = """
    --swiglu --num-layers 36 --hidden-size 2560 --ffn-hidden-size 9728 --num-attention-heads 32 --group-query-attention
    --num-query-groups 8 --use-rotary-position-embeddings --disable-bias-linear --normalization RMSNorm
    --norm-epsilon 1e-6 --rotary-base 1000000 --vocab-size 151936 --kv-channels 128 --qk-layernorm
"""
QWEN3_4B_CONFIG = {
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "vocab_size": 151936,
    "head_dim": 128,
}
PERFORMANCE = """
    --tensor-model-parallel-size 1 --sequence-parallel --pipeline-model-parallel-size 1 --expert-model-parallel-size 1
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --optimizer-cpu-offload
    --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer --use-dynamic-batch-size --max-tokens-per-gpu 9216
    --rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.8 --megatron-to-hf-mode bridge
"""
GPUS = Machine(gpus=8, sglang=True)


def parse(text: str, machine: Machine | None = None) -> RunConfig:
    return parse_args(f"{BASE} {text}".split(), machine=machine or Machine())


def test_a_model_script_parses_where_megatron_is_not_installed() -> None:
    external = parse(QWEN3_4B).external
    assert external.megatron("num-layers") == 36
    assert external.megatron("norm-epsilon") == 1e-6
    assert external.megatron("swiglu") is True
    assert external.megatron("normalization") == "RMSNorm"
    assert external.megatron("untie-embeddings-and-output-weights") is None


def test_the_performance_block_passes_on_fsdp_where_its_values_change_nothing() -> None:
    config = parse(PERFORMANCE)
    assert config.gradient_checkpointing
    assert config.data_parallel_size == 1
    *mapped, idle = config.notes
    assert [note.split()[0] for note in mapped] == [
        "--recompute-granularity",
        "--recompute-method",
        "--recompute-num-layers",
        "--optimizer-cpu-offload",
        "--overlap-cpu-optimizer-d2h-h2d",
        "--use-precision-aware-optimizer",
    ]
    assert idle == "without effect on --rollout-backend native: --sglang-mem-fraction-static 0.8"


def test_the_blocks_of_a_training_script_parse_together() -> None:
    """Checkpoints, sampling sizes, messages, evaluation, logging, performance and the launch line in one command."""
    blocks = """
        --hf-checkpoint /root/Qwen3-VL-4B-Instruct/ --ref-load /root/Qwen3-VL-4B-Instruct/ --megatron-to-hf-mode bridge
        --load /path/checkpoint/ --save /path/checkpoint/ --save-interval 20
        --prompt-data /root/prompts.jsonl --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256
        --num-rollout 200 --input-key prompt --label-key label --apply-chat-template --rm-type openr1mm
        --multimodal-keys {"image":"image"} --system-prompt Think.
        --eval-interval 5 --eval-prompt-data aime /root/aime-2024/aime-2024.jsonl --n-samples-per-eval-prompt 16
        --eval-max-response-len 16384 --eval-top-p 0.7
        --use-tensorboard --tb-project-name project --tb-experiment-name name
        --max-staleness 0 --num-data-storage-units 1 --colocate
    """
    launch = ["--resource", '{"actor": [1, 8], "rollout": [1, 8]}']
    performance = PERFORMANCE.replace("per-engine 1", "per-engine 2")
    config = parse_args([*f"{blocks} {performance} {QWEN3_4B}".split(), *launch], machine=Machine())
    assert config.mode == "colocate"
    assert (config.needed_gpus, config.num_engines, config.data_parallel_size) == (8, 4, 8)
    assert (config.samples_per_rollout, config.steps_per_rollout) == (256, 1)
    assert config.old_log_probs == "current"
    assert [(d.name, d.n_samples_per_eval_prompt, d.top_p, d.top_k) for d in config.eval_datasets] == [
        ("aime", 16, 0.7, -1)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "--context-parallel-size 2",
        "--attention-dropout 0.1",
        "--moe-aux-loss-coeff 0.001",
        "--moe-router-dtype fp32",
        "--fp16",
    ],
)
def test_a_megatron_flag_without_a_counterpart_names_the_backend(text: str) -> None:  # E2
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert str(caught.value).startswith(text)
    assert "--train-backend fsdp" in str(caught.value)


@pytest.mark.parametrize("axis", ["tensor", "pipeline", "expert"])
def test_what_megatron_splits_over_ranks_fsdp_splits_over_all_of_them(axis: str) -> None:  # E2
    flag = f"--{axis}-model-parallel-size"
    notes = [
        note for note in parse(f"{flag} 8").notes if note.startswith(f"{flag} 8 on the fsdp backend: FSDP splits")
    ]
    assert len(notes) == 1
    assert parse(f"{flag} 8", GPUS).data_parallel_size == 4  # all cards of the actor
    assert not [note for note in parse(f"{flag} 1").notes if flag in note]


def test_of_a_repeated_megatron_flag_the_last_counts() -> None:
    parse("--context-parallel-size 2 --context-parallel-size 1")
    with pytest.raises(ConfigError, match="--context-parallel-size 2 has no counterpart"):
        parse("--context-parallel-size 1 --context-parallel-size 2")


def test_choices_among_megatrons_kernels_are_one_note_on_fsdp() -> None:
    flags = ["--attention-backend flash", "--no-rope-fusion", "--moe-grouped-gemm"]
    assert parse(" ".join(flags)).notes == (f"without effect on --train-backend fsdp: {', '.join(flags)}",)


def test_a_megatron_flag_of_a_feature_that_is_missing_names_the_feature() -> None:
    with pytest.raises(
        ConfigError, match=r"--profile-step-start 3 is not available on --train-backend fsdp .* profiling"
    ):
        parse("--profile-step-start 3")


def test_losses_that_are_off_pass() -> None:
    assert parse("--moe-aux-loss-coeff 0 --moe-z-loss-coeff 0.0 --moe-router-bias-update-rate 0").notes == ()


@pytest.mark.parametrize("flag", ["--recompute-activations", "--recompute-granularity selective"])
def test_recomputation_is_gradient_checkpointing(flag: str) -> None:
    config = parse(flag)
    assert config.gradient_checkpointing
    assert config.notes == (f"{flag} on the fsdp backend: gradient checkpointing of every layer",)


def test_optimizer_offload_is_a_setting_of_the_optimizer() -> None:
    assert optimizer_spec(parse("--optimizer-cpu-offload", GPUS)).offload
    assert not optimizer_spec(parse("", GPUS)).offload


def test_bf16_is_the_training_type() -> None:
    config = parse("--bf16")
    assert (config.train.train_dtype, config.origin("train_dtype")) == ("bf16", "alias --bf16")
    with pytest.raises(ConfigError, match="--bf16 is --train-dtype bf16, and --train-dtype fp32 is given: keep one"):
        parse("--bf16 --train-dtype fp32")


def test_sglang_flags_go_to_sglang_without_their_prefix() -> None:
    config = parse("--sglang-mem-fraction-static 0.8 --sglang-enable-metrics --sglang-log-level warning", GPUS)
    assert config.external.argv("sglang") == (
        "--mem-fraction-static", "0.8", "--enable-metrics", "--log-level", "warning",
    )  # fmt: skip
    assert config.external.argv("router") == ()


def test_router_flags_go_to_the_router() -> None:
    config = parse("--router-policy round_robin")
    assert config.external.argv("router") == ("--policy", "round_robin")
    assert config.notes == ()


def test_router_flags_are_noted_where_there_is_no_router() -> None:
    one_each = ["--inline", "--resource", '{"actor": [1, 1], "rollout": [1, 1]}']
    config = parse_args([*BASE.split(), *one_each, "--router-policy", "round_robin"], machine=Machine())
    assert config.notes == ("without effect with --inline, which has no router: --router-policy round_robin",)


def test_one_process_engines_take_parallel_sizes_of_one() -> None:
    assert parse("--sglang-dp-size 1 --sglang-ep-size 1 --sglang-pp-size 1").notes == ()
    with pytest.raises(ConfigError, match="--sglang-dp-size 2 has no counterpart on --rollout-backend native"):
        parse("--sglang-dp-size 2")


def test_lists_keep_their_items() -> None:
    assert parse("--sglang-cuda-graph-bs 1 2 4", GPUS).external.argv("sglang") == ("--cuda-graph-bs", "1", "2", "4")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("--sglang-tp-size 2", "is set by Relax: use --rollout-num-gpus-per-engine"),
        ("--sglang-model-path x", "is set by Relax: use --hf-checkpoint"),
        ("--sglang-dtype bfloat16", "is set by Relax: use --rollout-dtype"),
        ("--sglang-preferred-sampling-params {}", "is set by Relax: use the sampling flags"),
        ("--sglang-context-length 8 --rollout-max-context-len 9", "is --rollout-max-context-len 8, and "),
        ("--sglang-context-length 8k", "expected a whole number, for it is --rollout-max-context-len"),
        ("--router-port 1", "is set by Relax: use the router's own port"),
        ("--router-retry-max-retries 3", "the router does not retry, for --rollout-failure-policy decides"),
        ("--sglang-mem-fraction-static much", "expected a number, got 'much'"),
        ("--router-policy best", "must be one of cache_aware, "),
    ],
)
def test_a_wrong_external_flag_is_an_error(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, GPUS)
    assert problem in str(caught.value)


def test_a_sglang_flag_that_changes_answers_is_refused_on_the_native_engine() -> None:
    with pytest.raises(ConfigError, match="--sglang-enable-lora has no counterpart on --rollout-backend native"):
        parse("--sglang-enable-lora")


def test_flags_that_relax_has_itself_are_mapped() -> None:
    config = parse("--sglang-max-running-requests 7 --sglang-context-length 2048 --sglang-max-total-tokens 9000", GPUS)
    assert config.rollout.rollout_max_context_len == 2048
    assert config.rollout.engine_max_total_tokens == 9000
    assert config.rollout.engine_max_running_requests == 7
    assert config.rollout.sglang_server_concurrency == 7
    assert config.external.argv("sglang") == ()


def test_a_flag_of_an_older_sglang_is_noted() -> None:
    notes = parse("--sglang-cuda-graph-bs 1", GPUS).notes
    assert notes == (f"--sglang-cuda-graph-bs exists in SGLang 0.5.9 and no longer in {version('sglang')}",)


def test_rules_only_name_flags_that_exist() -> None:
    for names, source in (
        (ARCHITECTURE | set(FSDP_MEANING) | set(FSDP_NEUTRAL) | FSDP_HINTS, "megatron"),
        (NATIVE_HINTS | set(SGLANG_OWN) | set(SGLANG_MAPPED) | set(NATIVE_NEUTRAL), "sglang"),
        (set(ROUTER_OWN), "router"),
    ):
        assert sorted(names - set(table(source))) == []


def test_a_flag_has_one_rule() -> None:
    split = {f"{axis}-model-parallel-size" for axis in ("tensor", "pipeline", "expert")}  # 1 passes, more is mapped
    groups = [ARCHITECTURE, set(FSDP_MEANING) - split, set(FSDP_NEUTRAL), FSDP_HINTS]
    assert sum(map(len, groups)) == len(set().union(*groups))
    groups = [NATIVE_HINTS, set(SGLANG_OWN), set(SGLANG_MAPPED), set(NATIVE_NEUTRAL)]
    assert sum(map(len, groups)) == len(set().union(*groups))


def test_what_the_engines_command_sets_itself_is_refused_at_the_door() -> None:
    known = {name.removeprefix("--") for name in OWN_FLAGS} & set(table("sglang"))
    assert sorted(known - set(SGLANG_OWN)) == []


def test_no_rule_applies_to_a_backend_that_owns_the_flag() -> None:
    external = ExternalFlags((ExternalFlag("megatron", "tensor-model-parallel-size", (8,)),))
    found = judge(external, Backends(train="megatron", rollout="sglang", router=True))
    assert (found.problems, found.notes) == ([], [])


class TestArchitecture:
    """Architecture flags are compared with the model's config.json (C32)."""

    def folder(self, tmp_path, config: dict):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    def test_flags_of_the_same_model_agree(self, tmp_path) -> None:
        assert architecture_differences(parse(QWEN3_4B).external, self.folder(tmp_path, QWEN3_4B_CONFIG)) == []

    def test_a_difference_lists_flag_and_both_values(self, tmp_path) -> None:
        folder = self.folder(tmp_path, QWEN3_4B_CONFIG | {"num_hidden_layers": 28})
        (problem,) = architecture_differences(parse(QWEN3_4B).external, folder)
        assert problem.splitlines()[1:] == ["  --num-layers 36: config.json has 28 (num_hidden_layers)"]

    def test_all_that_differ_are_one_problem(self, tmp_path) -> None:
        changed = {"num_hidden_layers": 28, "intermediate_size": 6144, "model_type": "qwen2", "rope_theta": 1e4}
        folder = self.folder(tmp_path, QWEN3_4B_CONFIG | changed)
        (problem,) = architecture_differences(parse(QWEN3_4B).external, folder)
        head, *lines = problem.splitlines()
        assert head == (
            f"4 architecture flags of another model than {folder}/config.json; leave them out, for they follow from "
            "it, or source this model's file:"
        )
        assert lines == [
            "  --num-layers 36: config.json has 28 (num_hidden_layers)",
            "  --ffn-hidden-size 9728: config.json has 6144 (intermediate_size)",
            "  --rotary-base 1000000: config.json has 10000 (rope_theta)",
            "  --qk-layernorm: config.json has it off (model_type = qwen2)",
        ]

    def test_of_a_repeated_flag_the_last_counts(self, tmp_path) -> None:
        folder = self.folder(tmp_path, QWEN3_4B_CONFIG | {"rope_theta": 5000000})
        assert architecture_differences(parse(f"{QWEN3_4B} --rotary-base 5000000").external, folder) == []

    @pytest.mark.parametrize(
        ("flags", "config", "line"),
        [
            ("--moe-layer-freq [0]*1+[1]*3", {"first_k_dense_replace": 1}, None),
            ("--moe-layer-freq [0,1,1,1]", {"first_k_dense_replace": 1}, None),
            (
                "--moe-layer-freq [0]*2+[1]*2",
                {"first_k_dense_replace": 1},
                "  --moe-layer-freq [0]*2+[1]*2: config.json has [0]*1+[1]*3 (first_k_dense_replace = 1)",
            ),
            ("--num-experts 8", {}, None),
            ("--num-experts 8", {"n_routed_experts": None}, "  --num-experts 8: config.json names none"),
            ("--multi-latent-attention", {}, "  --multi-latent-attention: config.json names none"),
            ("--position-embedding-type rope", {"rope_scaling": {"mrope_section": [1, 2]}}, None),
            ("--use-rotary-position-embeddings", {"rope_scaling": {"mrope_section": [1, 2]}}, None),
            (
                "--mrope-section 2 1",
                {"rope_scaling": {"mrope_section": [1, 2]}},
                "  --mrope-section 2 1: config.json has 1 2 (mrope_section)",
            ),
            ("--kv-channels 4", {}, "  --kv-channels 4: config.json has 8 (hidden_size / num_attention_heads)"),
            ("--max-position-embeddings 4096 --make-vocab-size-divisible-by 1", {}, None),
        ],
    )
    def test_values_are_compared_by_what_they_mean(self, tmp_path, flags, config, line) -> None:
        small = {"model_type": "qwen3", "num_hidden_layers": 4, "num_attention_heads": 2, "hidden_size": 16}
        folder = self.folder(tmp_path, small | {"n_routed_experts": 8, "rope_theta": 1e4} | config)
        problems = architecture_differences(parse(flags).external, folder)
        assert [text for problem in problems for text in problem.splitlines()[1:]] == ([line] if line else [])

    def test_the_numbers_of_an_unknown_model_type_are_compared(self, tmp_path) -> None:
        folder = self.folder(tmp_path, QWEN3_4B_CONFIG | {"model_type": "new", "vocab_size": 7})
        (problem,) = architecture_differences(parse(QWEN3_4B).external, folder)
        assert problem.splitlines()[1:] == ["  --vocab-size 151936: config.json has 7 (vocab_size)"]

    def test_a_dry_run_shows_the_whole_architecture_and_where_it_comes_from(self, tmp_path) -> None:
        folder = self.folder(tmp_path, QWEN3_4B_CONFIG | {"model_type": "qwen3", "tie_word_embeddings": True})
        shown = architecture(parse("--num-layers 36").external, folder)
        assert shown["--num-layers"] == {"value": 36, "origin": "flag"}
        assert shown["--hidden-size"] == {"value": 2560, "origin": "config.json: hidden_size"}
        assert shown["--qk-layernorm"] == {"value": True, "origin": "config.json: model_type = qwen3"}
        assert "--untie-embeddings-and-output-weights" not in shown

    @pytest.mark.parametrize("text", ["{", "[]"])
    def test_a_config_that_is_no_object_is_left_to_the_look_at_the_folder(self, tmp_path, text: str) -> None:
        (tmp_path / "config.json").write_text(text)
        assert architecture_differences(parse(QWEN3_4B).external, tmp_path) == []

    def test_the_language_part_of_an_omni_model_is_compared(self, tmp_path) -> None:
        nested = {"thinker_config": {"text_config": QWEN3_4B_CONFIG | {"vocab_size": 1}}}
        (problem,) = architecture_differences(parse(QWEN3_4B).external, self.folder(tmp_path, nested))
        assert problem.splitlines()[1:] == ["  --vocab-size 151936: config.json has 1 (vocab_size)"]

    def test_newer_rope_settings_are_found(self, tmp_path) -> None:
        config = {k: v for k, v in QWEN3_4B_CONFIG.items() if k != "rope_theta"}
        folder = self.folder(tmp_path, config | {"rope_parameters": {"rope_theta": 10000.0}})
        (problem,) = architecture_differences(parse(QWEN3_4B).external, folder)
        assert problem.splitlines()[1:] == ["  --rotary-base 1000000: config.json has 10000 (rope_theta)"]

    def test_nothing_is_compared_without_a_config(self, tmp_path) -> None:
        assert architecture_differences(parse(QWEN3_4B).external, tmp_path) == []
