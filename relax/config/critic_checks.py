# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rules of runs with a critic, and of flags of a critic in runs without one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from relax.config.flags import option_name
from relax.config.sections.critic import CRITIC_ESTIMATORS, CriticConfig

if TYPE_CHECKING:
    from relax.config.run import RunConfig


def critic(config: RunConfig) -> Iterator[str]:
    estimator = config.algorithm.advantage_estimator
    if not config.uses_critic:
        if "critic" in config.resource:
            yield (
                f'--advantage-estimator {estimator} has no critic, so the cards of "critic" in --resource would '
                f"stand idle: take the entry out, or use --advantage-estimator {' or '.join(CRITIC_ESTIMATORS)}"
            )
        yield from _without_critic(config, estimator)
        return
    if "critic" not in config.resource:
        return  # told by the rules of the estimator
    if config.cluster.inline and config.resource["critic"].gpus != 1:
        yield '--inline has one rank of each role: give "critic": [1, 1] in --resource'
    else:
        yield from _nodes(config)
    if config.critic.critic_train_only and config.critic.num_critic_only_steps:
        yield (
            f"--critic-train-only trains no actor in any rollout, and --num-critic-only-steps "
            f"{config.critic.num_critic_only_steps} ends that: keep one"
        )
    for name in ("custom_advantage_function_path", "disable_compute_advantages_and_returns"):
        if getattr(config.algorithm, name):
            yield f"{option_name(name)} leaves the critic no returns to train on: use an estimator without a critic"
    if config.critic.critic_save is not None and config.checkpoint.save is None:
        yield "--critic-save is written with the run's checkpoints: add --save"


def _nodes(config: RunConfig) -> Iterator[str]:
    nodes, each = config.critic.critic_num_nodes, config.critic.critic_num_gpus_per_node
    cards = config.resource["critic"].gpus
    if each is not None and (nodes or 1) * each != cards:
        yield (
            f"--critic-num-nodes {nodes or 1} x --critic-num-gpus-per-node {each} contradicts --resource, which gives "
            f"critic {cards}"
        )
    elif nodes is not None and each is None:
        yield f"--critic-num-nodes {nodes} needs --critic-num-gpus-per-node, or give the cards by --resource"


def _without_critic(config: RunConfig, estimator: str) -> Iterator[str]:
    given = [f.name for f in fields(CriticConfig) if config.origins.get(f.name) == "flag"]
    if given:
        flags = " and ".join(map(option_name, given))
        verb = "have" if len(given) > 1 else "has"
        yield f"{flags} {verb} no effect with --advantage-estimator {estimator}, which has no critic: leave it out"


CRITIC_RULES = (critic,)
