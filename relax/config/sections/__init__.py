# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The config sections, by the name that they have in `RunConfig`."""

from __future__ import annotations

from relax.config.flags import Section
from relax.config.sections.algorithm import AlgorithmConfig
from relax.config.sections.checkpoint import CheckpointConfig
from relax.config.sections.cluster import ClusterConfig
from relax.config.sections.critic import CriticConfig
from relax.config.sections.data import DataConfig
from relax.config.sections.distillation import DistillationConfig
from relax.config.sections.eval import EvalConfig
from relax.config.sections.genrm import GenrmConfig
from relax.config.sections.logging import LoggingConfig
from relax.config.sections.lora import LoraConfig
from relax.config.sections.mtp import MtpConfig
from relax.config.sections.optimizer import OptimizerConfig
from relax.config.sections.reward import RewardConfig
from relax.config.sections.rollout import RolloutConfig
from relax.config.sections.sft import SftConfig
from relax.config.sections.task import TaskConfig
from relax.config.sections.train import TrainConfig

SECTIONS: dict[str, type[Section]] = {
    "cluster": ClusterConfig,
    "train": TrainConfig,
    "rollout": RolloutConfig,
    "data": DataConfig,
    "eval": EvalConfig,
    "algorithm": AlgorithmConfig,
    "task": TaskConfig,
    "lora": LoraConfig,
    "mtp": MtpConfig,
    "critic": CriticConfig,
    "distillation": DistillationConfig,
    "optimizer": OptimizerConfig,
    "checkpoint": CheckpointConfig,
    "reward": RewardConfig,
    "genrm": GenrmConfig,
    "logging": LoggingConfig,
    "sft": SftConfig,
}

__all__ = [
    "SECTIONS",
    "AlgorithmConfig",
    "CheckpointConfig",
    "ClusterConfig",
    "CriticConfig",
    "DataConfig",
    "DistillationConfig",
    "EvalConfig",
    "GenrmConfig",
    "LoggingConfig",
    "LoraConfig",
    "MtpConfig",
    "OptimizerConfig",
    "RewardConfig",
    "RolloutConfig",
    "SftConfig",
    "TaskConfig",
    "TrainConfig",
]
