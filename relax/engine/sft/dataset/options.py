# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""How rows become supervised examples: everything a producer process has to know, as plain values that travel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from relax.data.media.processing import MediaOptions
from relax.utils.errors import ConfigError

TaskType = Literal["causal_lm", "seq_cls"]
TrainingMode = Literal["sft", "cpt", "preference"]
CptTemplate = Literal["raw", "qwen3_5"]
OversizeStrategy = Literal["keep", "skip", "truncate_left", "truncate_right", "custom"]
InvalidMultimodalStrategy = Literal["error", "skip"]
ProblemType = Literal["single_label_classification", "multi_label_classification"]


@dataclass(frozen=True, kw_only=True)
class SftDataOptions:
    """Picklable; each field is the flag of its name where nothing else is said."""

    files: str | Sequence[str]  # --prompt-data, or an evaluation set's path: the grammar of relax.data.paths
    model: str  # --hf-checkpoint: tokenizer, processor, chat template
    files_flag: str = "--prompt-data"  # the flag that errors about `files` name
    input_key: str = "input"
    label_key: str | None = None
    metadata_key: str | None = "metadata"
    tool_key: str | None = "tools"
    multimodal_keys: Mapping[str, str | None] | None = None
    conversation_key_map: Mapping[str, str] = field(default_factory=dict)
    system_prompt: str | None = None
    custom_prompt_path: str | None = None
    chat_template: str | None = None  # the text of --chat-template
    apply_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    task_type: TaskType = "causal_lm"
    num_labels: int | None = None
    problem_type: ProblemType = "single_label_classification"
    training_mode: TrainingMode = "sft"  # --sft-training-mode, or preference for a loss on pairs
    cpt_template: CptTemplate = "raw"
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    max_tokens: int | None = None  # --max-tokens-per-gpu times --context-parallel-size; None: no limit
    oversize_strategy: OversizeStrategy = "keep"
    oversize_custom_function_path: str | None = None
    invalid_multimodal_strategy: InvalidMultimodalStrategy = "error"
    media: MediaOptions = field(default_factory=MediaOptions)
    cached_rows: int = 1024  # rows that a process keeps

    def __post_init__(self) -> None:
        if self.task_type == "seq_cls":
            self._check_classification()
        if self.training_mode == "cpt" and self.multimodal_keys:
            raise ConfigError("--sft-training-mode cpt trains text only; leave --multimodal-keys out")
        if self.training_mode == "cpt" and self.label_key:
            raise ConfigError("--sft-training-mode cpt trains whole texts; leave --label-key out")
        custom = self.oversize_custom_function_path
        if (self.oversize_strategy == "custom") != (custom is not None):
            raise ConfigError(
                "--sft-oversize-strategy custom and --sft-oversize-custom-function-path go together; got "
                f"{self.oversize_strategy} and {custom}"
            )

    def _check_classification(self) -> None:
        if self.multimodal_keys:
            raise ConfigError("--task-type seq_cls classifies text only; leave --multimodal-keys out")
        if self.training_mode != "sft":
            raise ConfigError(f"--task-type seq_cls does not go with the training mode {self.training_mode}")
        if self.label_key is None:
            raise ConfigError("--task-type seq_cls needs --label-key, the column of classes")
        if self.num_labels is None or self.num_labels < 2:
            raise ConfigError(f"--task-type seq_cls needs --num-labels of at least 2, got {self.num_labels}")

    @property
    def may_refuse(self) -> bool:
        """Whether a row can come out as `Refused`, so that a batch may need rows beyond its own."""
        skips = self.oversize_strategy != "keep" and self.max_tokens is not None
        return skips or (self.invalid_multimodal_strategy == "skip" and bool(self.multimodal_keys))
