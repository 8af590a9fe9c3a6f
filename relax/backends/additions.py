# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a model is trained with besides what its folder holds: another head, adapters, layers that predict further."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_TYPE_REWARD = "reward_model_terminal_v1"  # a scalar score of the last token
LORA_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "router", "in_proj", "out_proj")
LORA_MATRICES = {  # target -> names of linear layers in transformers' language models
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
    "router": ("gate",),
    "in_proj": ("in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
    "out_proj": ("out_proj",),
}
LORA_SCOPES = ("all", "language", "vision")
DETACH_PATHS = ("embedding", "backbone", "lm-head")


@dataclass(frozen=True)
class ClassHead:
    """A linear map of the last hidden state that takes the place of the vocabulary head; no bias."""

    num_labels: int
    problem_type: str | None = None  # as transformers names it; None for a reward model
    seed: int = 0  # of the weights, where the folder holds none
    head_type: str | None = None  # HEAD_TYPE_REWARD, told in the exported config


@dataclass(frozen=True)
class LoraSpec:
    """W x becomes (W + alpha / rank * B A) x; W is frozen, A [rank, in] and B [out, rank] are trained."""

    rank: int
    alpha: float = 32.0
    targets: tuple[str, ...] = ("linear_qkv", "linear_proj")  # names of LORA_TARGETS
    scope: str = "all"  # one of LORA_SCOPES
    dropout: float = 0.0
    seed: int = 0  # of A and of the dropout; B starts at 0
    export_merged: bool = True  # False: an export holds the adapter alone
    save_adapter_only: bool = False  # checkpoints hold no frozen weight

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True)
class MtpSpec:
    """Layers that predict the token after the next, trained with the model or alone."""

    num_layers: int = 1
    detach: tuple[str, ...] = DETACH_PATHS  # where no gradient passes from MTP into the model
    only: bool = False  # nothing but the MTP layers is trained
