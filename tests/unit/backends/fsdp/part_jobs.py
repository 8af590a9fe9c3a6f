# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What each of the two gloo processes of `test_parts_on_two_ranks` runs: `python -m ... MODELS OUT`."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from relax.algorithms.supervised import SupervisedOptions, build_supervised_loss
from relax.algorithms.supervised.causal_lm import SftLoss
from relax.algorithms.supervised.mtp import WithMtp
from relax.algorithms.supervised.sequences import class_sequence, supervised_reduction
from relax.backends.additions import ClassHead, LoraSpec, MtpSpec
from relax.backends.base import LossFunction, ModelSpec, OptimizerSpec, Part
from relax.backends.fsdp.backend import FsdpBackend
from relax.backends.fsdp.distributed import Ranks, init_distributed
from relax.components.adapter_versions import AdapterVersions
from relax.data.columns import TrainSequence
from relax.distributed.checkpoint_service.publishers import SharedMemoryPublisher
from tests.unit.backends.fsdp.mtp_models import with_mtp
from tests.unit.backends.training_cases import folder_of, gradients, groups

OPTIMIZER = OptimizerSpec(lr=2e-3)
CLASSES = SupervisedOptions(task_type="seq_cls", num_labels=3, problem_type="multi_label_classification")
HEAD = ClassHead(3, CLASSES.problem_type, 1)
LORA = LoraSpec(4, 16.0, ("linear_qkv", "linear_proj", "linear_fc1"), seed=2)
CASES: dict[str, tuple[str, dict]] = {
    "lora": ("qwen3-0", {"lora": LORA}),
    "lora_bf16": ("qwen3-0", {"lora": LORA, "dtype": "bf16"}),
    "lora_moe": ("qwen3_moe-0", {"lora": LoraSpec(4, 16.0, seed=2)}),
    "mtp": ("qwen3-mtp1", {"mtp": MtpSpec(1, ())}),
    "mtp_only": ("qwen3-mtp1", {"mtp": MtpSpec(1, only=True)}),
    "classes": ("qwen3-0", {"head": HEAD}),
    "classes_lora": ("qwen3-0", {"head": HEAD, "lora": LORA}),
}


def make_models(models: Path) -> None:
    for kind in ("qwen3", "qwen3_moe"):
        folder_of(models, kind)
    with_mtp(models)


def loss_of(case: str) -> LossFunction:
    if case.startswith("classes"):
        return build_supervised_loss(CLASSES)
    return WithMtp(SftLoss(), 0.2, only=case == "mtp_only") if case.startswith("mtp") else SftLoss()


def rows(case: str, step: int) -> list[TrainSequence]:
    """Twelve sequences."""
    if case.startswith("classes"):
        generator = np.random.default_rng(step)
        found = [
            class_sequence(n, generator.integers(12, 250, 3 + n).tolist(), [n % 3] if n % 4 else [], CLASSES)
            for n in range(12)
        ]
        weights = supervised_reduction(found, CLASSES).weights
    else:
        found = groups(seed=step)
        weights = [s.loss_mask.astype(np.float32) for s in found]
    for sequence, weight in zip(found, weights, strict=True):
        sequence.columns["loss_weight"] = weight
    return found


def parts(case: str, step: int) -> list[Part]:
    """Rank 0 and rank 1: uneven, and rank 1 is empty in the last micro-batch."""
    found = rows(case, step)
    return [
        Part((tuple(found[:3]), tuple(found[3:5]), tuple(found[5:7]))),
        Part((tuple(found[7:11]), tuple(found[11:]), ())),
    ]


def train(case: str, models: Path, out: Path, ranks: Ranks | None = None) -> dict:
    """Two steps with every gradient, then the weights, and those of a copy that resumed."""
    model, spec = CASES[case]
    backend = FsdpBackend(ranks)
    backend.open(ModelSpec(models / model, **spec), OPTIMIZER)
    steps = []
    for step in range(2):
        both = parts(case, step)
        mine = both[ranks.rank] if ranks else Part(both[0].micro_batches + both[1].micro_batches)
        stats = backend.backward(mine, loss_of(case))
        grads = gradients(backend)
        stepped = backend.step(20.0)
        steps.append({"sums": stats.sums, "counts": stats.counts, "grads": grads, "norm": stepped.grad_norm})
    folder = out / case
    backend.save(folder / "model")
    resumed = FsdpBackend(ranks)
    resumed.open(ModelSpec(models / model, **spec), OPTIMIZER)
    resumed.load(folder / "model")
    weights = {name: tensor.clone() for name, tensor in backend._tensors()}
    again = {name: tensor.clone() for name, tensor in resumed._tensors()}
    taken = _publish_and_take(backend, folder, ranks) if case.startswith("lora") else {}
    return {"steps": steps, "weights": weights, "resumed": again, "folder": folder, "taken": taken}


def _publish_and_take(backend: FsdpBackend, folder: Path, ranks: Ranks | None) -> dict:
    """The merged weights of a forward-only copy that took the adapter which rank 0 has published by itself."""
    main = ranks is None or ranks.is_main
    publisher = SharedMemoryPublisher(folder / "published") if main else None
    AdapterVersions(backend.spec, publisher).publish(backend, 1)
    backend.ranks.barrier()
    copy = FsdpBackend(ranks)
    copy.open(replace(backend.spec, trainable=False), None)
    copy.load_weights(folder / "published" / "v1")
    return {name: tensor.clone() for name, tensor in copy.weights()}


def main(models: Path, out: Path, ranks: Ranks) -> None:
    result = {case: train(case, models, out, ranks) for case in CASES}
    torch.save(result, out / f"parts{ranks.rank}.pt")
    ranks.barrier()
    ranks.close()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Path(sys.argv[2]), init_distributed(device="cpu", timeout_s=120))
