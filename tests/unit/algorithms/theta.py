# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A train backend of a few parameters in float64: logp = base + features theta, so gradients can be written down.

Roles, plan and transport are left out; advantages, weights, the step's statistic, the loss and the optimizer step's
division are the product's own (`rollout_advantages`, `step_reduction`, `RolloutSteps`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.papers.responses import Response
from relax.algorithms.loss import TokenBatch
from relax.algorithms.options import AlgorithmOptions, build_loss, build_statistic
from relax.algorithms.reduce import gradient_norms, step_reduction
from relax.algorithms.rollout_advantages import RolloutRewards, custom_weights, rollout_advantages
from relax.backends.base import LossFunction, Part, StepStats
from relax.data.columns import TrainSequence
from relax.engine.train_step import RolloutSteps

ALIGNED = ("rollout_logprobs", "old_logprobs", "ref_logprobs")


def prepared(step: Sequence[Response], options: AlgorithmOptions) -> tuple[list[dict[str, np.ndarray]], float]:
    """(columns of each response, divisor of the step) as the advantages role makes them, in float64."""
    rewards = RolloutRewards(
        reward_S=np.array([r.reward for r in step]),
        group_S=np.array([r.group for r in step]),
        removed_S=np.array([r.removed for r in step]),
        masks=[r.mask for r in step],
        columns={name: [getattr(r, name) for r in step] for name in options.advantage_columns},
    )
    found = rollout_advantages(rewards, options)
    reduction = step_reduction(
        rewards.masks,
        mode=options.loss_reduction or "",
        keep=found.use.keep_S,
        silent=found.use.silent_S,
        max_response_len=options.rollout_max_response_len,
        dtype=np.float64,
    )
    columns = [{name: getattr(r, name) for name in ALIGNED} for r in step]
    for place, own in enumerate(columns):
        own["loss_weight"] = reduction.weights[place]
        if found.tokens is not None:
            own["advantages"] = found.tokens.advantages[place]
    if options.custom_pg_loss_reducer_function_path is not None:
        heard = [weights.any() for weights in reduction.weights]
        for own, weights in zip(columns, custom_weights(rewards.masks, options, counted=heard), strict=True):
            own["policy_weight"] = weights * reduction.divisor
    return columns, reduction.divisor


class ThetaBackend:
    """One rank. `all_gather` and `all_reduce` join ranks; alone they are the identity."""

    def __init__(
        self,
        step: Sequence[Response],
        *,
        all_gather: Callable[[Any], list[Any]] = lambda value: [value],
        all_reduce: Callable[[torch.Tensor], None] = lambda tensor: None,
        edit: Callable[[TokenBatch], TokenBatch] = lambda batch: batch,
    ) -> None:
        self._step, self._gather, self._reduce, self._edit = step, all_gather, all_reduce, edit
        self.theta = torch.zeros(step[0].features.shape[1], dtype=torch.float64, requires_grad=True)
        self.gradient = torch.zeros_like(self.theta)
        self.by_logp: dict[int, np.ndarray] = {}  # of the last backward pass, undivided
        self.by_entropy: dict[int, np.ndarray] = {}

    def gather(self, value: Any) -> list[Any]:
        return self._gather(value)

    def score(self, part: Part, needs: frozenset[str], tag: str = "actor") -> dict[tuple[int, int], dict[str, Any]]:
        sequences = (s for micro in part.micro_batches for s in micro)
        return {s.uid: {"log_probs": self._logp(s).detach().numpy()} for s in sequences}

    def _logp(self, sequence: TrainSequence) -> torch.Tensor:
        response = self._step[sequence.index]
        return torch.as_tensor(response.logp) + torch.as_tensor(response.features) @ self.theta

    def backward(self, part: Part, loss: LossFunction) -> StepStats:
        stats = StepStats()
        for micro in part.micro_batches:
            if micro:
                self._backward(micro, loss, stats)
        joined = StepStats()
        for terms, counts in self._gather((stats.terms, stats.counts)):
            joined.add(StepStats(terms, counts))
        return joined

    def _backward(self, micro: Sequence[TrainSequence], loss: LossFunction, stats: StepStats) -> None:
        pieces = [self._logp(s) for s in micro]
        for piece in pieces:
            piece.retain_grad()
        join = lambda arrays: torch.as_tensor(np.concatenate(list(arrays)))  # noqa: E731
        names = micro[0].columns
        entropy = join(self._step[s.index].entropy for s in micro).requires_grad_()
        lengths = [s.response_len for s in micro]
        batch = TokenBatch(
            log_probs=torch.cat(pieces),
            entropy=entropy if "entropy" in loss.needs else None,
            mask=join(s.loss_mask for s in micro),
            sequence=torch.repeat_interleave(torch.arange(len(micro)), torch.tensor(lengths)),
            num_sequences=len(micro),
            columns={name: join(s.columns[name] for s in micro) for name in names},
        )
        terms = loss(self._edit(batch))
        sum(terms[name].total for name in loss.objective).backward()
        for sequence, piece, own in zip(micro, pieces, _split(entropy.grad, lengths), strict=True):
            (self.by_logp[sequence.index],) = _split(piece.grad, [len(piece)])
            self.by_entropy[sequence.index] = own
        one = StepStats(
            {name: [float(term.total.detach())] for name, term in terms.items()},
            {name: term.count for name, term in terms.items()},
        )
        stats.add(one)

    def step(self, divisor: float) -> StepStats:
        gradient = torch.zeros_like(self.theta) if self.theta.grad is None else self.theta.grad.clone()
        self._reduce(gradient)
        self.gradient, self.theta.grad = gradient / divisor, None
        self.divisor = divisor
        return StepStats()


def _split(gradient: torch.Tensor | None, lengths: Sequence[int]) -> list[np.ndarray]:
    if gradient is None:
        return [np.zeros(length) for length in lengths]
    return [piece.numpy().copy() for piece in gradient.split(list(lengths))]


class StepResult:
    """What one optimizer step computed: gradients are divided, per token by the place of the response."""

    def __init__(self, backend: ThetaBackend, stats: StepStats, loss: LossFunction) -> None:
        self.gradient = backend.gradient.numpy()
        self.by_logp = {place: values / backend.divisor for place, values in backend.by_logp.items()}
        self.by_entropy = {place: values / backend.divisor for place, values in backend.by_entropy.items()}
        self.loss = sum(stats.sums[name] for name in loss.objective if name in stats.sums) / backend.divisor
        self.means = stats.means()
        self.norms = gradient_norms(stats.sums, backend.divisor)


def run_step(
    step: Sequence[Response],
    options: AlgorithmOptions,
    parts: Sequence[Sequence[int]],
    *,
    columns: tuple[list[dict[str, np.ndarray]], float] | None = None,
    prompt_len: Callable[[int], int] = lambda place: 3,
    backend: Mapping[str, Any] | None = None,
) -> StepResult:
    """Train the micro-batches `parts` (places in `step`) of this rank; `columns` default to those of `prepared`."""
    own, divisor = columns or prepared(step, options)

    def sequence(place: int) -> TrainSequence:
        prompt, response = prompt_len(place), step[place]
        tokens = np.zeros(prompt + len(response.mask), np.int32)
        return TrainSequence(response.group, place, tokens, prompt, response.mask, dict(own[place]))

    loss = build_loss(options)
    theta = ThetaBackend(step, **(backend or {}))
    steps = RolloutSteps(theta, loss, build_statistic(options))  # type: ignore[arg-type]
    steps.count(0, (divisor,))
    part = Part(tuple(tuple(sequence(place) for place in micro) for micro in parts))
    stats = steps.train(0, part, ends_step=True)
    assert stats is not None
    return StepResult(theta, stats, loss)
