# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What users plug in, and how it shows in the trace, on the bus and in the metrics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.builders import write_jsonl
from tests.service.training_run import Inputs, inline

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
FUNCTIONS = "tests.service.functions."


def test_functions_of_prompts_samples_and_rewards_reach_the_trainer(inputs: Inputs, tmp_path: Path):
    details = tmp_path / "details"
    done = inline(
        inputs.flags(
            tmp_path / "run",
            custom_prompt_path=FUNCTIONS + "shout",
            rollout_sample_filter_path=FUNCTIONS + "remove_first",
            custom_reward_post_process_path=FUNCTIONS + "opposite",
            dump_details=details,
        )
    ).ok()
    for rollout_id in range(2):
        rows = done.samples(rollout_id)
        assert [row["removed"] for row in rows] == [True, False] * 2
        assert all(row["prompt"] == f"{row['label']}! {row['prompt'].split('! ')[1].upper()}" for row in rows)
        released = load_file(details / "rollout_data" / f"{rollout_id}.safetensors")
        trained = load_file(details / "train_data" / f"{rollout_id}.safetensors")
        assert released.keys() < trained.keys()
        for group in {row["group"] for row in rows}:
            raw = [row["reward"] for row in rows if row["group"] == group]
            assert released[f"{group}/rollout/raw_reward"].tolist() == raw
            assert released[f"{group}/rollout/reward"].tolist() == [1.0, -1.0]
            assert released[f"{group}/rollout/removed"].tolist() == [1, 0]
            lengths = released[f"{group}/rollout/response_len"]
            advantages = np.repeat([1.0, -1.0], lengths)  # as they are, without the group's mean
            assert trained[f"{group}/advantages/advantages"].tolist() == advantages.tolist()
            weights = trained[f"{group}/advantages/loss_weight"]
            assert not weights[: lengths[0]].any()
            assert weights[lengths[0] :].any()
    assert done.metrics("rollout/reward/mean") == [0.0, 0.0]
    assert done.metrics("rollout/raw_reward/mean") != [0.0, 0.0]


def test_a_post_processing_that_loses_a_sample_ends_the_run(inputs: Inputs, tmp_path: Path):
    done = inline(inputs.flags(tmp_path / "run", custom_reward_post_process_path=FUNCTIONS + "one_too_few"))
    assert done.code == 3
    assert "one_too_few (sample group " in done.err
    assert "returned 1 values for 2 samples; return one number a sample" in done.err


def mixed(inputs: Inputs, folder: Path) -> Inputs:
    """Every second prompt is much longer than 20 tokens."""
    rows = [{"input": "1 + 1 = " + "?" * (0 if number % 2 else 90), "label": "2"} for number in range(8)]
    return Inputs(inputs.model, write_jsonl(folder / "mixed.jsonl", rows))


def test_a_long_prompt_is_left_out_and_counted(inputs: Inputs, tmp_path: Path):
    flags = mixed(inputs, tmp_path).flags(tmp_path / "run", rollout_max_prompt_len=20)
    done = inline(flags).ok()
    assert {row["prompt"] for number in range(2) for row in done.samples(number)} == {"1 + 1 = "}
    drops = done.events("dropped")
    assert {drop["reason"] for drop in drops} == {"overlong_prompt"}
    assert sum(done.metrics("rollout/dropped_groups/overlong_prompt")) >= 2


def test_a_long_prompt_may_end_the_run_or_be_cut(inputs: Inputs, tmp_path: Path):
    data = mixed(inputs, tmp_path)
    failed = inline(data.flags(tmp_path / "error", rollout_max_prompt_len=20, overlong_prompt="error"))
    assert failed.code == 2
    assert "mixed.jsonl:1: the prompt has" in failed.err
    cut = inline(data.flags(tmp_path / "cut", rollout_max_prompt_len=20, overlong_prompt="truncate_right")).ok()
    assert {row["prompt_tokens"] for row in cut.samples(0)} <= set(range(1, 21))
    assert cut.events("dropped") == []


def test_data_without_a_prompt_that_fits_ends_the_run(inputs: Inputs, tmp_path: Path):
    failed = inline(mixed(inputs, tmp_path).flags(tmp_path / "run", rollout_max_prompt_len=2))
    assert failed.code == 2
    assert "no prompt fits --rollout-max-prompt-len 2" in failed.err


def test_an_explicit_start_renumbers_a_resumed_run(inputs: Inputs, tmp_path: Path):
    inline(inputs.flags(tmp_path / "first", num_rollout=1)).ok()
    flags = inputs.flags(tmp_path / "second", num_rollout=6, load=tmp_path / "first", start_rollout_id=4)
    second = inline(flags).ok()
    assert [event["rollout_id"] for event in second.events("stepped")] == [4, 5]
    assert second.ages() == [0] * 4
    assert "--start-rollout-id 4 replaces the checkpoint's 1" in second.log()
    assert min(event["group"] for event in second.events("admitted")) == 2  # ids are never used again


def test_rewards_are_told_by_the_label_or_fall_back(inputs: Inputs, tmp_path: Path, caplog):
    rows = [{"input": "1 + 1 =", "label": "2"}, {"input": "which?", "label": "none of them"}] * 4
    data = Inputs(inputs.model, write_jsonl(tmp_path / "labels.jsonl", rows))
    flags = data.flags(tmp_path / "run", custom_rm_path=None, rm_type_fallback="zero")
    done = inline([*flags, "--rm-type-infer"]).ok()
    assert {row["reward"] for row in done.samples(0) if row["label"] == "none of them"} == {0.0}
    told = [record for record in caplog.records if "reward fallback" in record.getMessage()]
    assert len(told) == 1, "one warning for each reason and value"
    assert "none of them" in told[0].getMessage()


def test_evaluation_may_score_by_another_key_and_log_pass_rates(inputs: Inputs, tmp_path: Path):
    words = ["--eval-prompt-data", "held_out", str(inputs.prompts), "--log-passrate"]
    flags = inputs.flags(
        tmp_path / "run",
        custom_rm_path="tests.service.hooks.dict_reward",
        reward_key="score",
        eval_reward_key="half",
        eval_interval=2,
        n_samples_per_eval_prompt=2,
    )
    done = inline([*flags, *words]).ok()
    rows = done.samples(2, "eval")
    assert len(rows) == 24
    halves = [row["reward"]["half"] for row in rows]
    evaluated = done.metrics("eval/held_out/reward/mean")
    assert evaluated[-1] == pytest.approx(sum(halves) / 24)
    passed = sum(half >= 1.0 for half in halves) / 24
    assert done.metrics("eval/held_out/pass@1")[-1] == pytest.approx(passed)
    pairs = zip(halves[::2], halves[1::2], strict=True)
    assert done.metrics("eval/held_out/pass@2")[-1] == pytest.approx(sum(max(p) >= 1.0 for p in pairs) / 12)
