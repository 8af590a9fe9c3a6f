# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From the rewards of a rollout (or of whole groups of it) to one advantage a token. No torch here.

    rewards -> score of each sample (`group_advantages`) -> advantage of each token (the spec's function, or a user's)
            -> --normalize-advantages

Everything is float64; what is written for the trainer is float32. Without --normalize-advantages and functions of a
user's, a group's numbers follow from the group alone, so a rollout may come in parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from relax.algorithms.advantages import (
    GroupAdvantages,
    Outcomes,
    SampleUse,
    TokenAdvantages,
    group_advantages,
    sample_use,
)
from relax.algorithms.normalization import normalize
from relax.algorithms.options import AlgorithmOptions
from relax.utils.errors import UserCodeError
from relax.utils.imports import load_callable

ADVANTAGE_FLAG = "--custom-advantage-function-path"
REDUCER_FLAG = "--custom-pg-loss-reducer-function-path"


class RolloutRewards(NamedTuple):
    """S samples of whole groups, in uid order."""

    reward_S: np.ndarray  # float64, NaN where there is none
    group_S: np.ndarray  # int64
    removed_S: np.ndarray  # bool
    masks: Sequence[np.ndarray]  # loss mask [R] of each sample
    columns: Mapping[str, Sequence[np.ndarray]]  # response-aligned, [R] of each sample


class RolloutAdvantages(NamedTuple):
    result: GroupAdvantages  # of each sample, before tokens and normalisation
    use: SampleUse
    tokens: TokenAdvantages | None  # None: --disable-compute-advantages-and-returns


def _advantage_function(path: str) -> Callable[..., Any]:
    keywords = ("rewards", "groups", "loss_masks", "columns")
    return load_callable(path, flag=ADVANTAGE_FLAG, positional=("args",), keywords=keywords)


def _reducer_function(path: str) -> Callable[..., Any]:
    return load_callable(path, flag=REDUCER_FLAG, positional=("args",), keywords=("loss_masks",))


def check_functions(options: AlgorithmOptions) -> None:
    """Raise ConfigError for a function of the user's that cannot be loaded or takes other arguments."""
    if options.custom_advantage_function_path is not None:
        _advantage_function(options.custom_advantage_function_path)
    if options.custom_pg_loss_reducer_function_path is not None:
        _reducer_function(options.custom_pg_loss_reducer_function_path)


def rollout_advantages(rewards: RolloutRewards, options: AlgorithmOptions) -> RolloutAdvantages:
    result = group_advantages(rewards.reward_S, rewards.group_S, **options.advantage_rules())
    use = sample_use(result, rewards.removed_S, zero_variance=options.zero_variance)
    if options.disable_compute_advantages_and_returns:
        return RolloutAdvantages(result, use, None)
    if options.custom_advantage_function_path is not None:
        tokens = TokenAdvantages(_custom_advantages(rewards, options))
    else:
        outcomes = Outcomes(result.advantage_S, rewards.masks, rewards.columns)
        tokens = options.function(options.spec.advantage)(outcomes, options)
    if options.normalize_advantages:
        normal = normalize(tokens.advantages, rewards.masks, use.keep_S, options.spec.normalization)
        tokens = tokens._replace(advantages=normal)
    return RolloutAdvantages(result, use, tokens)


def _custom_advantages(rewards: RolloutRewards, options: AlgorithmOptions) -> list[np.ndarray]:
    """advantages(args, *, rewards, groups, loss_masks, columns): for each sample a number, or one a token."""
    path = options.custom_advantage_function_path or ""
    returned = _advantage_function(path)(
        options.args,
        rewards=rewards.reward_S.copy(),
        groups=rewards.group_S.copy(),
        loss_masks=[np.array(mask) for mask in rewards.masks],
        columns=rewards.columns,
    )
    return per_token(returned, [len(mask) for mask in rewards.masks], flag=ADVANTAGE_FLAG, path=path)


def custom_weights(
    masks: Sequence[np.ndarray], options: AlgorithmOptions, *, counted: Sequence[bool] | np.ndarray
) -> list[np.ndarray]:
    """reducer(args, *, loss_masks): the weight of each token in the policy loss of one optimizer step, float64.

    The policy loss of the step is the sum of weight x loss, so the function's weights hold the divisor already. The
    masks of samples that do not train are all 0 here, and whatever weight the function gives them is taken as 0.
    """
    path = options.custom_pg_loss_reducer_function_path or ""
    heard = [np.array(mask) * bool(used) for mask, used in zip(masks, counted, strict=True)]
    returned = _reducer_function(path)(options.args, loss_masks=[mask.copy() for mask in heard])
    weights = per_token(returned, [len(mask) for mask in heard], flag=REDUCER_FLAG, path=path)
    return [weight * (mask > 0) for weight, mask in zip(weights, heard, strict=True)]


def per_token(returned: Any, lengths: Sequence[int], *, flag: str, path: str) -> list[np.ndarray]:
    """What a user's function returned as float64 [R] for each sample; UserCodeError names what is wrong with it."""
    try:
        values = list(returned)
    except TypeError:
        raise UserCodeError(
            f"{flag} {path} returned {type(returned).__name__}; it must return a list with one entry a sample",
            path=path,
        ) from None
    if len(values) != len(lengths):
        raise UserCodeError(f"{flag} {path} returned {len(values)} entries for {len(lengths)} samples", path=path)
    found = []
    for place, (value, length) in enumerate(zip(values, lengths, strict=True)):
        own = np.asarray(value, np.float64)
        if own.shape not in ((), (length,)):
            raise UserCodeError(
                f"{flag} {path} returned an entry of shape {own.shape} for sample {place}; it must be one number, or "
                f"{length}, one a response token",
                path=path,
            )
        if not np.isfinite(own).all():
            raise UserCodeError(f"{flag} {path} returned a NaN or an infinity for sample {place}", path=path)
        found.append(np.broadcast_to(own, (length,)).copy())
    return found


def kl_penalty(rewards: RolloutRewards, kl_coef: float) -> tuple[float, float]:
    """(sum, trained tokens) of what --kl-coef takes off the token rewards, in reward."""
    kept = [np.asarray(mask) > 0 for mask in rewards.masks]
    engine, ref = (rewards.columns[name] for name in ("rollout_logprobs", "ref_logprobs"))
    gaps = [
        (np.asarray(a, np.float64) - np.asarray(b, np.float64))[mask]
        for a, b, mask in zip(engine, ref, kept, strict=True)
    ]
    return kl_coef * math.fsum(value for gap in gaps for value in gap.tolist()), float(sum(map(len, gaps)))
