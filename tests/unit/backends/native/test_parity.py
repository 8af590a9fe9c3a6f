# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Engine, trainer and Hugging Face agree in every modality, across joins, retracts and a weight update."""

from __future__ import annotations

from benchmarks.parity import KINDS, run


async def test_the_trainer_has_the_engines_log_probs_to_the_bit(tmp_path):
    found = await run(groups=2, members=2, max_length=40, seed=3, folder=tmp_path)
    assert found["exact"] is True, found["exact_reason"]
    assert found["max_abs_engine_trainer_diff"] == dict.fromkeys(KINDS, 0.0)
    assert found["first_ratio_max_abs_dev"] == 0.0
    assert found["batch_independent_bits"] is True
    assert max(found["max_abs_logprob_diff_hf"].values()) < 1e-4
