# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""How many samples a rollout asks for, how they are sampled and by which engines."""

from __future__ import annotations

from dataclasses import dataclass

from relax.config.flags import Section, above, above_up_to, at_least, flag, import_path


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(Section):
    """Rounds, sampling, filters and inference engines."""

    num_rollout: int | None = flag(
        None, help="Rounds of the loop 'sample, then train'; or give --num-epoch.", check=at_least(1)
    )
    num_epoch: int | None = flag(
        None, help="Passes over the prompts; with --num-rollout the smaller number of rounds wins.", check=at_least(1)
    )
    start_rollout_id: int | None = flag(
        None,
        help="Number of the first round; with --load only, where it replaces the checkpoint's.",
        check=at_least(0),
        shown="from the checkpoint, else 0",
    )
    rollout_batch_size: int | None = flag(
        None, help="Prompts of one round.", check=at_least(1), shown="global_batch_size // n_samples_per_prompt"
    )
    n_samples_per_prompt: int = flag(
        1, help="Responses to each prompt: the GRPO group size, at least 2.", check=at_least(1)
    )
    over_sampling_batch_size: int | None = flag(
        None,
        help="Prompts to start in one round when filters drop some.",
        check=at_least(1),
        shown="rollout_batch_size",
    )
    dynamic_sampling_filter_path: str | None = flag(
        None, help="Function (args, samples) -> keep and reason, asked for each finished group.", check=import_path
    )
    dynamic_filter_reward_key: str | None = flag(
        None, help="Entry of a dict reward that the dynamic filter looks at.", shown="reward_key"
    )
    rollout_sample_filter_path: str | None = flag(
        None,
        help="Function (args, groups) that sets sample.remove_sample: kept in the group's mean, not trained. It is "
        "asked for each accepted group, as a list of one.",
        check=import_path,
    )
    partial_rollout: bool = flag(
        False,
        help="Interrupt responses for each weight update and go on with them under the new weights; without it they "
        "start again where they must be interrupted.",
    )
    partial_rollout_max_aborted_count: int | None = flag(
        None,
        help="Interruptions after which a response is left to run to its end.",
        check=at_least(1),
        shown="no limit",
    )
    mask_offpolicy_in_partial_rollout: bool = flag(
        False, help="Train only on the tokens of a continued response that its newest weights sampled."
    )
    custom_generate_function_path: str | None = flag(
        None, help="Async function (args, sample, sampling_params) that generates one sample.", check=import_path
    )
    max_turns: int = flag(
        10, help="Turns of a multi-turn generate function (read by the function).", check=at_least(1), hook=True
    )
    rollout_temperature: float = flag(1.0, help="Sampling temperature.", check=at_least(0))
    rollout_top_p: float = flag(
        1.0, help="Nucleus sampling; below 1 needs an engine that returns the kept set.", check=above_up_to(0, 1)
    )
    rollout_top_k: int = flag(
        -1,
        help="Top-k sampling, -1 is off; above 0 needs an engine that returns the kept set.",
        check=lambda k: None if k == -1 or k > 0 else "must be -1 (off) or > 0",
    )
    rollout_max_context_len: int | None = flag(None, help="Tokens of prompt and response together.", check=at_least(2))
    rollout_max_prompt_len: int | None = flag(
        None,
        help="Longest prompt in tokens; --overlong-prompt says what happens to a longer one.",
        check=at_least(1),
        shown="context length - 1",
    )
    overlong_prompt: str = flag(
        "drop",
        choices=("drop", "error", "truncate_left", "truncate_right"),
        help="A prompt above the limit is left out and counted, ends the run, or loses its start or its end.",
    )
    rollout_max_response_len: int = flag(
        1024, help="Tokens that may be sampled for one sample, over all turns.", check=at_least(1)
    )
    rollout_stop: tuple[str, ...] = flag((), help="Strings that end a response (prefer ids).")
    rollout_stop_token_ids: tuple[int, ...] = flag(
        (),
        help="Token ids that end a response.",
        check=lambda ids: None if min(ids, default=0) >= 0 else "must be >= 0",
    )
    rollout_skip_special_tokens: bool = flag(False, help="Leave special tokens out of the response text.")
    rollout_shuffle: bool = flag(False, help="Shuffle the prompts in each epoch, by --rollout-seed + epoch.")
    rollout_seed: int = flag(42, help="Seed of sampling and of the prompts' order.", check=at_least(0))
    rollout_failure_policy: str = flag(
        "regenerate",
        choices=("drop", "regenerate", "fail"),
        help="When a sample cannot be generated or scored: leave its group out, generate it again, or end the run.",
    )
    generate_timeout_s: float = flag(
        1800.0, help="Longest time for one sample, all turns, in seconds.", check=above(0)
    )
    rollout_backend: str | None = flag(
        None,
        choices=("native", "sglang"),
        help="Inference engine.",
        shown="sglang where CUDA and SGLang are, else native",
    )
    rollout_dtype: str | None = flag(
        None, choices=("fp32", "bf16"), help="Type that the engines compute in.", shown="train_dtype"
    )
    sglang_python: str | None = flag(
        None, help="Python interpreter of SGLang's own environment.", shown="this interpreter"
    )
    sglang_server_concurrency: int | None = flag(
        None, help="Requests in flight to one engine.", check=at_least(1), shown="engine_max_running_requests"
    )
    engine_max_running_requests: int = flag(256, help="Requests that one engine decodes together.", check=at_least(1))
    engine_max_total_tokens: int = flag(65536, help="Tokens in the KV cache of one native engine.", check=at_least(1))
    rollout_engine_init_timeout: float = flag(
        3600.0, help="Longest time for an engine to start, in seconds.", check=above(0)
    )
    rollout_http_timeout: float = flag(
        120.0, help="Longest time for a control call to an engine, in seconds.", check=above(0)
    )
