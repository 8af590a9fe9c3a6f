# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The rules of `AlgorithmSpec` as texts. No torch here; the command line's checks read them before anything starts.

Each generator yields one sentence a broken rule: the flag, what was found and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from relax.algorithms.spec import ALGOS, AlgorithmSpec


class Chosen(Protocol):
    """The flags that the rules of an algorithm look at, under their names with underscores."""

    @property
    def advantage_estimator(self) -> str: ...

    @property
    def loss_type(self) -> str: ...

    @property
    def loss_reduction(self) -> str | None: ...

    @property
    def normalize_advantages(self) -> bool | None: ...

    @property
    def kl_coef(self) -> float: ...

    @property
    def use_kl_loss(self) -> bool: ...

    @property
    def kl_loss_coef(self) -> float: ...

    @property
    def kl_loss_type(self) -> str: ...

    @property
    def disable_rewards_normalization(self) -> bool: ...

    @property
    def disable_compute_advantages_and_returns(self) -> bool: ...

    @property
    def custom_advantage_function_path(self) -> str | None: ...

    @property
    def custom_loss_function_path(self) -> str | None: ...

    @property
    def custom_pg_loss_reducer_function_path(self) -> str | None: ...


@dataclass(frozen=True)
class RunFacts:
    """What of a run decides whether an algorithm may run in it."""

    samples_per_prompt: int
    max_staleness: int
    steps_per_rollout: int
    parts_per_rollout: int
    partial_rollout: bool
    roles: tuple[str, ...]  # of --resource
    own_advantages: bool  # rewards are taken as advantages, or a user's function makes them


def option_problems(flags: Chosen) -> Iterator[str]:
    """What the flags of an algorithm say against each other."""
    spec, name = ALGOS[flags.advantage_estimator], f"--advantage-estimator {flags.advantage_estimator}"
    if spec.reduction is not None and flags.loss_reduction != spec.reduction:
        yield (
            f"{name} is defined with --loss-reduction {spec.reduction}, and {flags.loss_reduction} is chosen: "
            f"leave {'--calculate-per-token-loss' if flags.loss_reduction == 'token_mean' else 'it'} out"
        )
    if spec.requires_normalize_advantages and flags.normalize_advantages is False:
        yield f"{name} normalises its advantages over the whole rollout: leave --no-normalize-advantages out"
    if spec.forbids_normalize_advantages and flags.normalize_advantages:
        yield f"--normalize-advantages changes what {name} means, whose advantages keep their size: leave it out"
    yield from _kl(flags, spec, name)
    yield from _functions(flags)


def _kl(flags: Chosen, spec: AlgorithmSpec, name: str) -> Iterator[str]:
    if flags.kl_coef and flags.kl_loss_coef:
        yield "--kl-coef and --kl-loss-coef exclude each other, keep one: the KL is in the reward or in the loss"
    elif spec.kl_in_reward == "forbidden" and flags.kl_coef:
        yield (
            f"--kl-coef {flags.kl_coef} has no effect with {name}, whose KL is a loss term: "
            "use --use-kl-loss --kl-loss-coef"
        )
    if spec.kl_in_reward == "required" and not flags.kl_coef:
        yield f"{name} has the KL to the reference in its token reward: give --kl-coef, for example 0.001"
    if flags.kl_coef and spec.kl_in_reward != "forbidden" and flags.kl_loss_type != "k1":
        yield f"--kl-loss-type {flags.kl_loss_type}: the KL in the reward of {name} is k1, logp - ref_logp; use k1"
    if spec.kl_loss == "forbidden" and flags.use_kl_loss:
        yield f"--use-kl-loss adds a second KL to {name}, which has it in the reward by --kl-coef: leave it out"
    if spec.kl_loss == "k2" and not (flags.use_kl_loss and flags.kl_loss_coef > 0 and flags.kl_loss_type == "k2"):
        yield (
            f"{name} holds the policy by a k2 loss: give --use-kl-loss --kl-loss-type k2 and --kl-loss-coef above 0, "
            "for example 0.001"
        )
    if flags.kl_loss_coef and not flags.use_kl_loss:
        yield f"--kl-loss-coef {flags.kl_loss_coef} has no effect without --use-kl-loss"


def _functions(flags: Chosen) -> Iterator[str]:
    own_loss = flags.loss_type == "custom_loss"
    if own_loss and flags.custom_loss_function_path is None:
        yield "--loss-type custom_loss needs --custom-loss-function-path: the function that says what a token adds"
    if not own_loss and flags.custom_loss_function_path is not None:
        yield "--custom-loss-function-path has no effect without --loss-type custom_loss: add it"
    if own_loss and flags.custom_pg_loss_reducer_function_path is not None:
        yield "--custom-pg-loss-reducer-function-path weighs the policy loss, which --loss-type custom_loss replaces"
    if not flags.disable_compute_advantages_and_returns:
        return
    if not own_loss:
        yield (
            "--disable-compute-advantages-and-returns leaves --loss-type policy_loss nothing to train with: add "
            "--loss-type custom_loss --custom-loss-function-path"
        )
    if flags.custom_advantage_function_path is not None:
        yield "--disable-compute-advantages-and-returns and --custom-advantage-function-path: keep one"
    if flags.normalize_advantages and not ALGOS[flags.advantage_estimator].requires_normalize_advantages:
        yield "--disable-compute-advantages-and-returns leaves --normalize-advantages nothing to normalise"


def run_problems(flags: Chosen, facts: RunFacts) -> Iterator[str]:
    """What the run says against its algorithm."""
    spec, name = ALGOS[flags.advantage_estimator], f"--advantage-estimator {flags.advantage_estimator}"
    if flags.loss_type != "policy_loss":
        return
    samples = facts.samples_per_prompt
    if samples < spec.min_group_size:
        yield f"{name} compares the samples of a prompt: use --n-samples-per-prompt {spec.min_group_size} or more"
    elif samples == 1 and spec.group_of_one == "zero" and not facts.own_advantages:
        yield (
            f"--n-samples-per-prompt 1 leaves {flags.advantage_estimator} nothing to compare a response with, so "
            "every advantage is 0: use at least 2, or --disable-rewards-normalization"
        )
    for role in spec.needs_roles:
        if role not in facts.roles:
            yield f'{name} needs {role!r} in --resource, which has {", ".join(facts.roles)}: add "{role}": [1, 1]'
    if spec.requires_on_policy:
        yield from _on_policy(name, facts)
    whole = [option for option, used in _of_the_whole_rollout(flags, spec) if used]
    if facts.parts_per_rollout > 1 and whole:
        yield (
            f"{' and '.join(whole)} looks at all samples of a rollout at once, and --num-iters-per-train-update "
            "trains its parts before the others are there: leave it out"
        )


def _on_policy(name: str, facts: RunFacts) -> Iterator[str]:
    if facts.max_staleness > 0:
        yield f"{name} has no ratio to correct stale samples: use --max-staleness 0, not {facts.max_staleness}"
    if facts.steps_per_rollout > 1:
        yield (
            f"{name} has no ratio to correct for earlier optimizer steps on a rollout: use --num-steps-per-rollout 1, "
            f"not {facts.steps_per_rollout}"
        )
    if facts.partial_rollout:
        yield f"{name} has no ratio to correct responses that began under older weights: drop --partial-rollout"


def _of_the_whole_rollout(flags: Chosen, spec: AlgorithmSpec) -> tuple[tuple[str, bool], ...]:
    """What cannot be computed from a part of a rollout."""
    return (
        ("--normalize-advantages", bool(flags.normalize_advantages)),
        (f"--advantage-estimator {flags.advantage_estimator}", spec.statistic is not None),
        ("--custom-advantage-function-path", flags.custom_advantage_function_path is not None),
        ("--custom-pg-loss-reducer-function-path", flags.custom_pg_loss_reducer_function_path is not None),
    )
