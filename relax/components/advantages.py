# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The advantages role: rewards of one rollout to advantages and loss weights. CPU only, no state between rollouts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from relax.algorithms.options import AlgorithmOptions
from relax.algorithms.reduce import StepReduction, divisor_of, step_reduction
from relax.algorithms.rollout_advantages import (
    RolloutAdvantages,
    RolloutRewards,
    check_functions,
    custom_weights,
    kl_penalty,
    rollout_advantages,
)
from relax.components.base import Role
from relax.components.messages import AdvantageReport, partition_of
from relax.distributed.bus.base import Block, Bus
from relax.schedule.batch_plan import split_steps
from relax.utils.errors import UserCodeError


class Advantages(Role):
    """Reads `rollout`, writes `advantages`. A rollout may come in parts where advantages look at one group alone.

    consumes   rewards, loss masks; ref_logprobs with --kl-coef, values   waits for   rollout, reference, critic
    produces   advantages, loss_weight; with a critic returns             feeds       actor, critic
    """

    name = "advantages"

    def __init__(
        self, *, bus: Bus, options: AlgorithmOptions, group_size: int, global_batch_size: int, deadline_s: float
    ) -> None:
        super().__init__()
        check_functions(options)
        self._bus, self._options, self._deadline_s = bus, options, deadline_s
        self._tables = ("rollout", *("ref",) * bool(options.kl_coef), *("critic",) * options.needs_critic)
        self._aligned = options.advantage_columns
        self._group_size, self._global_batch_size = group_size, global_batch_size
        self._rewarded: tuple[int, int] = (-1, 0)  # rollout, rewards in its parts so far

    async def compute(self, rollout_id: int, groups: tuple[int, ...], last: bool = True) -> AdvantageReport:
        """Advantages over whole groups, in uid order. A part lies within one optimizer step, or is whole steps."""
        partition = partition_of(rollout_id)
        tables = await self._bus.get(partition, self._tables, groups, deadline_s=self._deadline_s)
        rows = [
            {name: values for table in self._tables for name, values in tables[table][uid].columns.items()}
            for uid in sorted(groups)
        ]
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
        sizes = [len(row["reward"]) for row in rows]
        groups = np.repeat(np.arange(len(rows)), sizes)
        rewards = _rewards(rows, groups, self._aligned)
        found, masks = rollout_advantages(rewards, self._options), list(rewards.masks)
        aligned: dict[str, list[np.ndarray]] = {"loss_weight": []}
        if found.tokens is not None:
            aligned["advantages"] = found.tokens.advantages
            if self._options.needs_critic and found.tokens.returns is not None:
                aligned["returns"] = found.tokens.returns
        if self._options.custom_pg_loss_reducer_function_path is not None:
            aligned["policy_weight"] = []
        divisors = []
        for start, end in split_steps(len(masks), self._group_size, self._global_batch_size, group_sizes=sizes):
            reduction = self._reduced(masks[start:end], found, start, end)
            aligned["loss_weight"] += reduction.weights
            divisors.append(float(reduction.counted))
            if "policy_weight" in aligned:
                heard = [weights.any() for weights in reduction.weights]
                own = custom_weights(masks[start:end], self._options, counted=heard)
                aligned["policy_weight"] += [weights * divisor_of(divisors[-1]) for weights in own]
        ends = np.cumsum([0, *sizes]).tolist()
        columns = [
            {name: np.concatenate(values[first:last]).astype(np.float32) for name, values in aligned.items()}
            for first, last in itertools.pairwise(ends)
        ]
        metrics = _metrics(found, groups, len(rows))
        if self._options.kl_coef:
            metrics["rollout/kl_penalty/mean"] = kl_penalty(rewards, self._options.kl_coef)
        return columns, tuple(divisors), metrics

    def _reduced(self, masks: list[np.ndarray], found: RolloutAdvantages, start: int, end: int) -> StepReduction:
        return step_reduction(
            masks,
            mode=self._options.loss_reduction or "",
            keep=found.use.keep_S[start:end],
            silent=found.use.silent_S[start:end],
            max_response_len=self._options.rollout_max_response_len,
        )


def _rewards(rows: Sequence[Mapping[str, np.ndarray]], groups: np.ndarray, aligned: Sequence[str]) -> RolloutRewards:
    split = lambda name: [part for row in rows for part in _split(row[name], row["response_len"])]  # noqa: E731
    return RolloutRewards(
        reward_S=np.concatenate([row["reward"] for row in rows]),
        group_S=groups,
        removed_S=np.concatenate([row["removed"] for row in rows]) > 0,
        masks=split("loss_mask"),
        columns={name: split(name) for name in aligned},
    )


def _metrics(found: RolloutAdvantages, groups: np.ndarray, num_groups: int) -> dict[str, tuple[float, float]]:
    """Of the group's statistics, before tokens and normalisation."""
    result = found.result
    valid = result.advantage_S[result.valid_S]
    flat = [not result.informative_S[groups == g].any() for g in range(num_groups)]
    return {
        "rollout/advantage_abs/mean": (float(np.abs(valid).sum()), float(len(valid))),
        "rollout/zero_std_groups_fraction": (float(sum(flat)), float(num_groups)),
    }


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
