# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rules between flags: each broken rule is an error that names the flags and says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from relax.config.run import default_config, parse_args
from relax.utils.errors import ConfigError

ASYNC = {"fully_async": True, "max_staleness": 1}
TWO = {"actor": [1, 1], "rollout": [1, 1]}

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "samples a round that the batch does not divide": (
        {"rollout_batch_size": 5, "n_samples_per_prompt": 2, "global_batch_size": 4},
        "= 10 samples a round, which --global-batch-size 4 does not divide: use 2 or 10",
    ),
    "a batch that cuts a group": (
        {"rollout_batch_size": 4, "n_samples_per_prompt": 6, "global_batch_size": 8},
        "--global-batch-size 8 must hold whole groups of --n-samples-per-prompt 6",
    ),
    "streaming while cards are shared": (
        {"num_iters_per_train_update": 2, "colocate": True},
        "with --colocate generation and training alternate: add --fully-async or --hybrid",
    ),
    "streaming in turns": ({"num_iters_per_train_update": 2}, "and here generation and training alternate"),
    "parts that cut a group": (
        ASYNC | {"num_iters_per_train_update": 3},
        "--num-iters-per-train-update 3 does not divide the 4 prompts of one optimizer step",
    ),
    "arrival in deterministic mode": (
        ASYNC | {"num_iters_per_train_update": 2, "stream_order": "arrival", "deterministic": True},
        "--stream-order arrival follows what ends first, which --deterministic excludes",
    ),
    "an order of parts without parts": (ASYNC | {"stream_order": "arrival"}, "--stream-order arrival has no effect"),
    "an offload against the mode": ({"offload_train": True}, "--offload-train True is known but not available"),
    "a conversion that fsdp does not make": (
        {"megatron_to_hf_mode": "raw"},
        "--megatron-to-hf-mode raw has no counterpart",
    ),
    "steps that contradict the batch": (
        {"global_batch_size": 4, "num_steps_per_rollout": 4},
        "make 2 steps, not --num-steps-per-rollout 4",
    ),
    "steps that do not divide the samples": (
        {"num_steps_per_rollout": 3},
        "--rollout-batch-size x --n-samples-per-prompt = 8 does not divide by 3",
    ),
    "fewer prompts started than trained": (
        {"over_sampling_batch_size": 3},
        "--over-sampling-batch-size 3 must be at least --rollout-batch-size 4",
    ),
    "a group of one": ({"n_samples_per_prompt": 1}, "--n-samples-per-prompt 1 leaves grpo nothing to compare"),
    "dynamic batches without a size": ({"use_dynamic_batch_size": True}, "needs --max-tokens-per-gpu"),
    "a size without dynamic batches": ({"max_tokens_per_gpu": 9216}, "no effect without --use-dynamic-batch-size"),
    "two modes": ({"fully_async": True, "colocate": True}, "are --hybrid alone; keep one of the three"),
    "hybrid on shared cards": ({"hybrid": True, "colocate": True}, "--colocate and --hybrid name different modes"),
    "hybrid and async": ({"hybrid": True, "fully_async": True}, "--fully-async and --hybrid name different modes"),
    "hybrid with a role that the actor stands for": (
        {"hybrid": True, "resource": {"actor": [1, 1], "rollout": [1, 1], "reference": [1, 1]}},
        "--hybrid lets the actor do the work of reference",
    ),
    "shared cards with roles that the actor stands for": (
        {
            "colocate": True,
            "resource": {"actor": [1, 1], "rollout": [1, 1], "reference": [1, 1], "actor_fwd": [1, 1]},
        },
        "--colocate lets the actor do the work of reference and actor_fwd",
    ),
    "roles that take turns with one that the actor stands for": (
        {"resource": {"actor": [1, 1], "rollout": [1, 1], "reference": [1, 1]}},
        "a run without --fully-async lets the actor do the work of reference",
    ),
    "an interval that stops a hybrid run": (
        {"hybrid": True, "max_staleness": 1, "update_weights_interval": 3},
        "--update-weights-interval 3 would stop the run",
    ),
    "engines that take turns do not come back": ({"use_fault_tolerance": True}, "needs --fully-async or --hybrid"),
    "staleness without async": ({"max_staleness": 1}, "--max-staleness 1 needs --fully-async or --hybrid"),
    "determinism on an engine that mixes requests": (
        {"deterministic": True, "rollout_backend": "sglang", "sglang_python": "python"},
        "--deterministic with --rollout-backend sglang: tokens of that engine depend on which requests share a batch",
    ),
    "determinism with interrupted responses": (
        {"deterministic": True, "partial_rollout": True},
        "--deterministic with --partial-rollout: where an update interrupts a response depends on time",
    ),
    "a deterministic checkpoint between two updates": (
        ASYNC | {"deterministic": True, "save": "out", "save_interval": 3, "update_weights_interval": 2},
        "--save-interval 3 must be a multiple of --update-weights-interval 2",
    ),
    "staleness with shared cards": ({"max_staleness": 1, "colocate": True}, "with --colocate generation and training"),
    "an interval that stops the run": (
        ASYNC | {"update_weights_interval": 3},
        "--update-weights-interval 3 would stop the run",
    ),
    "inline on a bus of its own process": (
        {"inline": True, "bus": "transfer_queue"},
        "--inline runs all roles in one process: use --bus local",
    ),
    "a local bus between processes": ({"bus": "local"}, "--bus local lives in one process: add --inline"),
    "a metrics service without HTTP": (
        {"use_metrics_service": True, "serve_http": False},
        "--use-metrics-service is part of the roles' HTTP routes: leave --inline and --no-serve-http out",
    ),
    "a metrics service inline": (
        {"use_metrics_service": True, "inline": True},
        "--use-metrics-service is part of the roles' HTTP routes: leave --inline and --no-serve-http out",
    ),
    "inline on several cards": (
        {"inline": True, "resource": {"actor": [1, 2], "rollout": [1, 1]}},
        "--inline has one training rank and one engine",
    ),
    "engines that do not divide their cards": (
        {"resource": {"actor": [1, 1], "rollout": [1, 3]}, "rollout_num_gpus_per_engine": 2},
        "--rollout-num-gpus-per-engine 2 does not divide the 3 cards",
    ),
    "cards that contradict the resource": (
        {"resource": TWO, "rollout_num_gpus": 4},
        "--rollout-num-gpus 4 contradicts --resource, which gives rollout 1",
    ),
    "nodes that contradict the resource": (
        {"resource": TWO, "actor_num_nodes": 2, "actor_num_gpus_per_node": 1},
        "--actor-num-nodes 2 x --actor-num-gpus-per-node 1 contradicts --resource",
    ),
    "a KL without a reference": (
        ASYNC | {"resource": TWO, "use_kl_loss": True, "kl_loss_coef": 0.1},
        'needs "reference" in --resource, which has actor, rollout, advantages',
    ),
    "old log-probs without a role": (
        ASYNC | {"resource": TWO, "use_tis": True},
        'needs "actor_fwd" in --resource, which has actor, rollout, advantages',
    ),
    "a resource without rollout": ({"resource": {"actor": [1, 1]}}, '--resource has no entry "rollout"'),
    "greedy training": ({"rollout_temperature": 0.0}, "--rollout-temperature 0 cannot be trained on"),  # P4
    "nucleus training": ({"rollout_top_p": 0.9}, "--rollout-top-p 0.9 cannot be trained on"),
    "top-k training": ({"rollout_top_k": 20}, "--rollout-top-k 20 cannot be trained on"),
    "a prompt as long as the context": (
        {"rollout_max_context_len": 100, "rollout_max_prompt_len": 100, "rollout_max_response_len": 50},
        "--rollout-max-prompt-len 100 must be below --rollout-max-context-len 100",
    ),
    "a response as long as the context": (
        {"rollout_max_context_len": 100, "rollout_max_response_len": 100},
        "--rollout-max-response-len 100 must be below --rollout-max-context-len 100",
    ),
    "a context larger than the cache": (
        {"rollout_max_context_len": 100, "rollout_max_response_len": 50, "engine_max_total_tokens": 64},
        "does not fit --engine-max-total-tokens 64",
    ),
    "a media range upside down": (
        {"video_min_frames": 9, "video_max_frames": 8},
        "--video-min-frames 9 is above --video-max-frames 8",
    ),
    "two KL terms": (
        {"kl_coef": 0.1, "kl_loss_coef": 0.1, "use_kl_loss": True},
        "--kl-coef and --kl-loss-coef exclude each other, keep one",
    ),
    "a KL in the reward of grpo": ({"kl_coef": 0.1}, "--kl-coef 0.1 has no effect with --advantage-estimator grpo"),
    "the student's ids at a teacher that SGLang serves": (
        {
            "use_opd": True,
            "teacher_hf_checkpoint": "t",
            "rollout_backend": "sglang",
            "sglang_python": "python",
            "opd_token_selection": "union",
            "opd_log_prob_top_k": 8,
        },
        "--opd-token-selection union asks for other ids at each token, which SGLang does not take",
    ),
    "a KL weight without its switch": (
        {"kl_loss_coef": 0.1},
        "--kl-loss-coef 0.1 has no effect without --use-kl-loss",
    ),
    "a moving reference without a KL": ({"ref_update_interval": 5}, "no effect without a KL term"),
    "a correction of itself": ({"use_tis": True, "use_rollout_logprobs": True}, "both are the engines': keep one"),
    "two sources of old log-probs": (
        {"true_on_policy_mode": True, "use_rollout_logprobs": True},
        "name two sources of the old log-probs",
    ),
    "truncation bounds upside down": (
        {"tis_clip": 1.0, "tis_clip_low": 2.0},
        "--tis-clip-low 2.0 is above --tis-clip",
    ),
    "mismatch metrics without a function": ({"get_mismatch_metrics": True}, "needs --custom-tis-function-path"),
    "two averages": (
        {"calculate_per_token_loss": True, "loss_reduction": "sample_mean"},
        "--calculate-per-token-loss is --loss-reduction token_mean",
    ),
    "a decay upwards": ({"lr": 1e-6, "min_lr": 1e-5}, "--min-lr 1e-05 is above --lr 1e-06"),
    "a decay within the warm-up": (
        {"lr_decay_style": "cosine", "lr_decay_iters": 5, "lr_warmup_iters": 5},
        "must be above --lr-warmup-iters 5",
    ),
    "evaluation of nothing": ({"eval_interval": 5}, "--eval-interval needs data sets"),
    "evaluation never": ({"eval_prompt_data": ["aime", "a.jsonl"]}, "without --eval-interval"),
    "checkpoints nowhere": ({"save_interval": 20}, "--save-interval 20 needs --save"),
    "a decay to an unknown end": (
        {"lr_decay_style": "cosine", "num_epoch": 2},
        "--lr-decay-style cosine over --num-epoch needs --lr-decay-iters",
    ),
    "a remote reward without an address": ({"rm_type": "remote_rm"}, "--rm-type remote_rm needs --rm-url"),
    "group rewards without a function": ({"group_rm": True}, "add --custom-rm-path"),
    "sglang that is not there": ({"rollout_backend": "sglang"}, "--rollout-backend sglang: SGLang cannot be imported"),
    "a system prompt without a template": (
        {"system_prompt": "Be brief."},
        "--system-prompt needs --apply-chat-template",
    ),
    "media limits that SGLang does not take": (
        {"rollout_backend": "sglang", "sglang_python": "python", "image_max_tokens": 9, "video_fps": 1.0},
        "--image-max-tokens 9, --video-fps 1.0: SGLang sizes media by the saved processor",
    ),
    "no rounds": ({"num_rollout": None}, "--num-rollout (rounds) or --num-epoch (passes over the prompts) is missing"),
    "no model": ({"hf_checkpoint": None}, "--hf-checkpoint is missing"),
    "no batch": ({"rollout_batch_size": None}, "--rollout-batch-size is missing"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_an_error_with_a_remedy(name: str) -> None:
    overrides, text = BROKEN[name]
    with pytest.raises(ConfigError) as caught:
        default_config(**overrides)
    assert text in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1, "one broken rule, one line"


def test_all_broken_rules_are_told_together() -> None:
    with pytest.raises(ConfigError) as caught:
        default_config(rollout_top_p=0.5, kl_loss_coef=0.1, save_interval=3)
    assert len(str(caught.value).splitlines()) == 3


def test_an_error_ends_the_process_with_two() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_args([])
    assert caught.value.exit_code == 2
    assert "--hf-checkpoint" in str(caught.value)
    assert "--prompt-data" in str(caught.value)


ALLOWED: dict[str, dict[str, Any]] = {
    "an offload that the mode implies": {"colocate": True, "offload_train": True},
    "greedy evaluation": {
        "eval_interval": 1,
        "eval_prompt_data": ["a", "a.jsonl"],
        "eval_temperature": 0.0,
        "eval_top_p": 0.7,
    },
    "the longest possible interval": ASYNC | {"update_weights_interval": 2},
    "a KL measured and not trained": {"use_kl_loss": True, "kl_loss_coef": 0.0},
    "a group of one without normalisation": {"n_samples_per_prompt": 1, "disable_rewards_normalization": True},
    "several steps a rollout": {"rollout_batch_size": 8, "global_batch_size": 4},
    "colocate": {"colocate": True, "max_staleness": 0},
    "dead engines come back": {**ASYNC, "use_rollout_logprobs": True, "use_fault_tolerance": True},
    "streamed parts of two optimizer steps": ASYNC
    | {"rollout_batch_size": 8, "global_batch_size": 8, "num_iters_per_train_update": 2, "stream_order": "arrival"},
    "hybrid, ahead of the weights": {"hybrid": True, "max_staleness": 2, "use_kl_loss": True, "kl_loss_coef": 0.1},
    "tis with its role": ASYNC
    | {"use_tis": True, "resource": {"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1], "advantages": [1, 0]}},
    "the usual media limits with SGLang": {"rollout_backend": "sglang", "sglang_python": "python", "video_fps": 2.0},
    "a system prompt with a template": {"system_prompt": "Be brief.", "apply_chat_template": True},
    "a system prompt for messages that a function makes": {"system_prompt": "Be brief.", "custom_prompt_path": "a.b"},
    "media limits of the native engine": {"image_max_tokens": 9},
    "a sample longer than a micro-batch": {  # E4: it makes a micro-batch of its own
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": 100,
        "rollout_max_context_len": 200,
        "rollout_max_response_len": 150,
    },
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_can_run_is_accepted(name: str) -> None:
    default_config(**ALLOWED[name])
