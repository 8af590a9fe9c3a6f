# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The critic of PPO: where its weights come from, how it is trained, and how its values become advantages."""

from __future__ import annotations

from dataclasses import dataclass

from relax.algorithms.spec import ALGOS
from relax.config.flags import Section, at_least, flag

CRITIC_ESTIMATORS = tuple(name for name, spec in ALGOS.items() if "critic" in spec.needs_roles)


@dataclass(frozen=True, kw_only=True)
class CriticConfig(Section):
    """The critic role of --advantage-estimator ppo. Adam's other settings are those of the actor."""

    value_clip: float = flag(
        0.2,
        help="Distance from the old value beyond which the critic gains nothing; 0 is no bound.",
        check=at_least(0),
    )
    critic_load: str | None = flag(
        None,
        help="Hugging Face folder that the critic starts from, one checkpoint's critic/ folder (its weights alone), "
        "or the folder of --critic-save (to go on at the iteration of --load).",
        shown="the actor's start",
    )
    critic_save: str | None = flag(
        None, help="Folder of the critic's checkpoints, one an iteration.", shown="critic/ in those of --save"
    )
    critic_lr: float | None = flag(None, help="Highest learning rate of the critic.", check=at_least(0), shown="lr")
    critic_lr_warmup_iters: int = flag(0, help="Its steps of linear warm-up.", check=at_least(0))
    critic_num_nodes: int | None = flag(None, help="Nodes of the critic.", check=at_least(1), shown="from --resource")
    critic_num_gpus_per_node: int | None = flag(
        None, help="Cards of the critic on each of its nodes.", check=at_least(1), shown="from --resource"
    )
    num_critic_only_steps: int = flag(
        0, help="First rollouts that train the critic alone; the actor's weights stay.", check=at_least(0)
    )
    critic_train_only: bool = flag(False, help="Train the critic alone in the whole run.")
