# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The advantages role: rewards of one rollout to advantages and loss weights. CPU only, no state between rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relax.algorithms.advantages import group_advantages, per_token, sample_use
from relax.algorithms.options import AlgorithmOptions
from relax.algorithms.reduce import step_reduction
from relax.components.base import Role
from relax.components.messages import AdvantageReport, partition_of
from relax.distributed.bus.base import Block, Bus
from relax.schedule.batch_plan import split_steps
from relax.utils.errors import UserCodeError


class Advantages(Role):
    """Reads `rollout`, writes `advantages`. Advantages look at one group, so a rollout may come in parts.

    consumes   rewards, loss masks       waits for   rollout to release the groups
    produces   advantages, loss_weight   feeds       actor
    """

    name = "advantages"

    def __init__(
        self, *, bus: Bus, options: AlgorithmOptions, group_size: int, global_batch_size: int, deadline_s: float
    ) -> None:
        super().__init__()
        self._bus, self._options, self._deadline_s = bus, options, deadline_s
        self._group_size, self._global_batch_size = group_size, global_batch_size
        self._rewarded: tuple[int, int] = (-1, 0)  # rollout, rewards in its parts so far

    async def compute(self, rollout_id: int, groups: tuple[int, ...], last: bool = True) -> AdvantageReport:
        """Advantages over whole groups, in uid order. A part lies within one optimizer step, or is whole steps."""
        partition = partition_of(rollout_id)
        tables = await self._bus.get(partition, ("rollout",), groups, deadline_s=self._deadline_s)
        rows = [tables["rollout"][uid].columns for uid in sorted(groups)]
        if self._options.invalid_reward == "fail":
            _check_rewards(sorted(groups), rows)
        before = self._rewarded[1] if self._rewarded[0] == rollout_id else 0
        self._rewarded = (rollout_id, before + sum(int(np.isfinite(row["reward"]).sum()) for row in rows))
        if last and not self._rewarded[1]:
            raise UserCodeError(
                f"no sample of rollout {rollout_id} has a reward: each one failed or was not a finite number; what it "
                "raised is in the log of the rollout role",
                path="reward",
            )
        columns, divisors, metrics = self._columns(rows)
        blocks = [Block(uid, column) for uid, column in zip(sorted(groups), columns, strict=True)]
        await self._bus.put(partition, "advantages", blocks)
        self.step = rollout_id + 1
        return AdvantageReport(divisors, metrics, self.stop_requested)

    def _columns(
        self, rows: list[Mapping[str, np.ndarray]]
    ) -> tuple[list[dict[str, np.ndarray]], tuple[float, ...], dict[str, tuple[float, float]]]:
        options = self._options
        sizes = [len(row["reward"]) for row in rows]
        rewards = np.concatenate([row["reward"] for row in rows])
        group_ids = np.repeat(np.arange(len(rows)), sizes)
        removed = np.concatenate([row["removed"] for row in rows]) > 0
        result = group_advantages(rewards, group_ids, **options.advantage_rules())
        use = sample_use(result, removed, zero_variance=options.zero_variance)
        masks = [mask for row in rows for mask in _split(row["loss_mask"], row["response_len"])]
        steps = split_steps(len(masks), self._group_size, self._global_batch_size, group_sizes=sizes)
        weights: list[np.ndarray] = []
        divisors = []
        for start, end in steps:
            reduction = step_reduction(
                masks[start:end],
                mode=options.loss_reduction,
                keep=use.keep_S[start:end],
                silent=use.silent_S[start:end],
                max_response_len=options.rollout_max_response_len,
            )
            weights += reduction.weights
            divisors.append(float(reduction.counted))
        columns, first = [], 0
        for row, size in zip(rows, sizes, strict=True):
            last = first + size
            advantages = per_token(result.advantage_S[first:last], row["response_len"])
            columns.append({"advantages": advantages, "loss_weight": np.concatenate(weights[first:last])})
            first = last
        valid = result.advantage_S[result.valid_S]
        flat = [not result.informative_S[group_ids == g].any() for g in range(len(rows))]
        metrics = {
            "rollout/advantage_abs/mean": (float(np.abs(valid).sum()), float(len(valid))),
            "rollout/zero_std_groups_fraction": (float(sum(flat)), float(len(rows))),
        }
        return columns, tuple(divisors), metrics


def _check_rewards(groups: Sequence[int], rows: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Raise for the first reward that is not a finite number, naming its group and its place in the group."""
    for group, row in zip(groups, rows, strict=True):
        for place in np.flatnonzero(~np.isfinite(row["reward"])):
            raise UserCodeError(
                f"the reward is {row['reward'][place]}, not a finite number, and --invalid-reward-policy is fail; "
                "what the reward function raised is in the log of the rollout role",
                path="reward",
                sample=f"{group}.{place}",
            )


def _split(flat: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(flat, np.cumsum(lengths)[:-1])
