# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What of a run folder's records counts after a resume further back."""

from __future__ import annotations

from pathlib import Path

from relax.core.resume import set_results_aside
from relax.utils.jsonl import read_jsonl


def test_results_and_metrics_of_rollouts_that_are_trained_again_are_set_aside(tmp_path: Path):
    for kind in ("train", "eval"):
        folder = tmp_path / "rollout_result" / kind
        folder.mkdir(parents=True)
        for number in (1, 2, 3, 10):
            (folder / f"{number}.jsonl").write_text(f"{kind}{number}\n")
    metrics = tmp_path / "metrics.jsonl"
    trained = "".join(f'{{"step":{step},"perf/step_s":1.5}}\n' for step in range(4))
    evaluated = "".join(f'{{"step":{version},"eval/weight_version":{version}}}\n' for version in (0, 2, 3))
    late = "".join(f'{{"step":{step},"custom/x":1.0}}\n' for step in (1, 2))  # reported after the row of their step
    metrics.write_text(trained + late + evaluated + '{"step":4,"perf/st')  # a crash cut the last line
    set_results_aside(tmp_path, metrics, 2)
    # rollouts 0 and 1 are contained, so the evaluation of version 2 stays and that of version 3 doesn't
    names = lambda kind: sorted(path.name for path in (tmp_path / "rollout_result" / kind).iterdir())  # noqa: E731
    assert names("train") == ["1.jsonl", "10.jsonl.undone", "2.jsonl.undone", "3.jsonl.undone"]
    assert names("eval") == ["1.jsonl", "10.jsonl.undone", "2.jsonl", "3.jsonl.undone"]
    kept = [(row["step"], "perf/step_s" in row) for row in read_jsonl(metrics)]
    assert kept == [(0, True), (1, True), (1, False), (0, False), (2, False)]
    assert [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl.undone")] == [2, 3, 2, 3]
    # a start without a checkpoint keeps nothing, not even the evaluation before training
    (tmp_path / "rollout_result/eval/0.jsonl").write_text("eval0\n")
    set_results_aside(tmp_path, metrics, 0)
    assert not [name for kind in ("train", "eval") for name in names(kind) if name.endswith(".jsonl")]
    assert list(read_jsonl(metrics)) == []
    # a second resume keeps what the first has set aside
    (tmp_path / "rollout_result/train/2.jsonl").write_text("again\n")
    set_results_aside(tmp_path, metrics, 2)
    assert (tmp_path / "rollout_result/train/2.jsonl.undone").read_text() == "train2\nagain\n"
