# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""How samples are scored."""

from __future__ import annotations

from dataclasses import dataclass

from relax.config.flags import Section, above, at_least, flag, import_path


@dataclass(frozen=True, kw_only=True)
class RewardConfig(Section):
    """Built-in and custom rewards."""

    rm_type: str | None = flag(
        None,
        help="Built-in reward: math, gsm8k, geo3k, multiple_choice, gpqa, openr1mm, dapo, deepscaler, exact_match, "
        "f1, dapo-genrm (a judge), remote_rm, random, dummy; boxed_NAME looks into the last box only. A row's "
        "metadata.rm_type goes first.",
    )
    rm_type_infer: bool = flag(
        False,
        help="Without a name, tell the reward by the label: a number is math, <answer>B</answer> multiple_choice.",
    )
    rm_type_fallback: str | None = flag(
        None, help="Reward where none is named, known or inferred: a built-in name, or zero for 0.0.", shown="an error"
    )
    custom_rm_path: str | None = flag(
        None, help="Function (args, sample, **kwargs) -> number or dict.", check=import_path
    )
    custom_reward_post_process_path: str | None = flag(
        None,
        help="Function (args, samples) -> (raw_rewards, rewards), asked for each scored group; its rewards are the "
        "advantages, instead of the group's normalisation.",
        check=import_path,
    )
    reward_key: str | None = flag(None, help="Entry of a dict reward that is the score.")
    eval_reward_key: str | None = flag(None, help="The same in evaluation.", shown="reward_key")
    group_rm: bool = flag(False, help="Give the reward function all samples of a group at once.")
    rm_url: str | None = flag(None, help="Address of the remote reward (--rm-type remote_rm).")
    reward_max_concurrency: int = flag(64, help="Rewards computed at the same time.", check=at_least(1))
    reward_num_workers: int = flag(2, help="Processes for symbolic comparisons.", check=at_least(1))
    reward_failure_policy: str = flag(
        "drop",
        choices=("drop", "zero", "fail"),
        help="A sample that cannot be scored trains nothing, gets reward 0, or ends the run.",
    )
    reward_timeout_s: float = flag(120.0, help="Longest time for one reward, in seconds.", check=above(0))
