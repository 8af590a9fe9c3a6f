# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Hybrid, streamed and partial rollouts with real processes: Ray workers, an engine over HTTP, weights in /dev/shm."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from relax.backends.base import ModelSpec, Part
from relax.backends.fsdp.backend import FsdpBackend
from relax.data.columns import TrainSequence
from relax.distributed.trace import TraceEntry, read_block
from tests.service.training_run import Finished, checkpoint_weights, command, inline

pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]

BUDGET = 120  # sampled tokens of a response; few end earlier
SLOW_DECODING = json.dumps({"rules": [{"point": "decode_step", "hold_s": 0.02}]})  # 2.4 s a response: updates cut it
KL = ("--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "k3", "--use-dynamic-batch-size")
SIZES = {"rollout_batch_size": 4, "max_tokens_per_gpu": 64}
STREAMED = ("--num-iters-per-train-update", "2")


@dataclass(frozen=True)
class Response:
    """A trained sample as the trace has it."""

    group: int
    index: int
    tokens: np.ndarray
    prompt_len: int
    log_probs: np.ndarray
    versions: np.ndarray

    @property
    def continued(self) -> bool:
        return len(set(self.versions.tolist())) > 1


def responses(done: Finished) -> list[Response]:
    """Of all trained groups."""
    trained = {group for event in done.events("bound") for group in event["groups"]}
    found = []
    for event in done.events("completed", writer="rollout"):
        if event["group"] not in trained:
            continue
        place = {name: event[name] for name in ("file", "offset", "length", "digest")}
        columns = read_block(done.folder / "trace", TraceEntry(**place)).columns
        ends, start = np.cumsum(columns["response_len"]), columns["token_offsets"]
        for i, end in enumerate(ends.tolist()):
            own = slice(end - int(columns["response_len"][i]), end)
            found.append(
                Response(
                    event["group"],
                    int(columns["index"][i]),
                    columns["tokens"][start[i] : start[i + 1]],
                    int(columns["prompt_len"][i]),
                    columns["rollout_logprobs"][own],
                    columns["weight_version"][own],
                )
            )
    return found


def scores(model: Path, asked: list[Response]) -> list[np.ndarray]:
    """Log-probs of whole responses under one model."""
    backend = FsdpBackend()
    backend.open(ModelSpec(model), None)
    sequences = [
        TrainSequence(r.group, r.index, r.tokens, r.prompt_len, np.ones(len(r.versions), np.uint8), {}, ())
        for r in asked
    ]
    found = backend.score(Part(tuple((s,) for s in sequences)), frozenset({"log_probs"}))
    backend.close()
    return [found[s.uid]["log_probs"] for s in sequences]


@pytest.fixture(scope="module")
def interrupted(inputs, tmp_path_factory) -> Finished:
    """Three rollouts of two groups, each trained in two parts, one ahead of the weights."""
    folder = tmp_path_factory.mktemp("interrupted")
    flags = inputs.flags(
        folder / "run",
        num_rollout=3,
        rollout_max_response_len=BUDGET,
        save_interval=1,
        save_hf=folder / "hf-{rollout_id}",
    )
    words = ["--hybrid", "--max-staleness", 1, "--use-rollout-logprobs", "--partial-rollout", *STREAMED]
    return command([*flags, *words], env={"RELAX_FAULTS": SLOW_DECODING}).ok()


def test_an_interrupted_response_goes_on_under_new_weights_with_what_it_had(interrupted, inputs):
    """Each token has the very log-prob that a forward under its own version gives, and no other version does."""
    continued = [r for r in responses(interrupted) if r.continued]
    assert continued
    newest = max(int(r.versions.max()) for r in continued)
    hf = interrupted.folder.parent
    by_version = [scores(inputs.model, continued)]
    by_version += [scores(hf / f"hf-{version - 1}", continued) for version in range(1, newest + 1)]
    for place, response in enumerate(continued):
        assert (np.diff(response.versions) >= 0).all()  # older spans first: nothing was sampled again
        own = np.choose(response.versions, [found[place] for found in by_version])
        assert (own == response.log_probs).all()
        others = [found[place] for found in by_version]
        for version in set(response.versions.tolist()):
            span = response.versions == version
            for other in set(range(newest + 1)) - {version}:
                assert (others[other][span] != response.log_probs[span]).any(), (version, other)


def test_the_token_budget_of_an_interrupted_response_does_not_restart(interrupted):
    found = responses(interrupted)
    assert len(found) == 12
    assert max(len(r.versions) for r in found) == BUDGET
    assert any(len(r.versions) == BUDGET and r.continued for r in found)  # a restart would have made it longer
    rows = [row for rollout_id in range(3) for row in interrupted.samples(rollout_id)]
    assert {row["sampled_tokens"] for row in rows if row["finish_reason"] == "length"} == {BUDGET}
    attempts = {(row["group"], row["index"]): row["attempt"] for row in rows}
    assert all(attempts[r.group, r.index] >= 1 for r in found if r.continued)


def test_a_continued_response_is_as_old_as_its_oldest_token(interrupted):
    oldest = {event["group"]: event["oldest"] for event in interrupted.events("accepted")}
    for response in responses(interrupted):
        assert oldest[response.group] <= response.versions.min()
    assert max(interrupted.ages()) == 1


def test_a_hybrid_run_is_trained_in_parts(interrupted):
    bound = [(event["rollout_id"], len(event["groups"]), event["last"]) for event in interrupted.events("bound")]
    assert bound == [(rollout_id, 1, last) for rollout_id in range(3) for last in (False, True)]
    assert interrupted.events("run_started")[0]["mode"] == "hybrid"
    assert interrupted.metrics("train/optimizer_steps") == [1.0, 2.0, 3.0]


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory) -> Finished:
    """Two rollouts that take turns with training, in this process."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return inline([*inputs.flags(folder, **SIZES), "--colocate", *KL]).ok()


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), STREAMED], ids=["hybrid", "streamed"])
def test_a_hybrid_run_on_ray_gives_the_weights_of_whole_rollouts_in_one_process(words, whole, inputs, tmp_path):
    import torch

    expected = checkpoint_weights(whole.folder / "iter_0000001/model")
    done = command([*inputs.flags(tmp_path / "run", **SIZES), "--hybrid", *KL, *words]).ok()
    assert done.ages() == [0] * 8
    assert len(done.events("bound")) == (4 if words else 2)
    for name, tensor in checkpoint_weights(done.folder / "iter_0000001/model").items():
        assert torch.equal(tensor, expected[name]), name
