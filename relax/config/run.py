# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`RunConfig`: all sections of one run, checked together, and the functions that make one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from relax.config.checks import check_run
from relax.config.derive import Values, derive
from relax.config.flags import Parser, add_section, nearest, option_name
from relax.config.frozen import FrozenDict
from relax.config.machine import Machine
from relax.config.resources import RoleResource, needed_gpus, parse_resource
from relax.config.sections import (
    SECTIONS,
    AlgorithmConfig,
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    EvalConfig,
    LoggingConfig,
    OptimizerConfig,
    RewardConfig,
    RolloutConfig,
    TrainConfig,
)
from relax.utils.errors import ConfigError

SECTION_OF: dict[str, str] = {f.name: name for name, section in SECTIONS.items() for f in fields(section)}  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that a run was asked to do. Plain data: it pickles and needs neither torch nor Ray."""

    cluster: ClusterConfig
    train: TrainConfig
    rollout: RolloutConfig
    data: DataConfig
    eval: EvalConfig
    algorithm: AlgorithmConfig
    optimizer: OptimizerConfig
    checkpoint: CheckpointConfig
    reward: RewardConfig
    logging: LoggingConfig
    origins: FrozenDict = field(default_factory=FrozenDict)  # {flag name: origin}; absent: default

    def __post_init__(self) -> None:
        check_run(self)

    def value(self, name: str) -> Any:
        """The value of the flag `name` (with underscores), whatever its section."""
        if name not in SECTION_OF:
            raise ConfigError(f"no flag is called {option_name(name)}; nearest is {nearest(name, SECTION_OF)}")
        return getattr(getattr(self, SECTION_OF[name]), name)

    def values(self) -> dict[str, Any]:
        """{flag name with underscores: value} of every section."""
        return {name: self.value(name) for name in SECTION_OF}

    @property
    def mode(self) -> str:
        """fully_async (roles overlap) or colocate (they alternate; on the same cards only with --colocate)."""
        return "fully_async" if self.cluster.fully_async else "colocate"

    @property
    def samples_per_rollout(self) -> int:
        return self.rollout.rollout_batch_size * self.rollout.n_samples_per_prompt  # type: ignore[operator]

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps on the samples of one rollout."""
        return self.samples_per_rollout // self.train.global_batch_size  # type: ignore[operator]

    @property
    def max_open_groups(self) -> int:
        """Groups that may be admitted and not yet contained in installed weights (or dropped)."""
        return (self.cluster.max_staleness + 1) * self.rollout.rollout_batch_size  # type: ignore[operator]

    @property
    def resource(self) -> dict[str, RoleResource]:
        return parse_resource(self.cluster.resource or {})

    @property
    def needed_gpus(self) -> int:
        return needed_gpus(self.resource, colocate=self.cluster.colocate)

    @property
    def gpus_per_node(self) -> int:
        return self.cluster.num_gpus_per_node  # type: ignore[return-value]

    @property
    def num_engines(self) -> int:
        return self.resource["rollout"].gpus // self.cluster.rollout_num_gpus_per_engine

    @property
    def uses_kl(self) -> bool:
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

    def num_rollouts(self, rows: int) -> int:
        """Rounds of the run on a data set of `rows` prompts: the smaller of --num-rollout and --num-epoch."""
        limits = [self.rollout.num_rollout] if self.rollout.num_rollout is not None else []
        if self.rollout.num_epoch is not None:
            limits.append(self.rollout.num_epoch * rows // self.rollout.rollout_batch_size)  # type: ignore[operator]
        return min(limits)


@functools.cache
def default_values() -> Mapping[str, Any]:
    """{flag name: default} of every section."""
    return FrozenDict({f.name: f.default for section in SECTIONS.values() for f in fields(section)})  # type: ignore[arg-type]


def build_parser() -> Parser:
    parser = Parser(prog="train.py", description="Reinforcement-learning post-training of omni-modal language models.")
    for name, section in SECTIONS.items():
        add_section(parser, name, section)
    return parser


def parse_args(argv: Sequence[str] | None = None, *, machine: Machine | None = None) -> RunConfig:
    """The configuration that a command line describes. Raises ConfigError for anything that cannot be run."""
    argv = list(sys.argv[1:] if argv is None else argv)
    namespace, unknown = build_parser().parse_known_args(argv)
    if unknown:
        near = nearest(unknown[0].split("=")[0], map(option_name, SECTION_OF))
        raise ConfigError(f"unknown flag {unknown[0]}{f'; did you mean {near}?' if near else ''}")
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(namespace).items()}
    return build_config(given, dict.fromkeys(given, "flag"), machine or Machine.here())


def build_config(given: Mapping[str, Any], origins: Mapping[str, str], machine: Machine) -> RunConfig:
    """The configuration with the `given` values; the rest is derived or has its default."""
    values = Values(dict(default_values()) | dict(given), dict(origins))
    derive(values, machine)
    sections = {
        name: section(**{f.name: values[f.name] for f in fields(section)})  # type: ignore[arg-type]
        for name, section in SECTIONS.items()
    }
    return RunConfig(**sections, origins=FrozenDict(values.origins))  # type: ignore[arg-type]


TEST_VALUES: Mapping[str, Any] = FrozenDict(
    hf_checkpoint="model",
    prompt_data="prompts.jsonl",
    num_rollout=1,
    rollout_batch_size=4,
    n_samples_per_prompt=2,
    rm_type="math",
)


def default_config(**overrides: Any) -> RunConfig:
    """A small valid configuration on a machine without GPUs, for tests; files need not exist.

    Arguments are flag names with underscores; lists and dicts are taken as tuples and JSON objects.
    """
    from relax.config.frozen import freeze

    unknown = sorted(set(overrides) - set(SECTION_OF))
    if unknown:
        raise ConfigError(f"no flag is called {option_name(unknown[0])}; nearest is {nearest(unknown[0], SECTION_OF)}")
    given = {name: freeze(value) for name, value in overrides.items()}
    return build_config(dict(TEST_VALUES) | given, dict.fromkeys(given, "flag"), Machine())
