# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A contract test for a loss of your own: run it on your function before you train with it.

    python -m relax.algorithms.contract my_losses.surrogate         # what --custom-loss-function-path will name

    from relax.algorithms.contract import check_loss
    check_loss("my_losses.surrogate", args={"tau": 2.0})            # with what it reads of the flags

It raises where the function returns something else than one number a token, and AssertionError with a sentence where
its gradient depends on how a step is cut into micro-batches, on the order of samples, or on what stands under
the mask.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from relax.algorithms.loss import LossFunction, TokenBatch
from relax.algorithms.options import AlgorithmOptions, build_loss
from relax.utils.errors import RelaxError

TOLERANCE = 1e-9  # float64
LENGTHS = (4, 1, 6, 3, 5)
COLUMNS = ("advantages", "rollout_logprobs", "old_logprobs", "ref_logprobs", "values", "returns")


@dataclass(frozen=True)
class _Samples:
    """Made-up responses: arrays `[R]` of each, float64."""

    logp: list[np.ndarray]
    entropy: list[np.ndarray]
    mask: list[np.ndarray]
    columns: list[dict[str, np.ndarray]]


def check_loss(path: str, *, args: Any = None, options: Mapping[str, Any] | None = None) -> None:
    """Check the function that `path` names. `options` are further fields of `AlgorithmOptions`."""
    flags = {"old_log_probs": "old", **(options or {})}
    loss = build_loss(AlgorithmOptions(loss_type="custom_loss", custom_loss_function_path=path, args=args, **flags))
    whole = _gradients(loss, _samples(), [range(len(LENGTHS))])
    assert any(gradient.any() for gradient in whole), f"{path}: its gradient is 0 for every token"
    for parts in ([[0], [1], [2], [3], [4]], [[0, 1], [2, 3, 4]], [[4, 2], [0, 3, 1]]):
        found = _gradients(loss, _samples(), parts)
        _same(found, whole, f"{path}: its gradient depends on the cut into micro-batches; say what each token adds")
    for fill in (7.0, -3.0):
        found = _gradients(loss, _samples(fill), [range(len(LENGTHS))])
        _same(found, whole, f"{path}: its gradient depends on what stands under the mask, or on padding")
    padded = _gradients(loss, _samples(pad=2), [range(len(LENGTHS))])
    inner = [gradient[: len(gradient) - 2] for gradient in padded]
    _same(inner, whole, f"{path}: its gradient depends on what stands under the mask, or on padding")


def _samples(fill: float = 0.0, pad: int = 0) -> _Samples:
    """The same samples each time; tokens that are not trained hold `fill`, and `pad` of them stand at the end."""
    rng = np.random.default_rng(11)
    masks, found = [], []
    for place, length in enumerate(LENGTHS):
        mask = np.ones(length)
        if length > 3:
            mask[1:3] = 0
        columns = {name: rng.normal(-1.0, 0.4, length) for name in COLUMNS}
        columns |= {"logp": rng.normal(-1.0, 0.4, length), "entropy": rng.uniform(0.1, 2.0, length)}
        columns["advantages"] = np.full(length, (-1.0) ** place * (1.0 + place))
        columns["loss_weight"] = mask / mask.sum()
        extra = np.full(pad, fill)
        shown = {name: np.where(mask > 0, v, fill) if name != "loss_weight" else v for name, v in columns.items()}
        found.append(
            {name: np.concatenate([v, 0.0 * extra if name == "loss_weight" else extra]) for name, v in shown.items()}
        )
        masks.append(np.concatenate([mask, np.zeros(pad)]))
    return _Samples([c.pop("logp") for c in found], [c.pop("entropy") for c in found], masks, found)


def _gradients(loss: LossFunction, samples: _Samples, parts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """d objective / d logp of each sample, undivided."""
    found: dict[int, np.ndarray] = {}
    for part in parts:
        join = lambda arrays: torch.as_tensor(np.concatenate([arrays[place] for place in part]))  # noqa: B023, E731
        lengths = [len(samples.mask[place]) for place in part]
        names = samples.columns[0]
        batch = TokenBatch(
            log_probs=join(samples.logp).requires_grad_(),
            entropy=join(samples.entropy).requires_grad_(),
            mask=join(samples.mask),
            sequence=torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
            num_sequences=len(lengths),
            columns={name: join([c[name] for c in samples.columns]) for name in names},
        )
        terms = loss(batch)
        total = torch.stack([terms[name].total for name in loss.objective]).sum()
        total.backward()
        gradient = batch.log_probs.grad
        assert gradient is not None
        found.update(zip(part, (piece.numpy() for piece in gradient.split(lengths)), strict=True))
    return [found[place] for place in sorted(found)]


def _same(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], sentence: str) -> None:
    for a, b in zip(found, expected, strict=True):
        assert np.allclose(a, b, rtol=0.0, atol=TOLERANCE), sentence


def main() -> None:
    parser = argparse.ArgumentParser(prog="contract", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", help="import path of the loss")
    path = parser.parse_args().path
    sys.path.insert(0, os.getcwd())
    try:
        check_loss(path)
    except (AssertionError, RelaxError) as error:
        raise SystemExit(f"error: {error}") from None
    print(f"{path}: one number a token, whatever the cut, the order and the padding")


if __name__ == "__main__":
    main()
