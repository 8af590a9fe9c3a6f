# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Supervised fine-tuning among the flags: what is derived, what is refused, what has no effect.

One rollout id is one optimizer step. Roles are `sft` (the producer, on the CPU), `actor`, and with
--sft-predict-interval `rollout`, which takes turns with the actor on the same cards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

from relax.config.flags import option_name
from relax.config.frozen import freeze
from relax.config.sections.critic import CriticConfig
from relax.config.sections.distillation import DistillationConfig
from relax.config.sections.genrm import GenrmConfig
from relax.utils.errors import ConfigError

if TYPE_CHECKING:
    from relax.config.run import RunConfig

LOSS, OLD_NAMES = "sft", ("sft_loss", "sft-loss")
LOSSES = (LOSS, "dpo", "reward_model")  # values of --loss-type
SHARDS_VARIABLE = "RELAX_SFT_TQ_SHARDS"
EVAL_SPLIT = "eval"  # the evaluation set that --eval-size holds out
# Flags of reinforcement learning: given with SFT, they do nothing.
REINFORCEMENT = (
    "advantage_estimator",
    "eps_clip",
    "eps_clip_high",
    "eps_clip_c",
    "kl_coef",
    "use_kl_loss",
    "kl_loss_coef",
    "kl_loss_type",
    "use_unbiased_kl",
    "ref_update_interval",
    "entropy_coef",
    "use_tis",
    "use_opsm",
    "use_opd",
    "use_rollout_logprobs",
    "true_on_policy_mode",
    "over_sampling_batch_size",
    "dynamic_sampling_filter_path",
    "rollout_sample_filter_path",
    "partial_rollout",
    "custom_generate_function_path",
    "rm_type",
    "custom_rm_path",
    "rollout_shuffle",
    "rollout_temperature",
    "update_weights_interval",
    "apply_chat_template",
    "parity_interval",
    *(
        f.name
        for section in (CriticConfig, DistillationConfig, GenrmConfig)
        for f in fields(section)
        if f.name != "use_opd"
    ),
)


class Derivable(Protocol):
    """`relax.config.derive.Values`."""

    values: dict[str, Any]
    origins: dict[str, str]

    def __getitem__(self, name: str) -> Any: ...

    def fill(self, name: str, value: Any) -> None: ...


def is_supervised(values: Mapping[str, Any]) -> bool:
    return values["loss_type"] in (*LOSSES, *OLD_NAMES)


def derive_supervised(given: Derivable, shards: str | None) -> None:
    """Fill in what follows from --loss-type sft. `shards` is the environment's RELAX_SFT_TQ_SHARDS."""
    if given["loss_type"] in OLD_NAMES:
        given.origins["loss_type"] = f"deprecated name {given['loss_type']}"
        given.values["loss_type"] = LOSS
    given.fill("balance_data", True)
    given.fill("loss_reduction", "token_mean")
    given.fill("custom_dataset_class_path", given["custom_dataset_class"])
    given.fill("true_on_policy_mode", False)
    given.fill("use_rollout_logprobs", False)
    if given["sft_async_prepack"] and shards is not None:
        given.fill("sft_tq_shards", _whole_shards(shards))
    given.fill("sft_tq_shards", 1)


def _whole_shards(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{SHARDS_VARIABLE}={text}: expected a whole number, at least 1")
    return int(text)


def default_roles(gpus: int, predict: bool) -> Any:
    """--resource when it is not given: all cards train; with predict they are shared."""
    cards = [1, gpus or 1]
    return freeze({"sft": [1, 0], "actor": cards, **({"rollout": cards} if predict else {})})


def eval_size_rows(size: float, rows: int) -> int:
    """Rows that --eval-size names, however many there are."""
    exact = Fraction(str(size))  # 0.29 of 100 rows is 29, which the binary fraction is a little below of
    return int(exact) if exact >= 1 else max(1, int(exact * rows))


def held_out_rows(size: float, rows: int) -> int:
    """Rows that --eval-size `size` holds out: a share below 1 (rounded down, at least one), else a number."""
    held = eval_size_rows(size, rows)
    if held >= rows:
        raise ConfigError(f"--eval-size {size:g} holds out {held} of {rows} rows, which leaves none to train on")
    return held


# ---------------------------------------------------------------------- rules


def present(config: RunConfig) -> Iterator[str]:
    """What an SFT run cannot do without, besides a model and data."""
    if config.train.global_batch_size is None:
        yield "--global-batch-size is missing: samples of one optimizer step"
    for role in ("sft", "actor"):
        if role not in config.resource:
            hint = "the producer on the CPU" if role == "sft" else "the trainer"
            yield (
                f'--resource has no entry "{role}" ({hint}), which --loss-type sft needs; it has '
                f'{", ".join(config.resource)}: add "{role}": {[1, 0] if role == "sft" else [1, 1]}'
            )


def batches(config: RunConfig) -> Iterator[str]:
    if not config.train.use_dynamic_batch_size:
        yield "--loss-type sft requires --use-dynamic-batch-size (with --max-tokens-per-gpu): packed micro-batches"
    if config.rollout.n_samples_per_prompt != 1:
        yield f"--n-samples-per-prompt {config.rollout.n_samples_per_prompt}: --loss-type sft trains each row once"
    if config.steps_per_rollout != 1 or config.samples_per_rollout != config.global_batch_size:
        yield (
            f"--rollout-batch-size {config.prompts_per_rollout} and --global-batch-size {config.global_batch_size}: "
            "with --loss-type sft one rollout is one optimizer step; leave --rollout-batch-size out"
        )
    if config.cluster.num_iters_per_train_update > 1:
        yield "--num-iters-per-train-update streams rollouts, and --loss-type sft has none: leave it out"


def modes(config: RunConfig) -> Iterator[str]:
    for name in ("fully_async", "hybrid"):
        if config.value(name):
            yield (
                f"{option_name(name)} is a mode of reinforcement learning and does not go with --loss-type sft: the "
                "producer runs ahead of the trainer by --sft-max-in-flight-steps"
            )


def flow(config: RunConfig) -> Iterator[str]:
    """Producer and bus."""
    sft, cluster = config.sft, config.cluster
    if sft.sft_async_prepack and not sft.per_rank_fetch:
        yield "--sft-async-prepack makes rows for single ranks: add --per-rank-fetch"
    if sft.sft_async_prepack and config.steps_in_flight < 2:
        yield (
            f"--sft-async-prepack needs at least 2 steps in flight, and --sft-max-in-flight-steps "
            f"{sft.sft_max_in_flight_steps} with --max-staleness {cluster.max_staleness} makes "
            f"{config.steps_in_flight}: use --sft-max-in-flight-steps 2, or --max-staleness 1"
        )
    yield from _shards(config)
    if (sft.sft_oversize_strategy == "custom") != (sft.sft_oversize_custom_function_path is not None):
        yield "--sft-oversize-strategy custom and --sft-oversize-custom-function-path need each other: give both"
    both = (sft.custom_dataset_class, sft.custom_dataset_class_path)
    if None not in both and both[0] != both[1]:
        yield "--custom-dataset-class and --custom-dataset-class-path name two classes: keep one"
    if sft.sft_training_mode == "sft" and config.origin("sft_cpt_template") == "flag":
        yield "--sft-cpt-template has no effect without --sft-training-mode cpt: add it"
    if sft.sft_training_mode == "cpt" and config.algorithm.loss_type != LOSS:
        yield f"--sft-training-mode cpt trains whole texts, and --loss-type {config.algorithm.loss_type} pairs"
    if sft.sft_chunked_logits is False and config.origin("sft_logits_chunk_size") == "flag":
        yield "--sft-logits-chunk-size has no effect without --sft-chunked-logits: add it"


def _shards(config: RunConfig) -> Iterator[str]:
    shards, batch, ranks = config.sft_shards, config.global_batch_size, config.data_parallel_size
    if shards == 1:
        return
    name = (
        f"{SHARDS_VARIABLE}={shards}" if config.origin("sft_tq_shards") == "derived" else f"--sft-tq-shards {shards}"
    )
    if not config.sft.sft_async_prepack:
        yield f"{name} has no effect without --sft-async-prepack: add it"
    if batch % shards:
        yield f"{name} does not divide --global-batch-size {batch}"
    elif batch % ranks or (batch // ranks) % shards:
        yield (
            f"{name} does not divide the batch of one data-parallel rank: --global-batch-size {batch} / {ranks} ranks "
            f"= {batch / ranks:g}"
        )


def evaluation(config: RunConfig) -> Iterator[str]:
    size, named = config.sft.eval_size, bool(config.eval.eval_prompt_data)
    interval, predict = config.eval.eval_interval, config.sft.sft_predict_interval
    if config.eval.eval_config is not None:
        yield "--eval-config does not go with --loss-type sft: use --eval-size, or --eval-prompt-data name path"
        return
    both = "both are given" if size is not None and named else None
    neither = "neither is given" if size is None and not named else None
    if interval is not None and (both or neither):
        yield (
            "Under --loss-type sft with --eval-interval set, give exactly one evaluation source, --eval-size or "
            f"--eval-prompt-data name path: {both or neither}"
        )
    elif both:
        yield "--eval-size and --eval-prompt-data are two evaluation sources: keep one"
    if predict is not None and neither:
        yield (
            "--sft-predict-interval needs rows to predict on, and there is no evaluation source: add --eval-size, or "
            "--eval-prompt-data name path"
        )
    if predict is not None and config.sft.sft_training_mode == "cpt":
        yield "--sft-predict-interval answers prompts, and rows of --sft-training-mode cpt have none: leave it out"
    if predict is not None and config.checkpoint.save is None:
        yield "--sft-predict-interval needs --save: predictions are written to <save>/predict/"
    if interval is None and predict is None and not neither:
        source = "--eval-size" if size is not None else "--eval-prompt-data"
        yield f"{source} is given without --eval-interval (steps between two evaluations): add it"
    if size is not None and size >= 1 and size != int(size):
        yield f"--eval-size {size:g} must be a share below 1 or a whole number of rows"


def roles(config: RunConfig) -> Iterator[str]:
    found, predict = config.resource, config.sft.sft_predict_interval
    extra = [role for role in found if role not in ("sft", "actor", "rollout")]
    if extra:
        yield f"--resource has {', '.join(extra)}, which --loss-type sft does not use: take it out"
    if found["sft"].gpus:
        yield f'--resource gives sft {found["sft"].gpus} cards, and the producer works on the CPU: use "sft": [1, 0]'
    if predict is not None and "rollout" not in found:
        yield '--sft-predict-interval raises the rollout role: add "rollout": [1, 1] to --resource'
    per_engine = config.cluster.rollout_num_gpus_per_engine
    if "rollout" in found and found["rollout"].gpus % per_engine:
        yield f"--rollout-num-gpus-per-engine {per_engine} does not divide rollout's {found['rollout'].gpus} cards"


def inline(config: RunConfig) -> Iterator[str]:
    if not config.cluster.inline:
        if config.cluster.bus == "local":
            yield "--bus local lives in one process: add --inline, or use --bus transfer_queue"
        return
    if config.cluster.bus != "local":
        yield f"--inline runs all roles in one process: use --bus local, not {config.cluster.bus}"
    if config.resource["actor"].gpus != 1 or config.num_engines > 1:
        yield '--inline has one training rank and at most one engine: use --resource {"sft": [1, 0], "actor": [1, 1]}'
    if config.raises_rollout and config.rollout.rollout_backend != "native":
        yield "--inline runs the engine in this process: use --rollout-backend native"


RULES: tuple[Callable[[RunConfig], Iterator[str]], ...] = (batches, modes, flow, evaluation, roles, inline)


# ---------------------------------------------------------------------- notes


def notes(config: RunConfig) -> Iterator[str]:
    origin = config.origin("loss_type")
    if origin.startswith("deprecated name"):
        yield f"--loss-type {origin.removeprefix('deprecated name ')} is an old name: write --loss-type sft"
    for name in REINFORCEMENT:
        if config.origin(name) == "flag" and config.value(name) not in (None, False):
            yield f"{option_name(name)} has no effect with --loss-type sft"
    if config.cluster.colocate:
        yield "--colocate has no effect with --loss-type sft: actor and rollout share their cards by rule"
    if config.sft.eval_size == 1.0:
        yield "--eval-size 1 holds out one row; a share is below 1"
    if "rollout" in config.resource and not config.raises_rollout:
        yield 'the "rollout" in --resource takes nothing: --sft-predict-interval is not set'
    if config.sft.balance_data and config.origin("balance_data") == "derived":
        yield "--balance-data is on, as always with --loss-type sft"
    if config.steps_in_flight > config.sft.sft_max_in_flight_steps:
        yield (
            f"--max-staleness {config.cluster.max_staleness} lets {config.steps_in_flight} steps be in flight, more "
            f"than --sft-max-in-flight-steps {config.sft.sft_max_in_flight_steps}"
        )
