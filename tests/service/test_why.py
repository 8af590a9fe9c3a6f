# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`relax why` on a real run of the tiny model: every number is the curve's, and its parts add up to it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable

import pytest

from relax.entrypoints.why import main
from tests.service.test_replay import Replayed, on_runs, rewrite_journal
from tests.service.training_run import HOOKS, Finished, Inputs, inline

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture
def why(capsys) -> Callable[..., Replayed]:
    return on_runs(main, capsys)


@pytest.fixture(scope="module")
def done(inputs: Inputs, tmp_path_factory) -> Finished:
    """Two asynchronous rollouts of two optimizer steps, the second one trained on older tokens; a dict reward."""
    flags = inputs.flags(
        tmp_path_factory.mktemp("why") / "run",
        num_rollout=2, global_batch_size=2, kl_loss_coef=0.1, entropy_coef=0.01, save_interval=1,
        custom_rm_path=HOOKS + "dict_reward", reward_key="half", max_staleness=1,
    )  # fmt: skip
    return inline([*flags, "--fully-async", "--use-rollout-logprobs", "--use-kl-loss"]).ok()


def metrics(done: Finished, step: int) -> dict[str, float]:
    rows = map(json.loads, (done.folder / "metrics" / "metrics.jsonl").read_text().splitlines())
    return next(row for row in rows if row["step"] == step)


def table(text: str) -> list[list[str]]:
    """The cells of the printed table, head first."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(("t  ", "sample  ", "version  ", "tensor  ")))
    body = lines[first : lines.index("", first)]
    return [line.split() for line in body]


def test_every_number_that_is_no_measurement_comes_out_as_the_curve_has_it(done, why):
    found = why(done.folder, "--step", 1)
    assert found.code == 0, found.out + found.err
    assert found.result["differ"] == []
    measured = found.out.split("measured, not computed: ")[1].splitlines()[0].split(", ")
    computed = {name for name in metrics(done, 1) if name != "step"} - set(measured)
    assert found.result["explained"] == len(computed) >= 30
    assert {name for name in measured if not name.startswith("perf/")} <= {
        "rollout/sampled_tokens",
        "train/optimizer_steps",
        "train/weight_version",
    }


@pytest.mark.parametrize(
    "metric",
    [
        "rollout/reward/mean",
        "rollout/reward_parts/score/mean",
        "rollout/staleness_steps/mean",
        "rollout/staleness_steps/max",
        "train/policy_loss",
        "train/entropy_loss",
        "train/clip_fraction",
        "train/kl_ref",
        "train/grad_norm",
    ],
)
def test_the_parts_of_a_number_add_up_to_it(metric, done, why):
    found = why(done.folder, "--step", 1, "--metric", metric)
    assert found.code == 0, found.out + found.err
    result, curve = found.result, metrics(done, 1)[metric]
    assert result["curve"] == result["recomputed"] == curve
    # float32 sums of 24 tokens against float64 ones
    assert result["of_rows"] == pytest.approx(curve, rel=1e-5, abs=1e-7)
    head, *rows = table(found.out)
    adds = [float(row[head.index("adds") + (row[0] == "version")]) for row in rows]
    if metric in ("train/policy_loss", "train/entropy_loss"):  # 4 samples in 2 optimizer steps of 2
        assert math.fsum(adds) / 4 == pytest.approx(curve, rel=1e-5, abs=1e-7)
    if metric == "rollout/reward/mean":
        rewards = [sample["reward"]["half"] for sample in done.samples(1)]
        assert sorted(adds) == sorted(rewards)
    if metric == "train/grad_norm":
        assert result["rows"] == 25


def test_the_tokens_of_a_sample_are_shown_with_what_the_loss_makes_of_them(done, why):
    group = done.samples(1)[0]["group"]
    found = why(done.folder, "--step", 1, "--sample", f"g{group}.1")
    assert found.code == 0, found.out + found.err
    head, *rows = table(found.out)
    assert head == [
        "t", "text", "id", "version", "age", "mask", "engine", "old", "current", "reference", "ratio", "advantage",
        "weight", "adds",
    ]  # fmt: skip
    assert len(rows) == found.result["tokens"] == done.samples(1)[1]["response_tokens"]
    total = 0.0
    for row in rows:
        old, current, _, ratio, advantage, weight, adds = map(float, [cell for cell in row if cell != "clipped"][-7:])
        assert row[-8 - ("clipped" in row)] == row[-7 - ("clipped" in row)]  # old is the engine's
        assert ratio == pytest.approx(math.exp(current - old), abs=2e-6)
        # PPO with a clip of 0.2: -min(ratio * A, clip(ratio) * A) * weight
        loss = -min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
        assert adds == pytest.approx(loss * weight, abs=2e-6)
        total += adds
    assert found.result["adds"] == pytest.approx(total, abs=1e-8)
    assert f"sample g{group}.1 at step 1" in found.out


def test_a_sample_adds_the_same_in_both_views(done, why):
    group = done.samples(1)[0]["group"]
    whole = why(done.folder, "--step", 1, "--metric", "train/kl_loss")
    row = next(row for row in table(whole.out) if row[0] == f"g{group}.0")
    sample = why(done.folder, "--step", 1, "--metric", "train/kl_loss", "--sample", f"{group}.0")
    assert sample.result["adds"] == pytest.approx(float(row[1]), rel=1e-8)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--step", 9], "--step 9: "),
        (["--step", 1, "--metric", "train/lss"], "--metric train/lss: step 1 has "),
        (["--step", 1, "--metric", "perf/step_s"], "is measured while the run runs"),
        (["--step", 1, "--sample", "g1"], "write group and sample, such as g12.3"),
        (["--step", 1, "--sample", "g77.0"], "--sample g77.0: the step trained g"),
        (["--step", 1, "--sample", "SAMPLE", "--metric", "train/grad_norm"], "is no sum over tokens"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(words, said, done, why):
    group = done.samples(1)[0]["group"]
    found = why(done.folder, *(f"g{group}.0" if word == "SAMPLE" else word for word in words))
    assert found.code == 2
    assert said in found.err


def test_a_curve_that_does_not_follow_from_the_trace_is_said_to_differ(done, why, tmp_path):
    copy = shutil.copytree(done.folder, tmp_path / "run")
    path = copy / "metrics" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["rollout/reward/mean"] += 0.25
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = why(copy, "--step", 1, "--metric", "rollout/reward/mean")
    assert found.code == 6
    assert "NOT the curve's" in found.out
    path.unlink()
    assert "has no line of this step" in why(copy, "--step", 1).err


def test_a_damaged_trace_explains_nothing(done, why, tmp_path):
    copy = shutil.copytree(done.folder, tmp_path / "run")
    event = next(e for e in done.events("completed", "rollout") if e["group"] == done.samples(1)[0]["group"])
    path = copy / "trace" / event["file"]
    data = bytearray(path.read_bytes())
    data[event["offset"] + event["length"] - 1] ^= 1
    path.write_bytes(data)
    found = why(copy, "--step", 1)
    assert found.code == 2
    assert "trace weight_version" in found.err


def test_a_run_without_its_checksums_is_explained_all_the_same(done, why, tmp_path):
    copy = shutil.copytree(done.folder, tmp_path / "run")
    rewrite_journal(copy, lambda event: None if event["kind"] in ("trained", "weights") else event)
    assert why(copy, "--step", 1, "--metric", "train/policy_loss").result["equal"] is True
