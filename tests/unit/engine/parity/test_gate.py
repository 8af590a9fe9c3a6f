# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Engine and trainer compared on a table of logits: which weights each token is scored under, and what follows."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from relax.backends.base import ModelSpec, Part
from relax.backends.tiny.train import TinyTrain
from relax.data.columns import TrainSequence
from relax.engine.parity.difference import compare, first_micro_batches, total_difference
from relax.engine.parity.gate import ParityGate, ParitySettings
from relax.utils.errors import ConfigError, Divergence

PROMPT = [0, 1]


def table(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(6, 6))


def log_p(weights: np.ndarray, last: int, token: int) -> float:
    return float(weights[last, token] - np.log(np.exp(weights[last]).sum()))


def sequence(
    response: list[int], versions: list[int], engine: list[float], *, group: int = 0, mask: list[int] | None = None
) -> TrainSequence:
    return TrainSequence(
        group=group,
        index=0,
        tokens=np.asarray([*PROMPT, *response], np.int32),
        prompt_len=len(PROMPT),
        loss_mask=np.asarray(mask or [1] * len(response), np.uint8),
        columns={
            "rollout_logprobs": np.asarray(engine, np.float32),
            "weight_version": np.asarray(versions, np.float32),
        },
    )


def trainer(weights: np.ndarray, *versions: np.ndarray) -> TinyTrain:
    """Current `weights`, with `versions` kept as version-0, version-1, ..."""
    backend = TinyTrain(weights)
    backend.open(ModelSpec(Path("unused")), None)
    for number, kept in enumerate(versions):
        backend.table = kept.copy()
        backend.keep(f"version-{number}")
    backend.table = weights.copy()
    return backend


def part(*sequences: TrainSequence) -> Part:
    return Part(tuple((s,) for s in sequences))


def test_A9_each_token_is_scored_under_the_version_that_sampled_it():
    old, new = table(0), table(1)
    backend = trainer(new, old)
    # transitions 1->3 (version 0), 3->4 (version 1), 4->2 (an observation)
    row = sequence([3, 4, 2], [0, 1, -1], [log_p(old, 1, 3), log_p(new, 3, 4), 0.0], mask=[1, 1, 0])
    (found,) = compare(backend, part(row), {0: "version-0", 1: "actor"})
    assert np.isnan(found.differences[2])
    assert found.differences[:2] == pytest.approx([0.0, 0.0], abs=1e-6)  # float32 columns
    assert total_difference(backend, [found]).count == 2


def test_tokens_of_a_version_that_is_not_at_hand_are_not_compared():
    row = sequence([3, 4], [0, 1], [0.0, -1.0])
    backend = trainer(table(1))
    (found,) = compare(backend, part(row), {1: "actor"})
    assert np.isnan(found.differences[0])
    assert total_difference(backend, [found]).mean == pytest.approx(abs(log_p(table(1), 3, 4) + 1.0), rel=1e-6)


def test_mean_p99_and_max_are_of_all_compared_tokens():
    weights = table(2)
    backend = trainer(weights)
    # 100 tokens of one transition each, off by 0.01, 0.02, ... 1.00
    right = log_p(weights, 1, 3)
    rows = [sequence([3], [0], [right + (n + 1) / 100], group=n) for n in range(100)]
    found = total_difference(backend, compare(backend, part(*rows), {0: "actor"}))
    # mean 0.505; the 0.99 quantile of 100 values lies between the 99th (0.99) and the 100th: 0.99 + 0.01 * 0.01
    assert found.mean == pytest.approx(0.505, abs=1e-6)
    assert found.p99 == pytest.approx(0.9901, abs=1e-6)
    assert found.max == pytest.approx(1.0, abs=1e-6)


def test_a_token_that_the_trainer_holds_impossible_keeps_the_mean_a_number():
    backend = TinyTrain(table(0))
    backend.open(ModelSpec(Path("unused"), suppressed_ids=(3,)), None)
    found = compare(backend, part(sequence([3], [0], [-1.0])), {0: "actor"})
    assert total_difference(backend, found).max == 1000.0


def test_a_probe_takes_the_first_micro_batches_up_to_its_tokens():
    rows = [sequence([3] * 8, [0] * 8, [0.0] * 8, group=n) for n in range(5)]  # 10 tokens each
    backend = trainer(table(0))
    assert len(first_micro_batches(backend, part(*rows), 1).micro_batches) == 1
    assert len(first_micro_batches(backend, part(*rows), 25).micro_batches) == 3
    assert len(first_micro_batches(backend, part(*rows), 1000).micro_batches) == 5


# rollouts of 4 versions; the engine says what the version's own table says, so only a wrong copy makes a difference


def run(gate: ParityGate, *, age: int, rollouts: int = 7) -> tuple[list[int], int]:
    """Rollout r holds one token of each version r - age .. r; the rollouts compared, and the most copies at a time."""
    tables = [table(10 + v) for v in range(rollouts + 1)]
    backend, compared, most = trainer(tables[0]), [], 0
    for rollout in range(rollouts):
        backend.table = tables[rollout].copy()
        gate.published(backend, rollout)
        most = max(most, len(backend._kept))
        if not gate.due(rollout):
            continue
        versions = [v for v in range(rollout - age, rollout + 1) if v >= 0]
        rows = [sequence([3], [v], [log_p(tables[v], 1, 3)], group=v) for v in versions]
        found = gate.check(backend, part(*rows), rollout)
        assert found.count == len(versions)
        assert found.max < 1e-6
        compared.append(rollout)
    return compared, most


@pytest.mark.parametrize(
    ("interval", "age", "rollouts", "copies"),
    [
        (None, 0, [0], 0),
        (3, 0, [0, 3, 6], 1),  # on-policy: one copy, of the version before, for an engine that missed an update
        (3, 1, [0, 3, 6], 2),
        (1, 2, [0, 1, 2, 3, 4, 5, 6], 4),
        (5, 2, [0, 5], 3),
    ],
)
def test_all_tokens_within_the_age_limit_can_be_compared(interval, age, rollouts, copies):
    gate = ParityGate(ParitySettings(interval=interval, max_staleness=age))
    assert run(gate, age=age) == (rollouts, copies)


def test_a_resumed_run_is_compared_at_its_first_rollout():
    gate = ParityGate(ParitySettings(interval=4))
    assert gate.due(7)
    weights = table(0)
    gate.check(trainer(weights), part(sequence([3], [7], [log_p(weights, 1, 3)])), 7)
    assert not gate.due(9)
    assert gate.due(8)


def test_a_resumed_run_waits_for_a_rollout_of_which_it_has_the_weights():
    """Rollout 7 was sampled by version 6, which an earlier process published; rollout 8 by version 7."""
    tables = {version: table(version) for version in (6, 7, 8)}
    gate, backend = ParityGate(ParitySettings(max_staleness=1)), trainer(tables[7])
    gate.published(backend, 7)
    old = part(sequence([3], [6], [log_p(tables[6], 1, 3)]))
    assert gate.check(backend, old, 7).count == 0
    backend.table = tables[8].copy()
    gate.published(backend, 8)
    assert gate.due(8)
    found = gate.check(backend, part(sequence([3], [7], [log_p(tables[7], 1, 3)])), 8)
    assert (found.count, found.max) == (1, pytest.approx(0.0, abs=1e-6))
    assert not gate.due(9)
    assert backend._kept == {}


def test_a_difference_ends_the_run_before_the_first_update_and_later_by_policy(caplog):
    backend, wrong = trainer(table(0)), part(sequence([3], [0], [-5.0]))
    gate = ParityGate(ParitySettings(interval=1))
    with pytest.raises(ConfigError, match="--parity-limit"):
        gate.check(backend, wrong, 0)
    with caplog.at_level(logging.WARNING):
        gate.check(backend, wrong, 0)
    assert "disagree" in caplog.text
    strict = ParityGate(ParitySettings(interval=1, policy="fail"))
    weights = backend.table
    strict.check(backend, part(sequence([3], [0], [log_p(weights, 1, 3)])), 0)
    with pytest.raises(Divergence, match="--parity-policy fail"):
        strict.check(backend, wrong, 0)
