# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Derived values, log-prob sources, pickling, and the functions that make a RunConfig."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from relax.config.machine import Machine, visible_gpus
from relax.config.run import RunConfig, default_config, parse_args
from relax.config.sections import SECTIONS
from relax.utils.errors import ConfigError

BASE = ["--hf-checkpoint", "m", "--prompt-data", "p.jsonl", "--num-rollout", "3", "--rm-type", "math"]
GPUS = Machine(gpus=8, sglang=True)


def parse(text: str = "", machine: Machine | None = None) -> RunConfig:
    return parse_args([*BASE, *text.split()], machine=machine or Machine())


@pytest.mark.parametrize(
    ("text", "prompts", "batch", "steps"),
    [
        ("--rollout-batch-size 32 --n-samples-per-prompt 8", 32, 256, 1),
        ("--rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 64", 32, 64, 4),
        ("--rollout-batch-size 32 --n-samples-per-prompt 8 --num-steps-per-rollout 2", 32, 128, 2),
        ("--global-batch-size 256 --n-samples-per-prompt 8", 32, 256, 1),
        ("--global-batch-size 64 --n-samples-per-prompt 8 --num-steps-per-rollout 4", 32, 64, 4),
    ],
)
def test_batch_sizes_complete_each_other(text: str, prompts: int, batch: int, steps: int) -> None:
    config = parse(text)
    assert (config.rollout.rollout_batch_size, config.train.global_batch_size) == (prompts, batch)
    assert config.steps_per_rollout == config.train.num_steps_per_rollout == steps
    assert config.samples_per_rollout == prompts * 8 == batch * steps


def test_the_gate_is_staleness_plus_one_rollouts_plus_what_filters_may_waste() -> None:  # contract 6
    assert default_config(fully_async=True, max_staleness=2, rollout_batch_size=4).max_open_groups == 12
    assert default_config(rollout_batch_size=4, over_sampling_batch_size=6).max_open_groups == 6


@pytest.mark.parametrize(
    ("overrides", "source", "role"),
    [
        ({}, "current", None),  # on-policy, one step: the training forward itself
        ({"global_batch_size": 4}, "old", "actor"),  # two steps: weights at the start of the rollout's training
        ({"colocate": True}, "current", None),
        ({"fully_async": True}, "current", None),  # staleness 0 gives the update that colocate gives
        ({"fully_async": True, "max_staleness": 1}, "rollout", None),
        ({"fully_async": True, "global_batch_size": 4}, "rollout", None),
        ({"fully_async": True, "max_staleness": 1, "use_tis": True}, "old", "actor_fwd"),
        ({"fully_async": True, "max_staleness": 1, "use_rollout_logprobs": False}, "old", "actor_fwd"),
        ({"hybrid": True}, "current", None),
        ({"hybrid": True, "global_batch_size": 4}, "old", "actor"),
        ({"hybrid": True, "max_staleness": 1}, "rollout", None),
        ({"hybrid": True, "max_staleness": 1, "use_tis": True}, "old", "actor"),
        ({"use_rollout_logprobs": True}, "rollout", None),
        ({"true_on_policy_mode": False}, "old", "actor"),
    ],
)
def test_old_log_probs_come_from(overrides: dict[str, Any], source: str, role: str | None) -> None:  # contract 12
    config = default_config(**overrides)
    assert (config.old_log_probs, config.old_log_probs_role) == (source, role)


def test_a_role_that_is_named_decides_the_source() -> None:
    resource = {"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1]}
    assert default_config(fully_async=True, max_staleness=1, resource=resource).old_log_probs == "old"


def test_roles_that_the_algorithm_needs_are_added_when_no_resource_is_given() -> None:  # C6
    config = default_config(fully_async=True, max_staleness=1, use_tis=True, use_kl_loss=True)
    assert {role: entry.gpus for role, entry in config.resource.items()} == {
        "actor": 1,
        "rollout": 1,
        "advantages": 0,
        "reference": 1,
        "actor_fwd": 1,
    }


def test_advantages_take_no_card_and_are_added_to_a_given_resource() -> None:
    config = default_config(fully_async=True, resource={"actor": [1, 1], "rollout": [1, 1]})
    assert config.resource["advantages"].gpus == 0
    assert config.origin("resource") == "flag, advantages derived"


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Machine(), ("fsdp", "native", "fp32", "fp32")),
        (GPUS, ("fsdp", "sglang", "bf16", "bf16")),
        (Machine(gpus=1), ("fsdp", "native", "bf16", "bf16")),
    ],
)
def test_backends_and_types_follow_from_the_machine(machine: Machine, expected: tuple[str, ...]) -> None:  # E2
    config = parse("--rollout-batch-size 4 --n-samples-per-prompt 2", machine)
    assert (
        config.train.train_backend,
        config.rollout.rollout_backend,
        config.train.train_dtype,
        config.rollout.rollout_dtype,
    ) == expected


def test_sglang_in_its_own_environment_needs_its_interpreter() -> None:
    text = "--rollout-batch-size 4 --n-samples-per-prompt 2 --rollout-backend sglang"
    with pytest.raises(ConfigError, match="--sglang-python"):
        parse(text)
    assert parse(f"{text} --sglang-python /opt/sglang/bin/python").rollout.rollout_backend == "sglang"


def test_the_smaller_number_of_rounds_wins() -> None:  # C8
    config = default_config(num_rollout=100, num_epoch=2, rollout_batch_size=4)
    assert config.num_rollouts(rows=10) == 5  # 2 epochs x 10 rows // 4
    assert config.num_rollouts(rows=1000) == 100
    with pytest.raises(ConfigError, match="gives no round"):
        config.num_rollouts(rows=1)


def test_evaluation_takes_what_it_is_not_given_from_the_rollout() -> None:
    config = default_config(rollout_max_response_len=77, rollout_temperature=0.8, eval_top_p=0.7, reward_key="score")
    assert (config.eval.eval_max_response_len, config.eval.eval_temperature, config.eval.eval_top_p) == (77, 0.8, 0.7)
    assert config.reward.eval_reward_key == "score"
    assert config.origin("eval_temperature") == "derived"
    assert config.origin("eval_top_p") == "flag"
    assert config.origin("eval_top_k") == "derived"
    assert config.origin("lr") == "default"


def test_the_longest_prompt_leaves_room_for_a_token() -> None:
    config = default_config(rollout_max_context_len=4096, rollout_max_response_len=1024)
    assert config.rollout.rollout_max_prompt_len == 4095


def test_a_decay_ends_with_the_run() -> None:
    config = default_config(lr_decay_style="cosine", num_rollout=10, global_batch_size=4)
    assert config.optimizer.lr_decay_iters == 20  # 10 rollouts of 2 steps
    assert default_config(num_rollout=10).optimizer.lr_decay_iters is None


def test_inline_runs_on_the_local_bus() -> None:
    assert default_config(inline=True).cluster.bus == "local"
    assert default_config().cluster.bus == "transfer_queue"


def test_colocate_makes_both_sides_leave_the_cards() -> None:
    colocate, apart = default_config(colocate=True).cluster, default_config().cluster
    assert (colocate.offload_train, colocate.offload_rollout) == (True, True)
    assert (apart.offload_train, apart.offload_rollout) == (False, False)


def test_a_config_travels_by_pickle() -> None:
    config = parse(
        "--rollout-batch-size 4 --n-samples-per-prompt 2 --num-layers 2 --eval-interval 1 --eval-prompt-data a b"
    )
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert again.flat() == config.flat()
    with pytest.raises(FrozenInstanceError):
        again.cluster = config.cluster


def test_a_pickle_needs_neither_torch_nor_ray() -> None:
    blob = pickle.dumps(default_config(fully_async=True)).hex()
    code = (
        f"import pickle, sys; config = pickle.loads(bytes.fromhex('{blob}')); assert config.mode == 'fully_async'; "
        "print([m for m in ('torch', 'ray', 'transformers', 'pyarrow', 'aiohttp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_values_are_ready_for_json() -> None:
    values = json.loads(json.dumps(default_config().values()))
    assert values["resource"] == {"actor": [1, 1], "rollout": [1, 1]}


def test_a_value_is_found_by_its_flag_name() -> None:
    config = default_config(lr=3e-4)
    assert config.value("lr") == 3e-4
    with pytest.raises(ConfigError, match="nearest is --rollout-batch-size"):
        config.value("rollout_batch")


def test_default_config_refuses_a_name_that_is_no_flag() -> None:
    with pytest.raises(ConfigError, match="nearest is --max-staleness"):
        default_config(max_stalenes=1)


def test_sections_are_attributes_of_the_run() -> None:
    config = default_config()
    for name, section in SECTIONS.items():
        assert isinstance(getattr(config, name), section)


def test_cards_hidden_by_the_environment_do_not_count(tmp_path, monkeypatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(tmp_path) == 2
    for visible, count in (("", 0), ("-1", 0), ("1", 1), ("0,1", 2), ("0,1,2", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert visible_gpus(tmp_path) == count


@pytest.mark.parametrize(
    ("flags", "on"),
    [
        ({}, True),
        ({"use_metrics_service": False}, False),
        ({"serve_http": False}, False),
        ({"inline": True}, False),
        ({"inline": True, "use_metrics_service": False}, False),
    ],
)
def test_the_metrics_service_is_on_where_roles_run_as_services(flags: dict[str, bool], on: bool) -> None:  # E9
    assert default_config(**flags).logging.use_metrics_service is on
