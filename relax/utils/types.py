# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The carriers that travel between roles: `Sample` and the features of its media.

`Sample` is the public type that user hooks read and fill (`from relax.utils.types import Sample`).
Nothing here imports torch, Ray or transformers, so every role and every hook may import it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MODALITIES = ("image", "audio", "video")


@dataclass(frozen=True)
class MediaFeatures:
    """Processor output of one media item, extracted alone (never in a batch), once.

    `tensors` holds the processor's own names without a batch dimension, for example
    `pixel_values [patches, dim]` and `image_grid_thw [3]`, or `input_features [mel, frames]`.
    """

    kind: str  # one of MODALITIES
    sha256: str  # of the item's source bytes
    tensors: dict[str, np.ndarray]
    num_tokens: int  # placeholder ids that the item takes in the expanded prompt
    expansion: tuple[int, ...] = ()  # ids that replace the placeholder; () means num_tokens copies of it


@dataclass
class Sample:
    """One prompt with one response, from data-set row to training row.

    Each field says who writes it, its length and its unit. `R` is `response_length`.
    Token ids are ints, log-probs are nats.
    """

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    # identity: written at admission
    group_index: int | None = None  # the run's admission counter, never reused
    index: int | None = None  # place in the group, 0 .. n_samples_per_prompt - 1
    attempt: int = 0  # regenerations of this (group, index)
    part: int | None = None  # place among the samples that one generate call returned; None when it returned one
    epoch: int = 0  # data-set epoch of the prompt
    row: int | None = None  # data-set row of the prompt

    # prompt: written by the data source
    prompt: str | list[dict[str, Any]] = ""  # rendered text, or messages without a chat template
    label: Any = None  # the data set's own type, untouched
    metadata: dict[str, Any] = field(default_factory=dict)  # the row's metadata; user hooks may add
    multimodal_inputs: dict[str, list[Any]] | None = None  # {modality: raw items, in order of appearance}
    multimodal_train_inputs: list[MediaFeatures] | None = None  # in order of appearance over all modalities

    # response: written by the generate function
    tokens: list[int] = field(default_factory=list)  # prompt + response ids, media expanded
    rollout_tokens: list[int] = field(default_factory=list)  # prompt ids as sent to the engine, media unexpanded
    response: str = ""  # decoded text of the response tokens
    response_length: int = 0  # R, observations included
    loss_mask: list[int] | None = None  # [R], 1 = sampled and trained, 0 = observation or skipped
    rollout_log_probs: list[float] | None = None  # [R], nats, engine's; 0.0 on observations
    weight_versions: list[int] = field(default_factory=list)  # [R], version that sampled the token; -1 on observations
    status: Status = Status.PENDING
    finish_reason: str | None = None  # stop | length | abort, the engine's own word
    matched_stop: int | str | None = None  # stop id or string that ended the response

    # score: written by the reward function
    reward: float | dict[str, Any] | None = None  # `--reward-key` selects from a dict
    reward_parts: dict[str, float] = field(default_factory=dict)  # the dict reward's other numbers

    # bookkeeping
    remove_sample: bool = False  # a filter's word: keep in the group, give zero loss weight
    abort_count: int = 0  # interruptions so far
    generate_function_path: str | None = None  # per-sample override of --custom-generate-function-path
    session_id: str | None = None
    non_generation_time: float = 0.0  # seconds spent outside the engine (tools)
    train_metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def prompt_length(self) -> int:
        return len(self.tokens) - self.response_length

    @property
    def sampled_length(self) -> int:
        """Response tokens that the policy sampled (observations excluded)."""
        return sum(self.loss_mask) if self.loss_mask is not None else self.response_length

    def get_reward(self, reward_key: str | None = None) -> float:
        """The scalar reward; `reward_key` names the entry of a dict reward."""
        if not isinstance(self.reward, dict):
            if self.reward is None:
                raise ValueError(f"sample {self.group_index}.{self.index} has no reward")
            return float(self.reward)
        if reward_key is None:
            raise ValueError(
                f"the reward of sample {self.group_index}.{self.index} is a dict with keys "
                f"{sorted(self.reward)}: set --reward-key to the one that is the score"
            )
        if reward_key not in self.reward:
            raise ValueError(f"--reward-key {reward_key!r} is not in the reward dict: keys are {sorted(self.reward)}")
        return float(self.reward[reward_key])
