# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`SupervisedOptions`: everything that decides the number a supervised loss returns, plain and picklable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relax.utils.errors import ConfigError

if TYPE_CHECKING:
    from relax.algorithms.loss import LossFunction

LOSS_TYPES = ("sft", "dpo", "reward_model")
TASK_TYPES = ("causal_lm", "seq_cls")
SINGLE_LABEL = "single_label_classification"
MULTI_LABEL = "multi_label_classification"
PROBLEM_TYPES = (SINGLE_LABEL, MULTI_LABEL)
PAIR_LOSSES = ("dpo", "reward_model")


@dataclass(frozen=True, kw_only=True)
class SupervisedOptions:
    """Fields are the flags with underscores."""

    loss_type: str = "sft"
    task_type: str = "causal_lm"  # of --loss-type sft
    num_labels: int | None = None  # classes K of seq_cls
    problem_type: str | None = None  # of seq_cls, one of PROBLEM_TYPES
    classification_threshold: float = 0.5  # probability from which a multi-label class is taken as present
    dpo_beta: float = 0.1
    dpo_reference_free: bool = False
    mtp_loss_scaling_factor: float | None = None  # None: no multi-token prediction
    mtp_only_training: bool = False

    def __post_init__(self) -> None:
        _one_of("--loss-type", self.loss_type, LOSS_TYPES)
        _one_of("--task-type", self.task_type, TASK_TYPES)
        if self.task_type == "seq_cls":
            if self.loss_type != "sft":
                raise ConfigError(f"--task-type seq_cls is trained by --loss-type sft, not {self.loss_type}")
            _one_of("--problem-type", str(self.problem_type), PROBLEM_TYPES)
            if self.num_labels is None or self.num_labels < (1 if self.multi_label else 2):
                raise ConfigError(f"--num-labels {self.num_labels}: give the number of classes K, at least 2")
        if not 0 < self.classification_threshold < 1:
            raise ConfigError(f"--classification-threshold {self.classification_threshold} must be > 0 and < 1")
        if self.dpo_beta <= 0:
            raise ConfigError(f"--dpo-beta {self.dpo_beta} must be > 0")

    @property
    def multi_label(self) -> bool:
        return self.problem_type == MULTI_LABEL

    @property
    def head_labels(self) -> int | None:
        """Outputs of a head in place of the vocabulary's: K, 1 for a reward, None for a language model."""
        if self.loss_type == "reward_model":
            return 1
        return self.num_labels if self.task_type == "seq_cls" else None

    @property
    def pairs(self) -> bool:
        """Sequences come in pairs, the preferred one first."""
        return self.loss_type in PAIR_LOSSES

    @property
    def columns(self) -> frozenset[str]:
        """Columns that the loss reads besides its own outputs; each is one number a response token."""
        if self.loss_type == "dpo":
            return frozenset({"preferred"} if self.dpo_reference_free else {"preferred", "ref_logprobs"})
        if self.loss_type == "reward_model":
            return frozenset({"preferred"})
        return frozenset({"loss_weight", "label"} if self.task_type == "seq_cls" else {"loss_weight"})


def build_supervised_loss(options: SupervisedOptions) -> LossFunction:
    """The loss that `options` describe. Imports torch."""
    loss = _build(options)
    if options.mtp_loss_scaling_factor is None:
        return loss
    from relax.algorithms.supervised.mtp import WithMtp

    return WithMtp(loss, options.mtp_loss_scaling_factor, only=options.mtp_only_training)


def _build(options: SupervisedOptions) -> LossFunction:
    if options.loss_type == "dpo":
        from relax.algorithms.supervised.preference import DpoLoss

        return DpoLoss(options.dpo_beta, reference_free=options.dpo_reference_free)
    if options.loss_type == "reward_model":
        from relax.algorithms.supervised.preference import RewardModelLoss

        return RewardModelLoss()
    if options.task_type == "seq_cls":
        from relax.algorithms.supervised.classification import MultiLabelLoss, SingleLabelLoss

        return MultiLabelLoss(options.classification_threshold) if options.multi_label else SingleLabelLoss()
    from relax.algorithms.supervised.causal_lm import SftLoss

    return SftLoss()


def _one_of(flag: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{flag} {value!r} is unknown; known are {', '.join(known)}")
