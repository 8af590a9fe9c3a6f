# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One training rank: which columns reach the loss, which divisor each step gets, what is reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relax.backends.base import ModelSpec, OptimizerSpec, Term, TokenBatch
from relax.backends.tiny.train import TinyTrain
from relax.backends.tiny.weights import MemoryPublisher, WeightStore
from relax.components.actor import Actor
from relax.components.messages import PRODUCERS, ReleasedGroup, Settled, TrainTask
from relax.components.trained import prompt_hash, read_trained
from relax.components.training_data import BatchSettings
from relax.data.columns import group_columns
from relax.distributed.bus.base import Block
from relax.distributed.bus.local import LocalBus
from relax.engine.parity.gate import ParityGate, ParitySettings
from relax.schedule.clock import RealClock
from relax.utils.errors import ConfigError, InternalError
from relax.utils.types import Sample

TABLE = np.random.default_rng(1).normal(size=(6, 6))


class SumLoss:
    """objective = sum of the log-probs; remembers what it was given."""

    needs = frozenset({"log_probs"})
    objective = ("total",)

    def __init__(self) -> None:
        self.seen: list[TokenBatch] = []

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        self.seen.append(batch)
        return {
            "total": Term(batch.log_probs.sum(), len(batch.log_probs)),
            "weight": Term(batch.columns["loss_weight"].sum(), len(batch.log_probs)),
        }


def log_prob(table: np.ndarray, last: int, token: int) -> float:
    return float(table[last, token] - np.log(np.exp(table[last]).sum()))


async def test_a_settled_actor_says_what_its_weights_contain(tmp_path: Path):
    actor, _, groups, _ = await actor_with({2: [3], 5: [4]})
    assert await actor.settle() == Settled(0, 0, asleep=False)
    await actor.train(task(groups, (1.0, 1.0)))
    assert await actor.settle() == Settled(1, 2, asleep=False)
    actor._backend.step(1.0)  # as if it had been stopped after the first of two optimizer steps
    assert await actor.settle() == Settled(None, 3, asleep=False)
    await actor.offload()
    assert (await actor.settle()).asleep


async def test_a_checkpoint_holds_what_was_trained_and_a_load_goes_on_from_there(tmp_path: Path):
    actor, _, groups, _ = await actor_with({2: [3], 5: [4]})
    await actor.train(task(groups, (1.0, 1.0)))
    await actor.save(str(tmp_path))
    rows = read_trained(tmp_path)
    assert rows["group"].tolist() == [2, 5]
    assert rows["samples"].tolist() == [1, 1]
    assert rows["prompt"].tolist() == [prompt_hash(np.array([0, 1]))] * 2
    other, _, groups, _ = await actor_with({7: [3], 9: [4]})
    await other.load(str(tmp_path), 1)
    assert await other.settle() == Settled(1, 2, asleep=False)
    await other.train(task(groups, (1.0, 1.0)))
    await other.save(str(tmp_path))
    assert read_trained(tmp_path)["group"].tolist() == [2, 5, 7, 9]


async def test_a_refreshed_reference_is_saved_and_loaded_with_the_actor(tmp_path: Path):
    actor, _, groups, _ = await actor_with({2: [3]}, keep_reference=True)
    await actor.train(task(groups, (1.0,)))
    await actor.refresh_reference()
    reference = actor._backend.table.copy()
    await actor.train(task(groups, (1.0,)))
    assert (actor._backend.table != reference).any()
    await actor.save(str(tmp_path / "model"), str(tmp_path / "reference"))
    other, _, _, _ = await actor_with({2: [3]}, keep_reference=True)
    await other.load(str(tmp_path / "model"), 2, str(tmp_path / "reference"))
    assert (other._backend._kept["ref"] == reference).all()
    assert (other._backend.table == actor._backend.table).all()
    assert other._backend.num_steps == 2


async def actor_with(groups: dict[int, list[int]], *, engine_log_prob: float = -1.0, **options):
    """Groups {id: response} of one sample; the prompt is [0, 1], so the first transition is 1 -> response[0]."""
    bus, released = LocalBus(PRODUCERS), []
    for number, response in groups.items():
        sample = Sample(
            group_index=number,
            index=0,
            tokens=[0, 1, *response],
            response_length=len(response),
            loss_mask=[1] * len(response),
            rollout_log_probs=[engine_log_prob] * len(response),
            weight_versions=[0] * len(response),
            status=Sample.Status.COMPLETED,
        )
        block = Block(number, group_columns([sample], [0.0], [0.0]))
        ones = np.ones(len(response), np.float32)
        await bus.put("train_0", "rollout", [block])
        await bus.put(
            "train_0", "advantages", [Block(number, {"advantages": number * ones, "loss_weight": 0.5 * ones})]
        )
        released.append(ReleasedGroup(number, (2 + len(response),), block.digest, False))
    loss, store = SumLoss(), WeightStore()
    actor = Actor(
        backend=TinyTrain(TABLE, store=store),
        loss=loss,
        model=ModelSpec(Path("unused")),
        optimizer=OptimizerSpec(lr=0.1, clip_grad=0.0),
        settings=BatchSettings(1, 1, None, 1),
        bus=bus,
        publisher=MemoryPublisher(store),
        clock=RealClock(),
        deadline_s=1.0,
        **options,
    )
    await actor.start()
    return actor, loss, tuple(released), store


def task(groups, divisors, **options) -> TrainTask:
    return TrainTask(0, groups, ("advantages",), divisors, **options)


async def test_each_step_is_divided_by_its_own_divisor():
    actor, _, groups, _ = await actor_with({2: [3], 5: [4]})
    report = await actor.train(task(groups, (2.0, 8.0)))
    # step 1: gradient of log p(3 | 1) is onehot(3) - p(1) on row 1, divided by 2, lr 0.1
    right = TABLE.copy()
    for token, divisor in ((3, 2.0), (4, 8.0)):
        p = np.exp(right[1]) / np.exp(right[1]).sum()
        right[1] -= 0.1 / divisor * (np.eye(6)[token] - p)
    assert actor._backend.table == pytest.approx(right, abs=1e-12)
    assert report.num_steps == 2
    assert report.gauges["lr"] == 0.1
    assert actor.step == 1


async def test_sums_and_counts_of_all_steps_are_reported_undivided():
    actor, _, groups, _ = await actor_with({2: [3], 5: [4, 0, 2]})
    report = await actor.train(task(groups, (1.0, 1.0)))
    assert report.metrics["weight"] == (2.0, 4.0)  # 0.5 a token, 1 + 3 tokens
    assert report.metrics["total"][1] == 4.0
    assert "data_wait" in report.seconds


async def test_reference_and_old_columns_are_scored_under_their_own_weights():
    actor, loss, groups, _ = await actor_with({2: [3, 4], 5: [5]}, keep_reference=True)
    await actor.train(task(groups, (1.0, 1.0), score_reference=True, score_old=True))
    moved = actor._backend.table.copy()
    assert not np.allclose(moved, TABLE)
    first, second = loss.seen[:2]
    assert first.columns["ref_logprobs"].tolist() == pytest.approx([log_prob(TABLE, 1, 3), log_prob(TABLE, 3, 4)])
    # old: before the first step of the rollout, also for the second step
    assert second.columns["old_logprobs"].tolist() == pytest.approx([log_prob(TABLE, 1, 5)])
    assert first.columns["advantages"].tolist() == [2.0, 2.0]
    assert second.columns["advantages"].tolist() == [5.0]
    await actor.train(task(groups, (1.0, 1.0), score_reference=True, score_old=True))
    third = loss.seen[2]
    assert third.columns["ref_logprobs"].tolist() == first.columns["ref_logprobs"].tolist()
    assert third.columns["old_logprobs"].tolist() == pytest.approx([log_prob(moved, 1, 3), log_prob(moved, 3, 4)])


async def test_the_reference_may_be_renewed():
    actor, loss, groups, _ = await actor_with({2: [3]}, keep_reference=True)
    await actor.train(task(groups, (1.0,), score_reference=True))
    moved = actor._backend.table.copy()
    await actor.refresh_reference()
    await actor.train(task(groups, (1.0,), score_reference=True))
    assert loss.seen[1].columns["ref_logprobs"].tolist() == pytest.approx([log_prob(moved, 1, 3)])


async def test_the_difference_to_the_engine_is_measured_before_the_first_step():
    gate = ParityGate(ParitySettings(limit=100.0))
    actor, _, groups, _ = await actor_with({2: [3, 4]}, engine_log_prob=-1.0, parity=gate)
    report = await actor.train(task(groups, (1.0,)))
    gaps = [abs(log_prob(TABLE, 1, 3) + 1.0), abs(log_prob(TABLE, 3, 4) + 1.0)]
    found = report.engine_difference
    assert found.max == pytest.approx(max(gaps), rel=1e-6)
    assert found.mean == pytest.approx(sum(gaps) / 2, rel=1e-6)
    assert found.count == 2
    again = await actor.train(task(groups, (1.0,)))
    assert again.engine_difference is None  # without an interval it is measured once


async def test_P2_log_probs_of_another_kind_end_the_run_before_the_first_update():
    # the engine says -1.0 for every token; the table's own values differ by the gaps below
    gaps = [abs(log_prob(TABLE, 1, 3) + 1.0), abs(log_prob(TABLE, 3, 4) + 1.0)]
    mean = sum(gaps) / 2
    strict = ParityGate(ParitySettings(limit=0.9 * mean))
    actor, _, groups, _ = await actor_with({2: [3, 4]}, engine_log_prob=-1.0, parity=strict)
    with pytest.raises(ConfigError, match=rf"{mean:.3g} nats on average and {max(gaps):.3g} at most over 2 tokens"):
        await actor.train(task(groups, (1.0,)))
    lenient = ParityGate(ParitySettings(limit=1.1 * mean))
    allowed, _, groups, _ = await actor_with({2: [3, 4]}, engine_log_prob=-1.0, parity=lenient)
    await allowed.train(task(groups, (1.0,)))


async def test_a_published_version_holds_the_weights_of_now():
    actor, _, groups, store = await actor_with({2: [3]})
    await actor.train(task(groups, (1.0,)))
    manifest = await actor.publish(1)
    _, tensors = store.read(Path(manifest.folder))
    assert manifest.version == 1
    assert (tensors["bigram.weight"] == actor._backend.table).all()


async def test_a_sleeping_actor_refuses_to_train_and_to_save(tmp_path: Path):
    actor, _, groups, _ = await actor_with({2: [3]})
    await actor.offload()
    with pytest.raises(InternalError, match="asleep"):
        await actor.train(task(groups, (1.0,)))
    with pytest.raises(InternalError, match="asleep"):
        await actor.save(str(tmp_path))
    await actor.onload()
    await actor.save(str(tmp_path))
    table = actor._backend.table.copy()
    await actor.train(task(groups, (1.0,)))
    await actor.load(str(tmp_path), 0)
    assert (actor._backend.table == table).all()


# ------------------------------------------------------------------ parts


STREAMED = {2: [3, 4], 3: [5], 7: [0, 1, 2], 8: [4, 4]}
BOTH = {"score_reference": True, "score_old": True}


async def streamed_actor(settings: BatchSettings):
    actor, loss, groups, _ = await actor_with(STREAMED, keep_reference=True)
    actor._settings = settings
    return actor, loss, groups


def columns_by_batch(loss: SumLoss) -> list[dict[str, list[float]]]:
    return [{name: values.tolist() for name, values in batch.columns.items()} for batch in loss.seen]


@pytest.mark.parametrize("max_tokens", [None, 8])
async def test_parts_give_the_weights_of_the_whole_rollout_bit_for_bit_over_two_steps(max_tokens):
    settings = BatchSettings(1, 2, max_tokens, 1)
    whole, seen, groups = await streamed_actor(settings)
    report = await whole.train(task(groups, (3.0, 5.0), **BOTH))
    parts, seen_parts, groups = await streamed_actor(settings)
    reports = [
        await parts.train(task((group,), (share,), first=place == 0, last=place == 3, **BOTH))
        for place, (group, share) in enumerate(zip(groups, (1.0, 2.0, 4.0, 1.0), strict=True))
    ]
    assert parts._backend.table.tobytes() == whole._backend.table.tobytes()
    # micro-batches, and in each of them reference and old log-probs, are those of the whole
    assert columns_by_batch(seen_parts) == columns_by_batch(seen)
    assert [r.num_steps for r in reports] == [0, 1, 0, 1]
    assert [step for r in reports for step in r.steps] == list(report.steps)
    assert (parts.step, whole.step) == (1, 1)


async def test_a_part_that_fills_no_micro_batch_waits_for_the_next_one():
    actor, loss, groups = await streamed_actor(BatchSettings(1, 4, 1000))
    for place, group in enumerate(groups):
        assert len(loss.seen) == 0
        await actor.train(task((group,), (1.0,), first=place == 0, last=place == 3))
    assert len(loss.seen) == 1


async def test_old_log_probs_of_a_later_part_are_of_the_weights_before_the_first_step():
    actor, loss, groups = await streamed_actor(BatchSettings(1, 2, None, 1))
    await actor.train(task(groups[:2], (2.0,), last=False, **BOTH))
    assert not np.allclose(actor._backend.table, TABLE)
    await actor.train(task(groups[2:], (2.0,), first=False, **BOTH))
    right = [log_prob(TABLE, 1, 0), log_prob(TABLE, 0, 1), log_prob(TABLE, 1, 2)]
    assert loss.seen[2].columns["old_logprobs"].tolist() == pytest.approx(right)


async def test_a_part_without_its_first_one_is_refused():
    actor, _, groups = await streamed_actor(BatchSettings(1, 4, None, 1))
    with pytest.raises(InternalError, match="a part of rollout 0 came without its first one"):
        await actor.train(task(groups[1:], (2.0,), first=False))
