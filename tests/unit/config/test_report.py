# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The arithmetic that --dry-run prints (U1)."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from relax.config.command_line import SECTION_OF
from relax.config.report import backends_text, batch_arithmetic, checkpoint_ids, dry_run_report, run_facts
from relax.config.run import default_config
from relax.core.prompt_order import PromptOrder


def test_prompts_become_samples_steps_and_micro_batches() -> None:
    config = default_config(
        rollout_batch_size=32,
        n_samples_per_prompt=8,
        global_batch_size=64,
        micro_batch_size=3,
        num_rollout=10,
        resource={"actor": [1, 4], "rollout": [1, 2]},
    )
    assert batch_arithmetic(config) == {
        "prompts_per_rollout": 32,
        "samples_per_prompt": 8,
        "samples_per_rollout": 256,
        "samples_per_optimizer_step": 64,
        "optimizer_steps_per_rollout": 4,
        "streamed_parts_per_optimizer_step": 1,
        "training_ranks": 4,
        "data_parallel_ranks": 4,
        "micro_batches_per_rank_and_step": 6,  # ceil(64 / 3) = 22 micro-batches, dealt to 4 ranks and padded
        "rollouts": 10,
        "optimizer_steps": 40,
        "samples": 2560,
    }


def test_dynamic_micro_batches_depend_on_lengths() -> None:
    config = default_config(use_dynamic_batch_size=True, max_tokens_per_gpu=9216)
    assert batch_arithmetic(config)["micro_batches_per_rank_and_step"] == "by length: 9216 tokens each, at most 8"


def test_A23_an_epoch_that_the_batch_does_not_divide_ends_with_whole_rounds() -> None:
    """10 rows, 4 a round: one epoch is 2 rounds; the 2 rows left over open the third where a second epoch follows."""
    one = default_config(num_epoch=1, num_rollout=None, rollout_batch_size=4)
    two = default_config(num_epoch=2, num_rollout=None, rollout_batch_size=4)
    assert (one.num_rollouts(10), two.num_rollouts(10)) == (2, 5)
    order = PromptOrder(10, seed=3, shuffle=True)
    assert Counter(order.next_fresh()[1] for _ in range(5 * 4)) == Counter({row: 2 for row in range(10)})


@pytest.mark.parametrize(("rows", "rounds"), [(None, None), (10, 5), (1000, 100)])
def test_rounds_of_epochs_need_the_rows(rows: int | None, rounds: int | None) -> None:
    config = default_config(num_epoch=2, num_rollout=100, rollout_batch_size=4)
    assert batch_arithmetic(config, rows=rows)["rollouts"] == rounds


@pytest.mark.parametrize(
    ("interval", "rounds", "after"), [(None, 5, [5]), (2, 5, [2, 4, 5]), (5, 5, [5]), (9, 5, [5]), (1, 3, [1, 2, 3])]
)
def test_checkpoints_come_every_interval_and_after_the_last_round(interval, rounds: int, after: list[int]) -> None:
    config = default_config(save="x", save_interval=interval)
    assert checkpoint_ids(config, rounds) == {"count": len(after), "after_rollouts": after}


def test_without_a_folder_nothing_is_saved() -> None:
    assert checkpoint_ids(default_config(), 5) == {"count": 0, "after_rollouts": []}


def test_the_report_is_json_and_holds_every_flag_with_its_origin() -> None:
    report = json.loads(json.dumps(dry_run_report(default_config(lr=1e-5, fully_async=True, max_staleness=1))))
    flags = {name: entry for section in report["config"].values() for name, entry in section.items()}
    assert flags.keys() == SECTION_OF.keys()
    assert flags["lr"] == {"value": 1e-5, "origin": "flag"}
    assert flags["min_lr"] == {"value": 0.0, "origin": "default"}
    assert flags["eps_clip_high"] == {"value": 0.2, "origin": "derived"}
    assert report["run"]["mode"] == "fully_async"
    assert report["run"]["old_log_probs"]["source"] == "rollout"
    assert report["run"]["max_open_groups"] == 8


def test_the_backends_are_told_with_who_chose_them() -> None:  # E1, E2
    assert backends_text(default_config()) == (
        "training fsdp (by machine) in fp32, weights keep their Hugging Face names; "
        "inference native (by machine) in fp32"
    )
    text = backends_text(default_config(train_backend="fsdp", train_dtype="bf16"))
    assert text.startswith("training fsdp (as asked) in bf16, ")
    assert run_facts(default_config())["backends"] == backends_text(default_config())
