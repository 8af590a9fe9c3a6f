# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Public names of the rollout for user code: `GenerateState`, `generate`, `generate_rollout`."""

from relax.engine.rollout.generate import generate
from relax.engine.rollout.generate_rollout import RolloutFnEvalOutput, RolloutFnTrainOutput, generate_rollout
from relax.engine.rollout.state import GenerateState

__all__ = ["GenerateState", "RolloutFnEvalOutput", "RolloutFnTrainOutput", "generate", "generate_rollout"]
