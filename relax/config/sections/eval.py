# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""When and on what the policy is evaluated."""

from __future__ import annotations

from dataclasses import dataclass

from relax.config.flags import Section, above_up_to, at_least, flag, import_path


@dataclass(frozen=True, kw_only=True)
class EvalConfig(Section):
    """Evaluation during training; what is not given is taken from the rollout flags."""

    eval_interval: int | None = flag(None, help="Rollouts between two evaluations.", check=at_least(1))
    eval_prompt_data: tuple[str, ...] = flag((), help="Pairs of a name and a data path: name path [name path ...].")
    eval_config: str | None = flag(None, help="YAML file of evaluation data sets, instead of --eval-prompt-data.")
    skip_eval_before_train: bool = flag(False, help="No evaluation of the untrained policy.")
    n_samples_per_eval_prompt: int = flag(1, help="Responses to each evaluation prompt.", check=at_least(1))
    eval_input_key: str | None = flag(None, help="Column of the prompt.", shown="input_key")
    eval_label_key: str | None = flag(None, help="Column of the label.", shown="label_key")
    eval_tool_key: str | None = flag(None, help="Column of the tools.", shown="tool_key")
    eval_temperature: float | None = flag(
        None, help="Temperature; 0 is greedy.", check=at_least(0), shown="rollout_temperature"
    )
    eval_top_p: float | None = flag(None, help="Nucleus sampling.", check=above_up_to(0, 1), shown="rollout_top_p")
    eval_top_k: int | None = flag(
        None,
        help="Top-k sampling, -1 is off.",
        check=lambda k: None if k == -1 or k > 0 else "must be -1 (off) or > 0",
        shown="rollout_top_k",
    )
    eval_max_response_len: int | None = flag(
        None, help="Tokens sampled at most.", check=at_least(1), shown="rollout_max_response_len"
    )
    eval_max_prompt_len: int | None = flag(
        None, help="Longest prompt in tokens.", check=at_least(1), shown="rollout_max_prompt_len"
    )
    eval_max_context_len: int | None = flag(
        None, help="Tokens of prompt and response together.", check=at_least(2), shown="rollout_max_context_len"
    )
    eval_min_new_tokens: int = flag(0, help="Tokens sampled at least.", check=at_least(0))
    eval_generate_function_path: str | None = flag(
        None, help="Generate function of evaluation.", check=import_path, shown="custom_generate_function_path"
    )
