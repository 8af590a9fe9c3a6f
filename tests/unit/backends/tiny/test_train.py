# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""TinyTrain against finite differences and closed forms, in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from relax.algorithms.options import AlgorithmOptions, build_loss
from relax.backends.base import ModelSpec, OptimizerSpec, Part, Term, TokenBatch
from relax.backends.tiny.policy import WEIGHT_NAME, draw, log_prob_table
from relax.backends.tiny.train import TinyTrain
from relax.backends.tiny.weights import MemoryPublisher, WeightStore
from relax.data.columns import TrainSequence
from relax.utils.errors import Divergence, InternalError, WeightSyncError

TABLE = np.random.default_rng(0).normal(size=(5, 5))


class QuadraticLoss:
    """sum over tokens of weight * (log p)^2 + 0.3 * entropy: nothing linear about it."""

    needs = frozenset({"log_probs", "entropy"})
    objective = ("square", "entropy")

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        count = float(len(batch.log_probs))
        return {
            "square": Term((batch.columns["loss_weight"] * batch.log_probs.square()).sum(), count),
            "entropy": Term(0.3 * batch.entropy.sum(), count),
            "watched": Term(batch.log_probs.sum() * 5, count),
        }


def sequence(group: int, tokens: list[int], prompt_len: int = 1, **columns) -> TrainSequence:
    length = len(tokens) - prompt_len
    arrays = {"loss_weight": np.linspace(0.5, 1.5, length, dtype=np.float32)}
    arrays.update({name: np.full(length, value, np.float32) for name, value in columns.items()})
    return TrainSequence(group, 0, np.asarray(tokens, np.int32), prompt_len, np.ones(length, np.uint8), arrays)


PART = Part(((sequence(1, [0, 1, 2, 3]), sequence(2, [4, 4, 1])), (), (sequence(3, [2, 3]),)))


def opened(table=TABLE, *, temperature=1.0, suppressed=(), lr=0.1, clip=0.0, **options) -> TinyTrain:
    backend = TinyTrain(table, **options)
    spec = ModelSpec(Path("unused"), temperature=temperature, suppressed_ids=suppressed)
    backend.open(spec, OptimizerSpec(lr=lr, clip_grad=clip))
    return backend


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("suppressed", [(), (0,)])
def test_one_step_is_the_numerical_gradient(temperature: float, suppressed: tuple[int, ...]):
    loss = QuadraticLoss()

    def value(table: np.ndarray) -> float:
        backend = opened(table, temperature=temperature, suppressed=suppressed)
        sums = backend.backward(PART, loss).sums
        return sums["square"] + sums["entropy"]

    numerical, h = np.zeros_like(TABLE), 1e-6
    for place in np.ndindex(TABLE.shape):
        step = np.zeros_like(TABLE)
        step[place] = h
        numerical[place] = (value(TABLE + step) - value(TABLE - step)) / (2 * h)
    backend = opened(temperature=temperature, suppressed=suppressed)
    backend.backward(PART, loss)
    stats = backend.step(4.0)
    assert (TABLE - backend.table) / 0.1 == pytest.approx(numerical / 4.0, abs=1e-8)
    assert stats.grad_norm == pytest.approx(np.linalg.norm(numerical / 4.0), rel=1e-6)


def test_gradients_of_several_backward_calls_add_up():
    whole, pieces = opened(), opened()
    whole.backward(PART, QuadraticLoss())
    for micro in PART.micro_batches:
        pieces.backward(Part((micro,)), QuadraticLoss())
    whole.step(3.0)
    pieces.step(3.0)
    assert pieces.table == pytest.approx(whole.table, abs=1e-15)
    before = whole.table.copy()
    whole.step(1.0)  # the gradient is gone after a step
    assert (whole.table == before).all()


def test_the_clip_bounds_the_norm_after_the_divisor():
    backend = opened(clip=0.25)
    backend.backward(PART, QuadraticLoss())
    stats = backend.step(2.0)
    assert stats.grad_norm > 0.25
    assert np.linalg.norm(TABLE - backend.table) == pytest.approx(0.1 * 0.25)


def test_scores_are_log_softmax_by_uid():
    scores = opened(temperature=0.5).score(PART, frozenset({"log_probs", "entropy"}))
    assert set(scores) == {(1, 0), (2, 0), (3, 0)}
    logits = TABLE / 0.5
    right = torch.log_softmax(torch.from_numpy(logits), 1).numpy()
    assert scores[(1, 0)]["log_probs"] == pytest.approx(np.float32([right[0, 1], right[1, 2], right[2, 3]]), rel=1e-6)
    entropy = -(np.exp(right) * right).sum(1)
    assert scores[(2, 0)]["entropy"] == pytest.approx(np.float32([entropy[4], entropy[4]]), rel=1e-6)


def test_kept_weights_score_and_are_not_moved_by_training():
    backend = opened()
    backend.keep("ref")
    before = backend.score(PART, frozenset({"log_probs"}))
    backend.backward(PART, QuadraticLoss())
    backend.step(1.0)
    kept = backend.score(PART, frozenset({"log_probs"}), "ref")
    assert all((kept[uid]["log_probs"] == before[uid]["log_probs"]).all() for uid in before)
    with pytest.raises(InternalError, match=r"no weights are kept as 'old'; known are \['actor', 'ref'\]"):
        backend.score(PART, frozenset({"log_probs"}), "old")


def test_the_product_loss_moves_the_table_by_the_policy_gradient():
    # one token 0 -> 2 with advantage 2 and weight 1, on-policy: d loss / d logits = -2 (onehot - p)
    start = log_prob_table(TABLE)[0, 2]
    columns = {"rollout_logprobs": start, "advantages": 2.0}
    one = TrainSequence(
        1,
        0,
        np.asarray([0, 2]),
        1,
        np.ones(1, np.uint8),
        {"loss_weight": np.ones(1, np.float32), **{n: np.full(1, v, np.float32) for n, v in columns.items()}},
    )
    backend = opened()
    backend.backward(Part(((one,),)), build_loss(AlgorithmOptions()))
    backend.step(1.0)
    p = np.exp(TABLE[0]) / np.exp(TABLE[0]).sum()
    right = TABLE.copy()
    right[0] += 0.1 * 2.0 * (np.eye(5)[2] - p)
    assert backend.table == pytest.approx(right, abs=1e-7)  # advantages travel as float32


def test_a_step_without_a_divisor_and_a_loss_that_is_not_finite_diverge():
    backend = opened()
    with pytest.raises(Divergence, match="divisor 0"):
        backend.step(0.0)
    broken = Part(((sequence(1, [0, 1]),),))
    broken.micro_batches[0][0].columns["loss_weight"][:] = np.nan
    with pytest.raises(Divergence, match="loss term square is not finite"):
        backend.backward(broken, QuadraticLoss())
    assert (backend.table == TABLE).all()


def test_a_checkpoint_holds_table_and_steps(tmp_path: Path):
    backend = opened()
    backend.backward(PART, QuadraticLoss())
    backend.step(1.0)
    backend.save(tmp_path / "model")
    again = opened(np.zeros((5, 5)))
    again.load(tmp_path / "model")
    assert (again.table == backend.table).all()
    assert again.num_steps == 1


def test_a_forward_rank_does_not_train():
    backend = TinyTrain(TABLE)
    backend.open(ModelSpec(Path("unused"), trainable=False), OptimizerSpec(lr=0.1))
    with pytest.raises(InternalError, match="opened without an optimizer"):
        backend.backward(PART, QuadraticLoss())


def test_published_versions_are_checked_and_the_newest_two_stay():
    store = WeightStore()
    publisher, backend = MemoryPublisher(store), opened(store=store)
    manifests = [publisher.publish(version, backend.weights()) for version in range(3)]
    manifest, tensors = store.read(Path(manifests[2].folder))
    assert (tensors[WEIGHT_NAME] == TABLE).all()
    assert (manifest.num_bytes, manifest.version) == (5 * 5 * 8, 2)
    with pytest.raises(WeightSyncError):
        store.read(Path(manifests[0].folder))
    store._versions[manifests[2].folder][1][WEIGHT_NAME][0, 0] += 1
    with pytest.raises(WeightSyncError, match=r"checksum of 'bigram\.weight' differs"):
        store.read(Path(manifests[2].folder))


def test_weights_that_are_not_finite_are_never_published():
    with pytest.raises(Divergence, match="version 1 are not finite"):
        MemoryPublisher(WeightStore()).publish(1, [(WEIGHT_NAME, torch.tensor([[float("nan")]]))])


def test_a_draw_is_the_inverse_of_the_cumulated_probability():
    row = np.log([0.2, 0.5, 0.3])
    assert [draw(row, u) for u in (0.0, 0.1999, 0.2001, 0.6999, 0.7001, 0.9999999999999999)] == [0, 0, 1, 1, 2, 2]
