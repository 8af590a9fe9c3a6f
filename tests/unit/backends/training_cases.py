# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Sequences, media and losses for the tests of the exact forward and of the train backends."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from relax.backends.base import ModelSpec, OptimizerSpec, Part, Term, TokenBatch
from relax.backends.fsdp.backend import FsdpBackend
from relax.data.columns import TrainSequence
from relax.utils.types import MediaFeatures
from tests.builders import build_tiny_model_folder, tiny_tokenizer

FIRST_TEXT_ID = 12  # ids below are special tokens
LAST_TEXT_ID = 250


class ClippedPolicyLoss:
    """PPO's clipped surrogate on plain tensors, with an entropy metric."""

    needs = frozenset({"log_probs", "entropy"})
    objective = ("policy",)

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        ratio = (batch.log_probs - batch.columns["old_logprobs"]).exp()
        advantage = batch.columns["advantages"]
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        count = float(batch.mask.sum())
        return {
            "policy": Term(-(surrogate * batch.mask).sum(), count),
            "entropy": Term((batch.entropy * batch.mask).sum(), count),
        }


class LogProbLoss:
    """Minus the weighted log-probs: its gradient is easy to get from any other implementation."""

    needs = frozenset({"log_probs"})
    objective = ("nll",)

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        return {"nll": Term(-(batch.log_probs * batch.columns["advantages"]).sum(), float(len(batch.mask)))}


def image(seed: int, grid: tuple[int, int, int] = (1, 4, 4)) -> MediaFeatures:
    generator = np.random.default_rng(seed)
    pixels = generator.normal(size=(int(np.prod(grid)), 3 * 2 * 8 * 8)).astype(np.float32)
    tensors = {"pixel_values": pixels, "image_grid_thw": np.asarray(grid, np.int64)}
    return MediaFeatures("image", _digest("image", seed), tensors, int(np.prod(grid)) // 4)


def audio(seed: int, frames: int = 100) -> MediaFeatures:
    generator = np.random.default_rng(seed)
    tensors = {"input_features": generator.normal(size=(128, frames)).astype(np.float32)}
    tail = frames % 100
    return MediaFeatures("audio", _digest("audio", seed), tensors, frames // 100 * 13 + -(-tail // 8))


def _digest(kind: str, seed: int) -> str:
    return hashlib.sha256(f"{kind}{seed}".encode()).hexdigest()


def prompt_with(media: tuple[MediaFeatures, ...], generator: np.random.Generator) -> np.ndarray:
    """A few text tokens, then each item between its own start and end tokens, then text."""
    ids = tiny_tokenizer().convert_tokens_to_ids
    text = lambda: generator.integers(FIRST_TEXT_ID, LAST_TEXT_ID, generator.integers(2, 6)).tolist()  # noqa: E731
    tokens = text()
    for item in media:
        start, pad, end = {
            "image": ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
            "audio": ("<|audio_start|>", "<|audio_pad|>", "<|audio_end|>"),
        }[item.kind]
        tokens += [ids(start), *[ids(pad)] * item.num_tokens, ids(end), *text()]
    return np.asarray(tokens, np.int32)


def groups(
    media: Mapping[int, tuple[MediaFeatures, ...]] | None = None,
    *,
    num_groups: int = 4,
    size: int = 3,
    seed: int = 0,
    longest: int = 9,
) -> list[TrainSequence]:
    """`num_groups` x `size` sequences with random tokens, masks, advantages and old log-probs; some are one token."""
    generator = np.random.default_rng(seed)
    out = []
    for group in range(num_groups):
        items = (media or {}).get(group, ())
        prompt = prompt_with(items, generator)
        for index in range(size):
            length = int(generator.integers(1, longest + 1))
            response = generator.integers(FIRST_TEXT_ID, LAST_TEXT_ID, length)
            columns = {
                "advantages": generator.normal(size=length).astype(np.float32),
                "old_logprobs": (-5.5 + 0.3 * generator.normal(size=length)).astype(np.float32),
            }
            tokens = np.concatenate([prompt, response]).astype(np.int32)
            mask = (generator.random(length) < 0.8).astype(np.uint8)
            out.append(TrainSequence(group, index, tokens, len(prompt), mask, columns, tuple(items)))
    return out


def one_part(sequences: list[TrainSequence], *sizes: int) -> Part:
    """Micro-batches of the given sizes; the last takes the rest."""
    cuts, start = [], 0
    for size in (*sizes, len(sequences)):
        cuts.append(tuple(sequences[start : start + size]))
        start += size
    return Part(tuple(cuts))


def folder_of(base: Path, kind: str, seed: int = 0) -> Path:
    folder = base / f"{kind}-{seed}"
    return folder if folder.exists() else build_tiny_model_folder(folder, kind=kind, seed=seed)


def opened(folder: Path, *, optimizer: OptimizerSpec | None = None, dtype: str = "fp32", **options) -> FsdpBackend:
    """A backend of one process. `options` go to `FsdpBackend` or, by name, to `ModelSpec`."""
    spec_names = {"temperature", "suppressed_ids", "gradient_checkpointing", "logprob_chunk", "trainable"}
    spec = {k: options.pop(k) for k in spec_names & set(options)}
    backend = FsdpBackend(**options)
    backend.open(ModelSpec(folder, dtype=dtype, **spec), optimizer or OptimizerSpec(lr=1e-3))
    return backend


def gradients(backend: FsdpBackend) -> dict[str, torch.Tensor]:
    """Whole gradients so far, undivided, of every parameter that has one. Collective."""
    from torch.distributed.tensor import DTensor

    found = {}
    for shard in backend._shards:
        grad = shard.master.grad if shard.separate else shard.parameter.grad
        if grad is not None:
            found[shard.name] = (grad.full_tensor() if isinstance(grad, DTensor) else grad).clone()
    return found


def worst_difference(found: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> tuple[float, str]:
    """Largest relative difference over all tensors, and its name. Names must be equal.

    A key bias moves all scores of a query alike, so its gradient is zero and what is computed is rounding: left out.
    """
    assert sorted(found) == sorted(right)
    names = [n for n in right if not n.endswith("k_proj.bias")]
    return max((float((found[n] - right[n]).norm() / right[n].norm().clamp_min(1e-12)), n) for n in names)
