# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rules between flags. A rule only rejects, never edits; all that are broken are told together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from relax.algorithms.rules import RunFacts, option_problems, run_problems
from relax.algorithms.spec import READERS
from relax.config import supervised, supervised_checks
from relax.config.critic_checks import CRITIC_RULES
from relax.config.distillation_checks import DISTILLATION_RULES
from relax.config.flags import option_name
from relax.config.genrm_checks import GENRM_RULES
from relax.config.resources import REQUIRED
from relax.config.sections.sft import SftConfig
from relax.config.support import PENDING
from relax.utils.errors import ConfigError

if TYPE_CHECKING:
    from relax.config.run import RunConfig

Rule = Callable[["RunConfig"], Iterator[str]]


def check_run(config: RunConfig) -> None:
    """Raise ConfigError with the text of every broken rule, one a line."""
    check_present(config)
    rules = SUPERVISED_RULES if config.is_supervised else RULES
    problems = [problem for rule in rules for problem in rule(config)]
    if problems:
        raise ConfigError("\n".join(problems))


def check_present(config: RunConfig) -> None:
    """What no run can do without. The other rules rely on it."""
    missing = [name for name in ("hf_checkpoint", "prompt_data") if config.value(name) is None]
    lines = [f"{option_name(name)} is missing: {_WHY[name]}" for name in missing]
    if config.is_supervised:
        lines += supervised.present(config)
    elif config.rollout.rollout_batch_size is None:
        lines.append("--rollout-batch-size is missing: prompts of one round (or --global-batch-size, to derive it)")
    if config.rollout.num_rollout is None and config.rollout.num_epoch is None:
        lines.append("--num-rollout (rounds) or --num-epoch (passes over the prompts) is missing")
    for role in () if config.is_supervised else REQUIRED:
        if role not in config.resource:
            lines.append(f'--resource has no entry "{role}"; it has {", ".join(config.resource)}')
    lines += pending(config)
    if len(missing) == len(_WHY):
        lines.append("--help shows an example")
    if lines:
        raise ConfigError("\n".join(lines))


def pending(config: RunConfig) -> Iterator[str]:
    """Flags that nothing reads yet are refused where they are given another value than they have anyway."""
    for name in sorted(PENDING):
        given, usual = config.value(name), config.usual_value(name)
        if given != usual and config.origin(name) != "derived":
            yield f"{option_name(name)} {given} is known but not available in this version: leave it out"


_WHY = {
    "hf_checkpoint": "the Hugging Face folder of the model",
    "prompt_data": "the .jsonl or .parquet file (or folder, or list) of the prompts",
}


def batch_sizes(config: RunConfig) -> Iterator[str]:
    prompts, per_prompt = config.prompts_per_rollout, config.rollout.n_samples_per_prompt
    batch, steps, samples = config.global_batch_size, config.train.num_steps_per_rollout, config.samples_per_rollout
    product = f"--rollout-batch-size {prompts} x --n-samples-per-prompt {per_prompt} = {samples} samples a round"
    if samples % batch:
        near = _batches_near(samples, per_prompt, batch)
        yield f"{product}, which --global-batch-size {batch} does not divide: use {near}"
        return
    if batch % per_prompt:
        yield (
            f"--global-batch-size {batch} must hold whole groups of --n-samples-per-prompt {per_prompt}: "
            f"use a multiple of {per_prompt}"
        )
    elif (batch // per_prompt) % config.cluster.num_iters_per_train_update:
        yield (
            f"--num-iters-per-train-update {config.cluster.num_iters_per_train_update} does not divide the "
            f"{batch // per_prompt} prompts of one optimizer step"
        )
    if steps != samples // batch:
        made = samples // batch
        yield f"{product} and --global-batch-size {batch} make {made} steps, not --num-steps-per-rollout {steps}"
    if config.over_sampling_surplus < 0:
        over = config.rollout.over_sampling_batch_size
        yield f"--over-sampling-batch-size {over} must be at least --rollout-batch-size {prompts}"


def _batches_near(samples: int, per_prompt: int, wanted: int) -> str:
    """Batch sizes next to `wanted` that divide `samples` and hold whole groups."""
    sizes = [size for size in range(per_prompt, samples + 1, per_prompt) if samples % size == 0]
    below = [size for size in sizes if size < wanted][-1:]
    above = [size for size in sizes if size > wanted][:1]
    return " or ".join(map(str, below + above))


def micro_batches(config: RunConfig) -> Iterator[str]:
    if config.train.use_dynamic_batch_size and config.train.max_tokens_per_gpu is None:
        yield "--use-dynamic-batch-size needs --max-tokens-per-gpu: tokens of one micro-batch on one rank"
    if config.train.max_tokens_per_gpu is not None and not config.train.use_dynamic_batch_size:
        yield "--max-tokens-per-gpu has no effect without --use-dynamic-batch-size: add it"


def modes(config: RunConfig) -> Iterator[str]:
    cluster = config.cluster
    given = [option_name(name) for name in ("fully_async", "colocate", "hybrid") if getattr(cluster, name)]
    if given == ["--fully-async", "--colocate"]:
        yield (
            "--fully-async and --colocate exclude each other: async roles own their cards. Roles that overlap, with "
            "reference and old log-probs computed by the actor, are --hybrid alone; keep one of the three"
        )
    elif len(given) > 1:
        yield f"{' and '.join(given)} name different modes: keep one"
    elif cluster.max_staleness > 0 and not config.overlaps:
        yield (
            f"--max-staleness {cluster.max_staleness} needs --fully-async or --hybrid: "
            f"{'with --colocate' if cluster.colocate else 'otherwise'} generation and training alternate, so use 0"
        )
    if cluster.update_weights_interval - 1 > cluster.max_staleness:
        yield (
            f"--update-weights-interval {cluster.update_weights_interval} would stop the run: engines may lag "
            f"--max-staleness {cluster.max_staleness} rollouts, so no new group could start before the next update; "
            f"use an interval of at most {cluster.max_staleness + 1}, "
            f"or --max-staleness {cluster.update_weights_interval - 1}"
        )


def fault_tolerance(config: RunConfig) -> Iterator[str]:
    cluster = config.cluster
    if cluster.use_fault_tolerance and (cluster.inline or config.mode == "colocate"):
        yield "--use-fault-tolerance needs --fully-async or --hybrid, without --inline: else no engine starts again"


def streaming(config: RunConfig) -> Iterator[str]:
    parts = config.cluster.num_iters_per_train_update
    if parts > 1 and not config.overlaps:
        yield (
            f"--num-iters-per-train-update {parts} trains on parts of a rollout while the others are generated, and "
            f"{'with --colocate' if config.cluster.colocate else 'here'} generation and training alternate: add "
            "--fully-async or --hybrid, or leave it out"
        )
    if parts == 1 and config.cluster.stream_order != "uid":
        yield (
            f"--stream-order {config.cluster.stream_order} has no effect on rollouts that are trained as a whole: add "
            "--num-iters-per-train-update, at least 2"
        )
    if config.cluster.deterministic and config.cluster.stream_order != "uid":
        yield "--stream-order arrival follows what ends first, which --deterministic excludes: keep one of the two"


def inline(config: RunConfig) -> Iterator[str]:
    """One process holds one training rank, one native engine and an in-memory bus."""
    if not config.cluster.inline:
        if config.cluster.bus == "local":
            yield "--bus local lives in one process: add --inline, or use --bus transfer_queue"
        return
    if config.cluster.bus != "local":
        yield f"--inline runs all roles in one process: use --bus local, not {config.cluster.bus}"
    if config.rollout.rollout_backend != "native":
        yield "--inline runs the engine in this process: use --rollout-backend native"
    if config.resource["actor"].gpus != 1 or config.num_engines != 1:
        yield '--inline has one training rank and one engine: use --resource \'{"actor": [1, 1], "rollout": [1, 1]}\''


def metrics_service(config: RunConfig) -> Iterator[str]:
    if config.logging.use_metrics_service and (config.cluster.inline or not config.cluster.serve_http):
        yield (
            "--use-metrics-service is part of the roles' HTTP routes: leave --inline and --no-serve-http out, or drop "
            "it: metrics/metrics.jsonl is written in any case"
        )


def resources(config: RunConfig) -> Iterator[str]:
    cluster, roles = config.cluster, config.resource
    cards, per_engine = roles["rollout"].gpus, cluster.rollout_num_gpus_per_engine
    if cards % per_engine:
        yield f"--rollout-num-gpus-per-engine {per_engine} does not divide the {cards} cards of rollout in --resource"
    if cluster.rollout_num_gpus not in (None, cards):
        yield f"--rollout-num-gpus {cluster.rollout_num_gpus} contradicts --resource, which gives rollout {cards}"
    nodes, each = cluster.actor_num_nodes, cluster.actor_num_gpus_per_node
    if nodes is not None and each is not None and nodes * each != roles["actor"].gpus:
        yield (
            f"--actor-num-nodes {nodes} x --actor-num-gpus-per-node {each} contradicts --resource, "
            f"which gives actor {roles['actor'].gpus}"
        )
    present = ", ".join(roles)
    idle = " and ".join(role for role in ("reference", "actor_fwd") if role in roles)
    if idle and not cluster.fully_async:
        given = [option_name(name) for name in ("hybrid", "colocate") if getattr(cluster, name)]
        yield (
            f"{(given or ['a run without --fully-async'])[0]} lets the actor do the work of {idle}, so the cards of "
            f"{idle} in --resource would stand idle: take the entry out, or use --fully-async"
        )
    if cluster.fully_async and config.uses_kl and "reference" not in roles:
        yield (
            f'--fully-async with a KL term needs "reference" in --resource, which has {present}: '
            'add "reference": [1, 1]'
        )
    if cluster.fully_async and config.old_log_probs == "old" and "actor_fwd" not in roles:
        yield (
            f'--fully-async needs "actor_fwd" in --resource, which has {present}, to compute old log-probs: add '
            '"actor_fwd": [1, 1], or take the engines\' by --use-rollout-logprobs'
        )


def conversion(config: RunConfig) -> Iterator[str]:
    if config.train.megatron_to_hf_mode == "raw" and config.train.train_backend == "fsdp":
        yield "--megatron-to-hf-mode raw has no counterpart on --train-backend fsdp, whose weights have HF names"


def sampling(config: RunConfig) -> Iterator[str]:
    rollout = config.rollout
    if rollout.rollout_temperature == 0:
        yield (
            "--rollout-temperature 0 cannot be trained on: every response of a group is the same and log-probs divide "
            "by 0; use 1.0 (evaluation may be greedy by --eval-temperature 0)"
        )
    if rollout.rollout_top_p < 1 or rollout.rollout_top_k > 0:
        given = f"--rollout-top-p {rollout.rollout_top_p}" if rollout.rollout_top_p < 1 else ""
        given = given or f"--rollout-top-k {rollout.rollout_top_k}"
        yield (
            f"{given} cannot be trained on: log-probs need the set of tokens that were left, which no engine of this "
            "version returns; use 1.0 and -1 (evaluation may restrict by --eval-top-p and --eval-top-k)"
        )


def lengths(config: RunConfig) -> Iterator[str]:
    rollout, evaluation = config.rollout, config.eval
    limits = (rollout.rollout_max_prompt_len, rollout.rollout_max_response_len, rollout.rollout_max_context_len)
    yield from _fits("rollout", *limits, config)
    if config.eval_datasets:
        eval_limits = (
            evaluation.eval_max_prompt_len,
            evaluation.eval_max_response_len,
            evaluation.eval_max_context_len,
        )
        if eval_limits != limits:
            yield from _fits("eval", *eval_limits, config)
    for name in ("image_{}_tokens", "video_{}_tokens", "video_{}_frames"):
        low, high = (config.value(name.format(word)) for word in ("min", "max"))
        if low is not None and high is not None and low > high:
            options = [option_name(name.format(word)) for word in ("min", "max")]
            yield f"{options[0]} {low} is above {options[1]} {high}"


def _fits(
    prefix: str, prompt: int | None, response: int | None, context: int | None, config: RunConfig
) -> Iterator[str]:
    """Prompt and response within the context, and the context within the KV cache of a native engine."""
    if context is None:
        return
    for word, length in (("prompt", prompt), ("response", response)):
        if length is not None and length > context - 1:
            yield f"--{prefix}-max-{word}-len {length} must be below --{prefix}-max-context-len {context}"
    cache = config.rollout.engine_max_total_tokens
    if config.rollout.rollout_backend == "native" and context > cache:
        yield f"--{prefix}-max-context-len {context} does not fit --engine-max-total-tokens {cache}: raise it"


def algorithm(config: RunConfig) -> Iterator[str]:
    """The rules of `AlgorithmSpec`, and flags of other algorithms than the one chosen."""
    section = config.algorithm
    yield from option_problems(section)
    own_advantages = (
        section.disable_rewards_normalization
        or config.reward.custom_reward_post_process_path is not None
        or section.custom_advantage_function_path is not None
    )
    facts = RunFacts(
        samples_per_prompt=config.rollout.n_samples_per_prompt,
        max_staleness=config.cluster.max_staleness,
        steps_per_rollout=max(1, config.steps_per_rollout),
        parts_per_rollout=config.parts_per_rollout,
        partial_rollout=config.rollout.partial_rollout,
        roles=tuple(config.resource),
        own_advantages=own_advantages,
    )
    yield from run_problems(section, facts)
    for name, readers in READERS.items():
        given = config.value(name) != config.usual_value(name) and config.origin(name) != "derived"
        if given and section.loss_type == "policy_loss" and section.advantage_estimator not in readers:
            yield (
                f"{option_name(name)} {config.value(name)} has no effect with --advantage-estimator "
                f"{section.advantage_estimator}: it is read by {', '.join(readers)}; leave it out"
            )
    if section.ref_update_interval is not None and not config.uses_kl:
        yield "--ref-update-interval has no effect without a KL term (--use-kl-loss)"


def corrections(config: RunConfig) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.use_rollout_logprobs and algorithm.use_tis:
        yield (
            "--use-tis corrects the trainer's log-probs by the engines', and with --use-rollout-logprobs both are the "
            "engines': keep one"
        )
    if algorithm.use_rollout_logprobs and config.train.true_on_policy_mode:
        yield "--use-rollout-logprobs and --true-on-policy-mode name two sources of the old log-probs: keep one"
    if algorithm.tis_clip_low > algorithm.tis_clip:
        yield f"--tis-clip-low {algorithm.tis_clip_low} is above --tis-clip {algorithm.tis_clip}"
    if algorithm.get_mismatch_metrics and algorithm.custom_tis_function_path is None:
        yield "--get-mismatch-metrics needs --custom-tis-function-path"
    if algorithm.calculate_per_token_loss and algorithm.loss_reduction != "token_mean":
        yield (
            f"--calculate-per-token-loss is --loss-reduction token_mean, and --loss-reduction "
            f"{algorithm.loss_reduction} is given: keep one"
        )


def optimizer(config: RunConfig) -> Iterator[str]:
    settings = config.optimizer
    if settings.min_lr > settings.lr:
        yield f"--min-lr {settings.min_lr} is above --lr {settings.lr}"
    if settings.lr_decay_style != "constant" and settings.lr_decay_iters is None and not config.is_supervised:
        yield (
            f"--lr-decay-style {settings.lr_decay_style} over --num-epoch needs --lr-decay-iters: the optimizer steps "
            "to --min-lr, warm-up included"
        )
    if settings.lr_decay_iters is not None and settings.lr_decay_iters <= settings.lr_warmup_iters:
        yield (
            f"--lr-decay-iters {settings.lr_decay_iters} includes the warm-up, so it must be above "
            f"--lr-warmup-iters {settings.lr_warmup_iters}"
        )


def evaluation(config: RunConfig) -> Iterator[str]:
    if config.eval.eval_interval is not None and not config.eval_datasets:
        yield "--eval-interval needs data sets: add --eval-prompt-data name path, or --eval-config"
    if config.eval_datasets and config.eval.eval_interval is None:
        yield "evaluation data sets are given without --eval-interval (rollouts between two evaluations): add it"


def checkpoints(config: RunConfig) -> Iterator[str]:
    checkpoint = config.checkpoint
    if checkpoint.save_interval is not None and checkpoint.save is None:
        yield f"--save-interval {checkpoint.save_interval} needs --save: the folder for checkpoints"
    start, rounds = config.rollout.start_rollout_id, config.rollout.num_rollout
    if start is not None and checkpoint.load is None:
        yield (
            f"--start-rollout-id {start} needs --load: it renumbers a resumed run, and a new one starts at 0; "
            "leave it out"
        )
    if start is not None and rounds is not None and start >= rounds:
        yield f"--start-rollout-id {start} leaves nothing to do: --num-rollout is {rounds}, and ids start at 0"


def determinism(config: RunConfig) -> Iterator[str]:
    if not config.cluster.deterministic:
        return
    if config.rollout.rollout_backend != "native":
        yield (
            f"--deterministic with --rollout-backend {config.rollout.rollout_backend}: tokens of that engine depend "
            "on which requests share a batch; use --rollout-backend native"
        )
    if config.rollout.partial_rollout:
        yield (
            "--deterministic with --partial-rollout: where an update interrupts a response depends on time; "
            "leave one of them out"
        )
    interval, updates = config.checkpoint.save_interval, config.cluster.update_weights_interval
    if interval is not None and interval % updates:
        yield (
            f"--deterministic: a run that is resumed between two updates would serve weights that the first one never "
            f"did: --save-interval {interval} must be a multiple of --update-weights-interval {updates}"
        )


def rewards(config: RunConfig) -> Iterator[str]:
    reward = config.reward
    if reward.rm_type == "remote_rm" and reward.rm_url is None:
        yield "--rm-type remote_rm needs --rm-url: the address that scores samples"
    if reward.group_rm and reward.custom_rm_path is None:
        yield "--group-rm gives whole groups to a function of yours: add --custom-rm-path"


def weight_transport(config: RunConfig) -> Iterator[str]:
    """A broadcast reaches engines only; forward roles read a version from its folder."""
    if config.cluster.checkpoint_engine_backend != "gloo":
        return
    readers = [role for role in ("reference", "actor_fwd") if role in config.resource]
    if readers:
        yield (
            f"--checkpoint-engine-backend gloo sends weights to engines alone, and --resource has "
            f"{' and '.join(readers)}: use shm"
        )


def prompts(config: RunConfig) -> Iterator[str]:
    """Without a template a prompt is one plain text, unless a function makes message lists of it."""
    data = config.data
    if data.system_prompt and not data.apply_chat_template and data.custom_prompt_path is None:
        yield (
            "--system-prompt needs --apply-chat-template: a plain text has no place for a system message; add the "
            "flag, or write the text into the prompts"
        )


# The limits that `MediaOptions` takes.
MEDIA_LIMITS = (
    "image_min_tokens",
    "image_max_tokens",
    "video_min_tokens",
    "video_max_tokens",
    "video_fps",
    "video_min_frames",
    "video_max_frames",
    "audio_sample_rate",
)


def media_limits(config: RunConfig) -> Iterator[str]:
    """SGLang sizes media by itself; other sizes on the trainer's side would be another prompt."""
    if config.rollout.rollout_backend != "sglang":
        return
    given = [name for name in MEDIA_LIMITS if config.value(name) != config.usual_value(name)]
    if given:
        flags = ", ".join(f"{option_name(name)} {config.value(name)}" for name in given)
        yield (
            f"{flags}: SGLang sizes media by the saved processor of --hf-checkpoint alone; set the limits in that "
            "folder's processor files, or use --rollout-backend native"
        )


def supervised_only(config: RunConfig) -> Iterator[str]:
    """Flags that only --loss-type sft reads."""
    if config.is_supervised:
        return
    for name in (field.name for field in fields(SftConfig)):
        if config.value(name) != config.usual_value(name):
            yield f"{option_name(name)} belongs to --loss-type sft, and --loss-type is {config.algorithm.loss_type}"


RULES: tuple[Rule, ...] = (
    supervised_only,
    prompts,
    media_limits,
    weight_transport,
    batch_sizes,
    micro_batches,
    modes,
    fault_tolerance,
    streaming,
    inline,
    metrics_service,
    resources,
    conversion,
    sampling,
    lengths,
    algorithm,
    *DISTILLATION_RULES,
    corrections,
    optimizer,
    evaluation,
    checkpoints,
    determinism,
    rewards,
    *supervised_checks.RULES,
    *CRITIC_RULES,
    *GENRM_RULES,
)
# Of the rules above those that hold for supervised fine-tuning as well, and its own.
SUPERVISED_RULES: tuple[Rule, ...] = (
    micro_batches,
    fault_tolerance,
    metrics_service,
    conversion,
    lengths,
    optimizer,
    checkpoints,
    weight_transport,
    *supervised.RULES,
    *supervised_checks.RULES,
)
