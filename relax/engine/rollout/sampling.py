# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Sampling parameters in SGLang's words, built from plain options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How tokens are drawn. Temperature 0 is greedy."""

    max_response_len: int  # sampled tokens of one sample, over all turns and resumes
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1  # -1: off
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    skip_special_tokens: bool = False

    def __post_init__(self) -> None:
        if self.max_response_len < 1:
            raise ValueError(f"--rollout-max-response-len must be >= 1, got {self.max_response_len}")
        if self.temperature < 0:
            raise ValueError(f"--rollout-temperature must be >= 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"--rollout-top-p must lie in (0, 1], got {self.top_p}")
        if self.top_k == 0 or self.top_k < -1:
            raise ValueError(f"--rollout-top-k must be -1 (off) or >= 1, got {self.top_k}")

    def params(self) -> dict[str, Any]:
        """A fresh `sampling_params` dict. The matched stop stays in the ids, so ids are what was sampled."""
        out: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "max_new_tokens": self.max_response_len,
            "skip_special_tokens": self.skip_special_tokens,
            "no_stop_trim": True,
            "spaces_between_special_tokens": False,
        }
        if self.min_new_tokens:
            out["min_new_tokens"] = self.min_new_tokens
        if self.stop:
            out["stop"] = list(self.stop)
        if self.stop_token_ids:
            out["stop_token_ids"] = list(self.stop_token_ids)
        return out
