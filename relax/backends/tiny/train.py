# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`TinyTrain`: a `TrainBackend` over a bigram table, in float64 numpy, with plain SGD.

    d objective / d logits[last, j] = sum_t g_t * (1[j = next_t] - p_j) / T        g_t = d objective / d log p_t

torch computes only g_t, because losses are written in it. One process trains; several ranks can only score.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relax.backends.base import (
    LossFunction,
    ModelSpec,
    OptimizerSpec,
    Part,
    RankInfo,
    ScoreSwitch,
    StepStats,
    TokenBatch,
    WeightPart,
)
from relax.backends.tiny.policy import WEIGHT_NAME, log_prob_table
from relax.backends.tiny.weights import WeightStore
from relax.data.columns import TrainSequence
from relax.utils.errors import Divergence, InternalError

if TYPE_CHECKING:
    from torch import Tensor

CHECKPOINT = "bigram.npz"


class TinyTrain:
    """See the module. `weights` is a float64 `[V, V]` table; it is copied.

    The learning rate is constant; moments, weight decay and warm-up of the optimizer spec are not used.
    """

    def __init__(
        self, weights: np.ndarray, *, store: WeightStore | None = None, dp_rank: int = 0, dp_size: int = 1
    ) -> None:
        self.table = np.array(weights, np.float64)
        self.num_steps = 0
        self._store = store or WeightStore()
        self._dp_rank, self._dp_size = dp_rank, dp_size
        self._gradient = np.zeros_like(self.table)
        self._kept: dict[str, np.ndarray] = {}
        self._asleep = False
        self._model: ModelSpec | None = None
        self._optimizer: OptimizerSpec | None = None

    # ------------------------------------------------------------------ life

    def open(self, model: ModelSpec, optimizer: OptimizerSpec | None) -> RankInfo:
        """`model` gives temperature and suppressed ids; its folder is not read."""
        self._model = model
        self._optimizer = optimizer if model.trainable else None
        return RankInfo(
            rank=self._dp_rank,
            world_size=self._dp_size,
            dp_rank=self._dp_rank,
            dp_size=self._dp_size,
            device="cpu",
            exact=True,
            exact_reason="engine and trainer read one table",
            num_parameters=self.table.size,
        )

    def sleep(self) -> None:
        self._awake()
        self._asleep = True

    def wake(self) -> None:
        if not self._asleep:
            raise InternalError("TinyTrain.wake: not asleep")
        self._asleep = False

    def close(self) -> None:
        self._model = None

    def _awake(self) -> ModelSpec:
        if self._model is None:
            raise InternalError("TinyTrain: call open first")
        if self._asleep:
            raise InternalError("TinyTrain: the rank is asleep; call wake first")
        return self._model

    # ------------------------------------------------------------------ compute

    def score(
        self, part: Part, needs: frozenset[str], tag: str = "actor", switch: ScoreSwitch | None = None
    ) -> dict[tuple[int, int], dict[str, np.ndarray]]:
        """Log-probs, entropies and the mass above, float32 `[R]` by uid, under the weights `tag`."""
        model, switch = self._awake(), switch or ScoreSwitch()
        if switch.top_p < 1 or switch.top_k > 0 or switch.dtype == "bf16":
            raise NotImplementedError("TinyTrain switches temperature and suppressed ids alone")
        if tag != "actor" and tag not in self._kept:
            raise InternalError(f"no weights are kept as {tag!r}; known are {sorted(['actor', *self._kept])}")
        log_p = log_prob_table(
            self.table if tag == "actor" else self._kept[tag],
            temperature=model.temperature if switch.temperature is None else switch.temperature,
            suppressed=model.suppressed_ids if switch.suppressed_ids is None else switch.suppressed_ids,
        )
        found: dict[tuple[int, int], dict[str, np.ndarray]] = {}
        for sequence in (s for micro in part.micro_batches for s in micro):
            last, token = pairs(sequence)
            own = log_p[last, token]
            above = np.where(log_p[last] > own[:, None], np.exp(log_p[last]), 0.0).sum(axis=1)
            columns = {"log_probs": own, "entropy": entropy_of(log_p[last]), "mass_above": above}
            found[sequence.uid] = {name: columns[name].astype(np.float32) for name in needs}
        return found

    def backward(self, part: Part, loss: LossFunction) -> StepStats:
        """Add the gradient of the objective terms, undivided."""
        self._awake()
        if self._optimizer is None or self._dp_size > 1:
            raise InternalError("TinyTrain.backward: opened without an optimizer, or one of several ranks")
        stats = StepStats()
        for micro in part.micro_batches:
            if micro:
                self._backward(micro, loss, stats)
        return stats

    def measure(self, part: Part, loss: LossFunction) -> StepStats:
        """The terms of a loss, without gradients."""
        self._awake()
        stats, gradient = StepStats(), self._gradient.copy()
        for micro in part.micro_batches:
            if micro:
                self._backward(micro, loss, stats)
        self._gradient = gradient
        return stats

    def _backward(self, sequences: tuple[TrainSequence, ...], loss: LossFunction, stats: StepStats) -> None:
        import torch

        log_p = self._log_probs(self.table)
        places = [pairs(s) for s in sequences]
        last = np.concatenate([p[0] for p in places])
        token = np.concatenate([p[1] for p in places])
        log_probs = torch.tensor(log_p[last, token], requires_grad=True)
        entropy = torch.tensor(entropy_of(log_p[last]), requires_grad=True) if "entropy" in loss.needs else None
        terms = loss(_token_batch(sequences, log_probs, entropy))
        for name in loss.objective:
            if not math.isfinite(float(terms[name].total.detach())):
                raise Divergence(f"optimizer step {self.num_steps}: loss term {name} is not finite")
        torch.stack([terms[name].total for name in loss.objective]).sum().backward()
        self._add_gradient(log_p, last, token, log_probs, entropy)
        for name, term in terms.items():
            stats.terms.setdefault(name, []).append(float(term.total.detach()))
            stats.counts[name] = stats.counts.get(name, 0.0) + float(term.count)

    def _add_gradient(
        self, log_p: np.ndarray, last: np.ndarray, token: np.ndarray, log_probs: Tensor, entropy: Tensor | None
    ) -> None:
        """The chain rule from log-probs and entropies to the table's rows."""
        p_rows, temperature = np.exp(log_p[last]), self._awake().temperature
        if log_probs.grad is not None:
            g = log_probs.grad.numpy() / temperature
            np.add.at(self._gradient, (last, token), g)
            np.add.at(self._gradient, last, -g[:, None] * p_rows)
        if entropy is not None and entropy.grad is not None:
            g = entropy.grad.numpy() / temperature
            inner = np.where(p_rows > 0, log_p[last], 0.0) + entropy_of(log_p[last])[:, None]
            np.add.at(self._gradient, last, -g[:, None] * p_rows * inner)

    def step(self, divisor: float) -> StepStats:
        """weights -= lr * clip(gradient / divisor)"""
        self._awake()
        assert self._optimizer is not None
        if not (math.isfinite(divisor) and divisor > 0):
            raise Divergence(f"optimizer step {self.num_steps}: divisor {divisor}; no trained tokens in this step?")
        undivided = float(np.sqrt((self._gradient**2).sum()))
        gradient = self._gradient / divisor
        norm = float(np.sqrt((gradient**2).sum()))
        if not math.isfinite(norm):
            raise Divergence(f"optimizer step {self.num_steps}: the gradient is not finite")
        clip = self._optimizer.clip_grad
        scale = clip / norm if 0 < clip < norm else 1.0
        self.table -= self._optimizer.lr * scale * gradient
        self._gradient = np.zeros_like(self.table)
        self.num_steps += 1
        return StepStats(grad_norm=norm, gradient={WEIGHT_NAME: undivided}, lr=self._optimizer.lr)

    def _log_probs(self, table: np.ndarray) -> np.ndarray:
        model = self._awake()
        return log_prob_table(table, temperature=model.temperature, suppressed=model.suppressed_ids)

    # ------------------------------------------------------------------ weights

    def weights(self, part: WeightPart = "merged") -> Iterator[tuple[str, Tensor]]:
        import torch

        if part != "merged":
            raise NotImplementedError("a table has no adapters")
        self._awake()
        yield WEIGHT_NAME, torch.from_numpy(self.table.copy())

    def load_weights(self, folder: Path) -> None:
        """Take a published version, from the store or from disk."""
        self.table = self._store.read(folder)[1][WEIGHT_NAME].astype(np.float64)

    def keep(self, tag: str) -> None:
        self._awake()
        self._kept[tag] = self.table.copy()

    def forget(self, tag: str) -> None:
        self._kept.pop(tag, None)

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def save(self, folder: Path, tag: str = "actor") -> None:
        self._awake()
        folder.mkdir(parents=True, exist_ok=True)
        table = self.table if tag == "actor" else self._kept[tag]
        np.savez(folder / CHECKPOINT, table=table, num_steps=self.num_steps)

    def load(self, folder: Path, *, optimizer: bool = True) -> None:
        self._awake()
        with np.load(folder / CHECKPOINT) as saved:
            self.table = saved["table"].copy()
            if optimizer:
                self.num_steps = int(saved["num_steps"])

    def export_hf(self, folder: Path) -> None:
        """There is no HF class for a table: the same file as a checkpoint."""
        self.save(folder)


def pairs(sequence: TrainSequence) -> tuple[np.ndarray, np.ndarray]:
    """(last token, token) of each response token."""
    tokens = np.asarray(sequence.tokens, np.int64)
    return tokens[sequence.prompt_len - 1 : -1], tokens[sequence.prompt_len :]


def entropy_of(log_p_rows: np.ndarray) -> np.ndarray:
    """Nats, of each row; an id of probability 0 adds nothing."""
    p = np.exp(log_p_rows)
    return -np.where(p > 0, p * np.where(p > 0, log_p_rows, 0.0), 0.0).sum(axis=1)


def _token_batch(sequences: tuple[TrainSequence, ...], log_probs: Tensor, entropy: Tensor | None) -> TokenBatch:
    import torch

    def flat(arrays: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(arrays).astype(np.float64))

    lengths = [s.response_len for s in sequences]
    return TokenBatch(
        log_probs=log_probs,
        entropy=entropy,
        mask=flat([s.loss_mask for s in sequences]),
        sequence=torch.from_numpy(np.repeat(np.arange(len(sequences)), lengths)),
        num_sequences=len(sequences),
        columns={name: flat([s.columns[name] for s in sequences]) for name in sequences[0].columns},
    )
