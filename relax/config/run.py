# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`RunConfig`: all sections of one run, checked together, and the functions that make one."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from relax.config.aliases import Expansion, expand
from relax.config.checks import check_run
from relax.config.columns import label_column, media_columns, prompt_column, reward_of_label
from relax.config.command_line import SECTION_OF, Given, check_names, read_command_line
from relax.config.derive import Values, derive
from relax.config.evaluation import EvalDataset, eval_datasets
from relax.config.external.rules import SGLANG_MAPPED, Backends, judge
from relax.config.external.tables import ExternalFlags
from relax.config.flags import option_name
from relax.config.frozen import FrozenDict, freeze
from relax.config.machine import Machine
from relax.config.notes import notes
from relax.config.resources import RoleResource, needed_gpus, parse_resource
from relax.config.sections import (
    SECTIONS,
    AlgorithmConfig,
    CheckpointConfig,
    ClusterConfig,
    CriticConfig,
    DataConfig,
    DistillationConfig,
    EvalConfig,
    GenrmConfig,
    LoggingConfig,
    LoraConfig,
    MtpConfig,
    OptimizerConfig,
    RewardConfig,
    RolloutConfig,
    SftConfig,
    TaskConfig,
    TrainConfig,
)
from relax.config.sections.critic import CRITIC_ESTIMATORS
from relax.config.supervised import held_out_rows, is_supervised
from relax.config.view import HookArgs
from relax.utils.errors import ConfigError, InternalError

FirstRow = Callable[[str], Mapping[str, Any]]  # a data spec -> the columns of its first row


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that a run was asked to do. Plain data: it pickles and needs neither torch nor Ray."""

    cluster: ClusterConfig
    train: TrainConfig
    rollout: RolloutConfig
    data: DataConfig
    eval: EvalConfig
    algorithm: AlgorithmConfig
    task: TaskConfig
    lora: LoraConfig
    mtp: MtpConfig
    critic: CriticConfig
    distillation: DistillationConfig
    optimizer: OptimizerConfig
    checkpoint: CheckpointConfig
    reward: RewardConfig
    genrm: GenrmConfig
    logging: LoggingConfig
    sft: SftConfig
    external: ExternalFlags = field(default_factory=ExternalFlags)
    eval_datasets: tuple[EvalDataset, ...] = ()
    custom: FrozenDict = field(default_factory=FrozenDict)  # keys of --custom-config-path, for hooks only
    origins: FrozenDict = field(
        default_factory=FrozenDict
    )  # {flag: flag | derived | alias --x | file}; absent: default
    input_notes: tuple[str, ...] = ()  # notes about the command line itself

    def __post_init__(self) -> None:
        check_run(self)

    # ------------------------------------------------------------------ flags by name

    def value(self, name: str) -> Any:
        """The value of the flag `name` (with underscores), whatever its section."""
        check_names({name: None})
        return getattr(getattr(self, SECTION_OF[name]), name)

    def usual_value(self, name: str) -> Any:
        """The default of a flag; for what follows from the mode, that."""
        return self.cluster.colocate if name in ("offload_train", "offload_rollout") else default_values()[name]

    def values(self) -> dict[str, Any]:
        """{flag name with underscores: value} of every section."""
        return {name: self.value(name) for name in SECTION_OF}

    def origin(self, name: str) -> str:
        """default, flag, derived, file, or the alias that a value came from."""
        return self.origins.get(name, "default")

    def flat(self) -> HookArgs:
        """The view that user hooks get as `args`, without run-time facts."""
        external = {
            flag.option.lstrip("-").replace("-", "_"): flag.value
            for flag in self.external.given
            if flag.table != "router"
        }
        return HookArgs(external | self.values() | dict(self.custom))

    @property
    def notes(self) -> tuple[str, ...]:
        """What is allowed and worth knowing."""
        return (*self.input_notes, *notes(self))

    # ------------------------------------------------------------------ batches

    @property
    def mode(self) -> str:
        """fully_async, hybrid (roles overlap) or colocate (they alternate; on the same cards only with --colocate)."""
        if self.cluster.hybrid:
            return "hybrid"
        return "fully_async" if self.cluster.fully_async else "colocate"

    @property
    def is_supervised(self) -> bool:
        """Rows are trained on as they are: no sampling, no rewards."""
        return is_supervised({"loss_type": self.algorithm.loss_type})

    @property
    def raises_rollout(self) -> bool:
        """Engines are started: always in reinforcement learning, in supervised fine-tuning for predictions only."""
        return not self.is_supervised or self.sft.sft_predict_interval is not None

    @property
    def shares_cards(self) -> bool:
        """Actor and rollout hold the same cards: asked for by --colocate, and the rule in supervised fine-tuning."""
        return self.cluster.colocate or self.is_supervised

    @property
    def steps_in_flight(self) -> int:
        """Steps of supervised fine-tuning that may be produced and not trained yet."""
        return max(self.sft.sft_max_in_flight_steps, self.cluster.max_staleness + 1)

    @property
    def supervised_capacity(self) -> int:
        """Tokens of one micro-batch over the ranks that compute it together."""
        return resolved(self.train.max_tokens_per_gpu) * self.external.megatron("context-parallel-size", 1)

    def eval_rows(self, rows: int) -> int:
        """Rows of --prompt-data that --eval-size holds out."""
        size = self.sft.eval_size
        return 0 if size is None else held_out_rows(size, rows)

    @property
    def sft_shards(self) -> int:
        """Partitions of one step of supervised fine-tuning."""
        return resolved(self.sft.sft_tq_shards)

    @property
    def overlaps(self) -> bool:
        """Engines generate while the trainer works."""
        return self.mode != "colocate"

    @property
    def prompts_per_rollout(self) -> int:
        """--rollout-batch-size, given or derived."""
        return resolved(self.rollout.rollout_batch_size)

    @property
    def global_batch_size(self) -> int:
        """--global-batch-size, given or derived: samples of one optimizer step."""
        return resolved(self.train.global_batch_size)

    @property
    def samples_per_rollout(self) -> int:
        return self.prompts_per_rollout * self.rollout.n_samples_per_prompt

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps on the samples of one rollout."""
        return self.samples_per_rollout // self.global_batch_size

    @property
    def parts_per_rollout(self) -> int:
        """Parts in which a rollout is handed to training; 1: as a whole."""
        parts = self.cluster.num_iters_per_train_update
        return parts * self.steps_per_rollout if parts > 1 else 1

    @property
    def over_sampling_surplus(self) -> int:
        """Groups that a round may start beyond the ones it trains on."""
        return resolved(self.rollout.over_sampling_batch_size) - self.prompts_per_rollout

    @property
    def max_open_groups(self) -> int:
        """Groups that may be admitted and not yet contained in installed weights, or dropped."""
        return (self.cluster.max_staleness + 1) * self.prompts_per_rollout + self.over_sampling_surplus

    def num_rollouts(self, rows: int) -> int:
        """Rounds of the run on a data set of `rows` prompts: the smaller of --num-rollout and --num-epoch."""
        limits = [self.rollout.num_rollout] if self.rollout.num_rollout is not None else []
        rows -= self.eval_rows(rows)
        if self.rollout.num_epoch is not None:
            limits.append(self.rollout.num_epoch * rows // self.prompts_per_rollout)
        if min(limits) < 1:
            raise ConfigError(
                f"--num-epoch {self.rollout.num_epoch} of {rows} rows gives no round of --rollout-batch-size "
                f"{self.rollout.rollout_batch_size}: lower the batch size or raise the number of epochs"
            )
        return min(limits)

    # ------------------------------------------------------------------ resources

    @functools.cached_property
    def resource(self) -> dict[str, RoleResource]:
        """{role: replicas and cards}; a card is a CPU slot on a machine without CUDA."""
        return parse_resource(self.cluster.resource or {})

    @property
    def needed_gpus(self) -> int:
        return needed_gpus(self.placed, colocate=self.shares_cards)

    @property
    def placed(self) -> dict[str, RoleResource]:
        """The roles that are started; supervised fine-tuning without predictions starts no rollout."""
        return {role: entry for role, entry in self.resource.items() if role != "rollout" or self.raises_rollout}

    @property
    def gpus_per_node(self) -> int:
        """Cards of one node, given or derived."""
        return resolved(self.cluster.num_gpus_per_node)

    @property
    def num_engines(self) -> int:
        entry = self.placed.get("rollout")
        return 0 if entry is None else entry.gpus // self.cluster.rollout_num_gpus_per_engine

    @property
    def model_parallel_size(self) -> int:
        """Ranks that compute one sample together: 1 on FSDP, where each computes samples of its own."""
        if self.train.train_backend == "fsdp":
            return 1
        names = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")
        return functools.reduce(lambda product, name: product * self.external.megatron(name, 1), names, 1)

    @property
    def data_parallel_size(self) -> int:
        return max(1, self.resource["actor"].gpus // self.model_parallel_size)

    @property
    def gradient_checkpointing(self) -> bool:
        """The backward pass computes activations again."""
        names = ("recompute-granularity", "recompute-activations")
        return any(self.external.megatron(name) is not None for name in names)

    @property
    def initial_model(self) -> str:
        """Folder or hub name of the weights that training starts at; empty where nothing is given."""
        return self.checkpoint.ref_load or self.checkpoint.hf_checkpoint or ""

    @property
    def optimizer_offload(self) -> bool:
        """Adam's moments and its update are in main memory."""
        return self.external.megatron("optimizer-cpu-offload") is True

    # ------------------------------------------------------------------ critic

    @property
    def uses_critic(self) -> bool:
        """The estimator makes advantages of a critic's values."""
        return self.algorithm.advantage_estimator in CRITIC_ESTIMATORS

    @property
    def has_judge(self) -> bool:
        """Engines of this run serve judge models."""
        return self.genrm.genrm_model_path is not None or bool(self.genrm.genrm_instances)

    @property
    def asks_student(self) -> bool:
        """The actor writes its likeliest ids before the teacher is asked."""
        return self.distillation.use_opd and self.distillation.opd_token_selection in ("student_topk", "union")

    @property
    def critic_only_steps(self) -> float:
        """First rollouts that leave the actor's weights as they are."""
        return math.inf if self.critic.critic_train_only else self.critic.num_critic_only_steps

    # ------------------------------------------------------------------ log-probs

    @property
    def uses_kl(self) -> bool:
        """A KL to the reference is computed, so the reference model is loaded."""
        return self.algorithm.use_kl_loss or self.algorithm.kl_coef > 0

    @property
    def old_log_probs(self) -> str:
        """Of the ratio: current (the training forward itself), rollout (the engines'), old (a forward of its own)."""
        if self.algorithm.use_rollout_logprobs:
            return "rollout"
        return "current" if self.train.true_on_policy_mode else "old"

    @property
    def old_log_probs_role(self) -> str | None:
        """The role that computes the `old_logprobs` column, None when no forward pass is made for it."""
        if self.old_log_probs != "old":
            return None
        return "actor_fwd" if self.cluster.fully_async else "actor"


def spelled(config: RunConfig, name: str) -> str:
    """A flag as the user wrote it: an alias may stand for it."""
    origin = config.origin(name)
    return origin.removeprefix("alias ") if origin.startswith("alias --") else option_name(name)


def resolved(value: int | None) -> int:
    """A number that is there in every checked configuration, because it was given or derived."""
    if value is None:
        raise InternalError("a number was neither given nor derived, and the checks let it pass")
    return value


# ---------------------------------------------------------------------- making one


def parse_args(
    argv: Sequence[str] | None = None, *, machine: Machine | None = None, first_row: FirstRow | None = None
) -> RunConfig:
    """The configuration that a command line describes. Raises ConfigError for anything that cannot be run.

    `first_row` reads the data's columns where a short form leaves them open; without it, media columns have the name
    of their modality. Files are not looked at, except YAML files that are named: see `relax.config.files.check_files`.
    """
    given = read_command_line(sys.argv[1:] if argv is None else argv)
    return build_config(given, machine or Machine.here(), first_row)


def default_config(**overrides: Any) -> RunConfig:
    """A small valid configuration on a machine without GPUs, for tests; files need not exist.

    Arguments are flag names with underscores; lists and dicts are taken as tuples and JSON objects, and None leaves a
    value to be derived.
    """
    check_names(overrides)
    values = {name: freeze(value) for name, value in overrides.items()}
    given = Given(values=dict(TEST_VALUES) | values, origins=dict.fromkeys(values, "flag"))
    return build_config(given, Machine())


TEST_VALUES: Mapping[str, Any] = FrozenDict(
    hf_checkpoint="model",
    prompt_data="prompts.jsonl",
    num_rollout=1,
    rollout_batch_size=4,
    n_samples_per_prompt=2,
    rm_type="math",
)


def build_config(given: Given, machine: Machine, first_row: FirstRow | None = None) -> RunConfig:
    """Aliases, then columns found from the data, then derived values, then the sections and their checks."""
    expand(given.aliases, Expansion(given.values, given.origins, given.external), machine)
    find_columns(given, first_row)
    external = ExternalFlags(tuple(given.external))
    values = Values(dict(default_values()) | given.values, dict(given.origins))
    derive(values, external, machine)
    sections = {
        name: section(**{f.name: values[f.name] for f in fields(section)})  # type: ignore[arg-type]
        for name, section in SECTIONS.items()
    }
    backends = Backends(
        train=values["train_backend"],
        rollout=values["rollout_backend"],
        router=not values["inline"],
    )
    refusals = judge(external, backends)
    if refusals.problems:
        raise ConfigError("\n".join(refusals.problems))
    if values["rollout_backend"] == "sglang" and not machine.sglang and values["sglang_python"] is None:
        raise ConfigError(
            "--rollout-backend sglang: SGLang cannot be imported here; install it, or name the interpreter of its own "
            "environment by --sglang-python"
        )
    return RunConfig(
        **sections,  # type: ignore[arg-type]
        external=external.without("sglang", SGLANG_MAPPED),
        eval_datasets=eval_datasets(values.values),
        custom=given.custom,
        origins=FrozenDict(values.origins),
        input_notes=(*given.notes, *refusals.notes),
    )


@functools.cache
def default_values() -> Mapping[str, Any]:
    """{flag name: default} of every section."""
    return FrozenDict({f.name: f.default for section in SECTIONS.values() for f in fields(section)})  # type: ignore[arg-type]


def find_columns(given: Given, first_row: FirstRow | None) -> None:
    """Complete what short forms leave to the data: media columns, and in the alias form the others and the reward."""
    values = given.values
    media: Mapping[str, str | None] = values.get("multimodal_keys") or {}
    row = None
    if first_row is not None and values.get("prompt_data") and (None in media.values() or given.aliases):
        row = first_row(values["prompt_data"])
    if None in media.values():
        values["multimodal_keys"] = media_columns(media, tuple(media if row is None else row))
    if given.aliases and row is not None:
        _fill_from_row(values, given.origins, row)


def _fill_from_row(values: dict[str, Any], origins: dict[str, str], row: Mapping[str, Any]) -> None:
    def fill(name: str, value: Any) -> None:
        if name not in values and value is not None:
            values[name], origins[name] = value, "derived"

    fill("input_key", prompt_column(tuple(row)))
    fill("label_key", label_column(tuple(row)))
    prompt = row.get(values["input_key"])
    fill("apply_chat_template", isinstance(prompt, (list, tuple)))
    if not values.keys() & {"rm_type", "custom_rm_path"}:
        if "label_key" not in values:
            raise ConfigError(
                f"no reward is given and no column looks like a label: the data has {', '.join(row)}; add --rm-type, "
                f"{option_name('custom_rm_path')} or --label-key"
            )
        fill("rm_type", reward_of_label(row.get(values["label_key"])))
