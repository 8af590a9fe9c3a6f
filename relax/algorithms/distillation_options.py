# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Everything that decides the number of a distillation term, plain and picklable. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

AT_IDS = "at_ids"  # column [R, K]: the ids that student and teacher are compared on
TEACHER = "teacher_logprobs"  # column [R]: of the sampled token
TEACHER_AT = "teacher_at_logprobs"  # column [R, K]
PER_POSITION = "RELAX_OPD_PER_POS_TOKEN_IDS"  # environment, "1": an SGLang that takes a list of ids for each position


@dataclass(frozen=True, kw_only=True)
class DistillationOptions:
    """Fields are the flags `--opd-...`; exactly one of the two coefficients is not 0."""

    kl_coef: float = 1.0  # advantage mode
    loss_coef: float = 0.0  # loss mode
    token_selection: str = "student_sampled"  # or student_topk, teacher_topk, union
    top_k: int = 0
    kl_type: str = "reverse_kl"
    jsd_alpha: float = 0.5
    norm_mode: str = "tail"
    per_token_clip: float | None = None  # nats
    is_clip: float | None = None  # of the ratio p / p_sampled, in loss mode with sampled tokens
    only: bool = False

    @property
    def of_ids(self) -> bool:
        """Student and teacher are compared on ids of each token, not on the sampled one alone."""
        return self.token_selection != "student_sampled"

    @property
    def needs_student_ids(self) -> bool:
        """The student's likeliest ids must be known before the teacher is asked."""
        return self.token_selection in ("student_topk", "union")
