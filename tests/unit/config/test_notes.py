# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What is allowed and worth knowing."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from relax.config.run import default_config

ASYNC = {"fully_async": True, "max_staleness": 1}
ADAPTER = {"lora_rank": 8, "lora_adapter_mode": True, "rollout_backend": "sglang", "sglang_python": sys.executable}
ROLES = {"actor": [1, 1], "rollout": [1, 1], "reference": [1, 1], "actor_fwd": [1, 1]}


@pytest.mark.parametrize(
    ("overrides", "texts"),
    [
        ({}, []),
        (ASYNC, []),
        ({"tis_clip": 3.0}, ["--tis-clip has no effect without --use-tis"]),
        ({"kl_loss_type": "k3"}, ["--kl-loss-type has no effect without --use-kl-loss or --kl-coef"]),
        ({"min_lr": 1e-7}, ["--min-lr has no effect with --lr-decay-style constant"]),
        (
            {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 9, "micro_batch_size": 4},
            ["--micro-batch-size 4 is ignored"],
        ),
        (ASYNC | {"use_rollout_logprobs": False}, ["nothing corrects for it"]),
        (ASYNC | {"use_tis": True}, []),
        ({"true_on_policy_mode": True, "global_batch_size": 4}, ["keeps the ratio at 1 over all 2 steps"]),
        (
            {"fully_async": True, "resource": ROLES},
            ['the "reference" in --resource computes nothing', 'the "actor_fwd" in --resource computes nothing'],
        ),
        ({"resource": {"actor": [1, 1], "rollout": [1, 1], "advantages": [1, 0]}}, []),
        ({"over_sampling_batch_size": 6}, ["--over-sampling-batch-size without a filter"]),
        ({"over_sampling_batch_size": 6, "dynamic_sampling_filter_path": "a.b"}, []),
        ({"resource": {"actor": [1, 16], "rollout": [1, 1]}}, ["16 training ranks share 8 samples: some stay idle"]),
        ({"rm_type": None}, ["no reward flag is given"]),
        (
            {"use_opd": True, "opd_teacher_load": "t", "opd_kl_type": "low_var_kl"},
            ["expected gradient of KL(p, q) - KL(q, p)"],
        ),
        ({"use_opd": True, "opd_teacher_load": "t", "opd_kl_type": "low_var_kl", "opd_loss_coef": 1.0}, []),
        ({"custom_rm_path": "a.b"}, ["--rm-type math is not used"]),
        ({"rollout_dtype": "bf16"}, ["engines compute in bf16 and the trainer in fp32"]),
        (ASYNC | ADAPTER, ["each version aborts the requests that run, and they are generated again from the start"]),
        (ASYNC | ADAPTER | {"partial_rollout": True}, []),
        (ADAPTER, []),
        ({"sglang_python": "/x"}, ["--sglang-python has no effect with --rollout-backend native"]),
    ],
)
def test_notes(overrides: dict[str, Any], texts: list[str]) -> None:
    notes = default_config(**overrides).notes
    assert len(notes) == len(texts), notes
    for note, text in zip(notes, texts, strict=True):
        assert text in note
