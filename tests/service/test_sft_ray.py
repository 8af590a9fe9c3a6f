# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Supervised fine-tuning as processes on Ray: two producers, predictions on shared cards, weights of one process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.builders import build_tiny_model_folder, write_jsonl
from tests.service.test_sft_inline import MATH, flags, weights
from tests.service.training_run import inline, start

pytestmark = pytest.mark.service


def test_shards_and_predictions_on_ray_end_with_the_weights_of_one_process(tmp_path: Path) -> None:
    model = build_tiny_model_folder(tmp_path / "model")
    data = write_jsonl(tmp_path / "math.jsonl", MATH)
    common = {"eval_size": 4, "eval_interval": 2, "sft_predict_interval": 3, "eval_temperature": 0.0}
    common |= {"eval_max_response_len": 6}
    flow = {"sft_max_in_flight_steps": 3, "per_rank_fetch": True, "sft_async_prepack": True}
    env = {"RELAX_SFT_TQ_SHARDS": "2"}
    with start(flags(model, data, tmp_path / "ray", **common, **flow), env=env) as running:
        finished = running.finish().ok()
    assert "SFT remote shard producer enabled: producers=sft-0,sft-1 shards=2" in finished.log()
    one = inline(flags(model, data, tmp_path / "one", **common)).ok()
    old, new = weights(one.folder, 4), weights(finished.folder, 4)
    assert old.keys() == new.keys() and all(np.array_equal(old[name], new[name]) for name in old)
    assert finished.metrics("eval/eval/loss") == one.metrics("eval/eval/loss")
    for step in (2, 4):  # every third step, and the last
        rows = [read_predictions(run.folder, step) for run in (finished, one)]
        assert rows[0] == rows[1] and len(rows[0]) == 4
        assert {row["weight_version"] for row in rows[0]} == {step + 1}
        assert all(row["label"].startswith("The answer is ") for row in rows[0])


def read_predictions(folder: Path, step: int) -> list[dict[str, object]]:
    path = folder / "predict" / f"predictions_step_{step}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]
