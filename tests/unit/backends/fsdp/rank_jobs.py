# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What each of the two gloo processes of `test_two_ranks` runs: `python -m ... MODELS OUT`."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import torch

from relax.algorithms.value_loss import CriticLoss
from relax.backends.base import ModelSpec, OptimizerSpec, Part
from relax.backends.fsdp.backend import FsdpBackend
from relax.backends.fsdp.distributed import Ranks, init_distributed
from relax.distributed.checkpoint_service.publishers import SharedMemoryPublisher
from relax.utils.errors import Divergence
from tests.unit.backends.fsdp.streamed_rollouts import train_rollouts
from tests.unit.backends.training_cases import ClippedPolicyLoss, audio, gradients, groups, image

DIVISOR = 37.0
NUM_STEPS = 3
OPTIMIZER = OptimizerSpec(lr=2e-3, warmup_steps=2, weight_decay=0.1)
STREAMED_PARTS = {"whole": 6, "streamed": 1}  # groups of a part
KINDS = ("qwen3_omni", "qwen3_moe")


def sequences_of(kind: str, step: int) -> list:
    """Twelve sequences; in the omni case group 0 has an image, group 3 a clip, and step 1 is text only."""
    media = {0: (image(1),), 3: (audio(2),)} if kind == "qwen3_omni" and step != 1 else {}
    return groups(media, seed=step)


def parts(kind: str, step: int) -> list[Part]:
    """Rank 0 and rank 1: uneven, and rank 1 is empty in the last micro-batch. Images are on rank 0, audio on 1."""
    rows = sequences_of(kind, step)
    first = Part((tuple(rows[:3]), tuple(rows[3:5]), tuple(rows[5:7])))
    second = Part((tuple(rows[7:11]), tuple(rows[11:]), ()))
    return [first, second]


def train(backend: FsdpBackend, kind: str, rank: int | None) -> list[dict]:
    """Steps with every gradient. `rank` None: one process does both ranks' work."""
    found = []
    for step in range(NUM_STEPS):
        both = parts(kind, step)
        mine = Part(both[0].micro_batches + both[1].micro_batches) if rank is None else both[rank]
        stats = backend.backward(mine, ClippedPolicyLoss())
        grads = gradients(backend)
        stepped = backend.step(DIVISOR)
        found.append({"sums": stats.sums, "counts": stats.counts, "grads": grads, "norm": stepped.grad_norm})
    return found


def train_critic(backend: FsdpBackend, rank: int | None) -> list[dict]:
    """Two steps of the value loss. The head starts at zero, so the first trains the head alone."""
    found = []
    for step in range(2):
        both = parts("qwen3_moe", step)
        for part in both:
            for sequence in (s for micro in part.micro_batches for s in micro):
                generator = np.random.default_rng([step, *sequence.uid])
                own = {name: generator.normal(size=sequence.response_len) for name in ("values", "returns")}
                own["loss_weight"] = generator.uniform(size=sequence.response_len)
                sequence.columns |= {name: column.astype(np.float32) for name, column in own.items()}
        mine = Part(both[0].micro_batches + both[1].micro_batches) if rank is None else both[rank]
        stats = backend.backward(mine, CriticLoss(0.5))
        grads = gradients(backend)
        stepped = backend.step(DIVISOR)
        found.append({"sums": stats.sums, "counts": stats.counts, "grads": grads, "norm": stepped.grad_norm})
    return found


def _diverge(backend: FsdpBackend, rank: int) -> str:
    rows = groups(seed=9)
    if rank == 1:
        rows[0].columns["advantages"][:] = float("nan")
    try:
        backend.backward(Part((tuple(rows[:2]),)), ClippedPolicyLoss())
    except Divergence as error:
        return str(error)
    return "no error"


def _publish_and_take(backend: FsdpBackend, models: Path, out: Path, ranks: Ranks) -> dict:
    """The weights of a forward-only copy that took the version that rank 0 has published."""
    if ranks.is_main:
        SharedMemoryPublisher(out / "published").publish(1, backend.weights())
    else:
        list(backend.weights())
    ranks.barrier()
    copy = FsdpBackend(ranks)
    copy.open(ModelSpec(models / "qwen3_moe-0", trainable=False), None)
    copy.load_weights(out / "published" / "v1")
    return {n: t.clone() for n, t in copy.weights()}


def main(models: Path, out: Path, ranks: Ranks) -> None:
    result: dict = {}
    for kind in KINDS:
        backend = FsdpBackend(ranks)
        info = backend.open(ModelSpec(models / f"{kind}-0", suppressed_ids=(6, 7, 10)), OPTIMIZER)
        backend.keep("ref")
        result[kind] = {"info": info, "steps": train(backend, kind, ranks.rank)}
        part = parts(kind, 0)[ranks.rank]
        result[kind]["ref"] = backend.score(part, frozenset({"log_probs"}), "ref")
        result[kind]["actor"] = backend.score(part, frozenset({"log_probs"}))
        result[kind]["weights"] = {n: t.clone() for n, t in backend.weights()}
        backend.save(out / f"{kind}-checkpoint")
        backend.export_hf(out / f"{kind}-export")
        if kind == "qwen3_moe":
            result["taken"] = _publish_and_take(backend, models, out, ranks)
            result["divergence"] = _diverge(backend, ranks.rank)
    resumed = FsdpBackend(ranks)
    resumed.open(ModelSpec(models / "qwen3_moe-0", suppressed_ids=(6, 7, 10)), OPTIMIZER)
    resumed.load(out / "one-process")
    result["resumed"] = {"first": resumed.num_steps, "steps": train(resumed, "qwen3_moe", ranks.rank)}
    for name, part_size in STREAMED_PARTS.items():
        backend = FsdpBackend(ranks)
        backend.open(ModelSpec(models / "qwen3_moe-0"), OPTIMIZER)
        result[name] = train_rollouts(backend, ranks.rank, 2, part_size)
    critic = FsdpBackend(ranks, value_head=True)
    critic.open(ModelSpec(models / "qwen3_moe-0"), OPTIMIZER)
    result["critic"] = train_critic(critic, ranks.rank)
    half = FsdpBackend(ranks)
    half.open(ModelSpec(models / "qwen3_moe-0", dtype="bf16"), OPTIMIZER)
    result["bf16"] = train(half, "qwen3_moe", ranks.rank)
    torch.save(result, out / f"rank{ranks.rank}.pt")
    ranks.barrier()
    ranks.close()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Path(sys.argv[2]), init_distributed(device="cpu", timeout_s=120))
