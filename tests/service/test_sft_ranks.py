# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Two training ranks on Ray: who reads the bus changes nothing, and one rank agrees up to rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relax.components.trained import read_trained
from tests.builders import build_tiny_model_folder, write_jsonl
from tests.service.test_sft_inline import MATH, flags, weights
from tests.service.training_run import inline, start

pytestmark = pytest.mark.service


def test_two_ranks_share_each_step(tmp_path: Path) -> None:
    model = build_tiny_model_folder(tmp_path / "model")
    data = write_jsonl(tmp_path / "math.jsonl", MATH)
    held = write_jsonl(tmp_path / "held.jsonl", MATH[:5])
    common = {"num_rollout": 3, "eval_interval": 3, "lr": 1e-3}
    evaluated = ["--eval-prompt-data", "held", held]
    two = {"resource": '{"sft": [1, 0], "actor": [1, 2]}', "sft_max_in_flight_steps": 2}
    alone = {"per_rank_fetch": True, "sft_async_prepack": True, "num_data_storage_units": 2}
    runs = []
    for name, changed in (("by-rank-0", two), ("each", {**two, **alone})):
        words = [*flags(model, data, tmp_path / name, **common, **changed), *evaluated, "--no-serve-http"]
        with start(words) as running:
            runs.append(running.finish().ok())
    one = inline([*flags(model, data, tmp_path / "one", **common), *evaluated]).ok()
    found = [weights(run.folder, 2) for run in (*runs, one)]
    for name, array in found[0].items():
        assert np.array_equal(array, found[1][name])
        assert np.allclose(array, found[2][name], rtol=0, atol=1e-6)
    assert runs[0].metrics("train/loss") == pytest.approx(one.metrics("train/loss"), abs=1e-6)
    assert runs[0].metrics("eval/held/loss") == pytest.approx(one.metrics("eval/held/loss"), abs=1e-6)
    records = read_trained(runs[0].folder / "iter_0000002" / "model")
    assert sorted(records["group"].tolist()) == list(range(12))  # of both ranks together
