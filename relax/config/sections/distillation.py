# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""On-policy distillation: who the teacher is, and how the student is drawn to it."""

from __future__ import annotations

from dataclasses import dataclass

from relax.config.flags import Section, above, at_least, flag


def _unit(value: float) -> str | None:
    return None if 0 <= value <= 1 else "must be >= 0 and <= 1"


@dataclass(frozen=True, kw_only=True)
class DistillationConfig(Section):
    """A teacher's distribution on the student's own tokens. Works with every estimator."""

    use_opd: bool = flag(
        False, help="On-policy distillation: sampled tokens are also drawn to the log-probs of a teacher."
    )
    opd_type: str | None = flag(
        None,
        choices=("megatron", "sglang"),
        help="Where the teacher computes: a forward of the training backend (megatron), or an inference engine asked "
        "in SGLang's format (sglang): one of this run, or --opd-teacher-url.",
        shown="sglang with --opd-teacher-url or --teacher-hf-checkpoint, else megatron",
    )
    opd_kl_coef: float | None = flag(
        None,
        help="Advantage mode: weight of the divergence that is taken off a token's advantage.",
        check=at_least(0),
        shown="1.0, or 0 with --opd-loss-coef",
    )
    opd_loss_coef: float = flag(
        0.0, help="Loss mode: weight of the divergence as a loss term with gradient.", check=at_least(0)
    )
    opd_token_selection: str = flag(
        "student_sampled",
        choices=("student_sampled", "student_topk", "teacher_topk", "union"),
        help="Ids that the two are compared on: the sampled one, or the likeliest ones of student, teacher or both.",
    )
    opd_log_prob_top_k: int = flag(
        0, help="Likeliest ids of a token; the size of the vocabulary takes all of them.", check=at_least(0)
    )
    opd_kl_type: str = flag(
        "reverse_kl",
        choices=("reverse_kl", "forward_kl", "low_var_kl", "jsd"),
        help="Divergence; of the sampled token alone reverse_kl or low_var_kl.",
    )
    opd_jsd_alpha: float = flag(0.5, help="Mixture of the jsd: 0 is reverse_kl, 1 forward_kl.", check=_unit)
    opd_norm_mode: str = flag(
        "tail",
        choices=("tail", "norm", "trunc"),
        help="Mass outside the compared ids: one more id, divided out, or left out.",
    )
    opd_per_token_clip: float | None = flag(
        None, help="Largest size of a token's divergence, in nats.", check=above(0), shown="no limit"
    )
    opd_is_clip: float | None = flag(
        None,
        help="Largest ratio of current to sampling probability that weighs a sampled token in loss mode.",
        check=above(0),
        shown="no limit",
    )
    opd_only_reward: bool = flag(False, help="Train on the teacher alone: advantages of rewards count as 0.")
    opd_teacher_load: str | None = flag(
        None, help="Hugging Face folder of the teacher that the training backend computes (--opd-type megatron)."
    )
    opd_teacher_url: str | None = flag(
        None, help="Address of a running engine that is the teacher (--opd-type sglang)."
    )
    opd_teacher_timeout_s: float = flag(
        30.0, help="Longest time for one answer of a teacher's engine.", check=above(0)
    )
    teacher_hf_checkpoint: str | None = flag(
        None, help="Hugging Face folder of the teacher that engines of this run serve (--opd-type sglang)."
    )
    teacher_num_gpus_per_engine: int = flag(1, help="Cards of one teacher engine.", check=at_least(1))
