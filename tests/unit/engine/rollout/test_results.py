# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Result files keep what a reader needs, whatever types user code leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from relax.engine.rollout.results import read_results, result_path, sample_row, write_results
from relax.utils.types import Sample


def test_rows_with_numpy_bytes_and_nan_are_written_and_read_back(tmp_path):
    """D9."""
    sample = Sample(
        prompt=[{"role": "user", "content": "hi"}],
        tokens=[1, 2, 3, 4, 5],
        response="ok",
        response_length=3,
        loss_mask=[1, 0, 1],
        weight_versions=[4, -1, 6],
        group_index=7,
        index=1,
        label={"image": b"\x00\xff", "n": np.int64(3)},
        reward={"score": np.float32(0.5), "other": float("nan")},
        metadata={"array": np.arange(2), "odd": object},
        status=Sample.Status.TRUNCATED,
        finish_reason="length",
    )
    path = result_path(tmp_path, "train", 12)
    assert write_results(path, [sample_row(sample, kept=True)]) == 1
    assert write_results(path, [sample_row(sample, kept=False)]) == 1
    first, second = read_results(path)
    assert path == tmp_path / "rollout_result" / "train" / "12.jsonl"
    assert (first["prompt_tokens"], first["response_tokens"], first["sampled_tokens"]) == (2, 3, 2)
    assert (first["first_version"], first["last_version"]) == (4, 6)
    assert first["label"] == {"image": {"$bytes": "AP8="}, "n": 3}
    assert first["reward"] == {"score": 0.5, "other": "nan"}
    assert first["metadata"] == {"array": [0, 1], "odd": repr(object)}
    assert (first["status"], first["finish_reason"]) == ("truncated", "length")
    assert (first["kept"], second["kept"]) == (True, False)


def test_every_line_is_strict_json(tmp_path):
    path = Path(tmp_path) / "r.jsonl"
    write_results(path, [sample_row(Sample(reward=float("inf")))])

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    assert json.loads(path.read_text(), parse_constant=refuse)["reward"] == "inf"


def test_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match="train or eval, got 'test'"):
        result_path(tmp_path, "test", 1)
