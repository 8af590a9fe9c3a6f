# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import json

import pytest

from relax.utils.errors import InternalError
from relax.utils.metric_collector import Collector
from relax.utils.metric_sinks import JsonlSink
from relax.utils.metrics import TABLE, Metrics, find_spec


def test_an_undeclared_name_raises():
    with pytest.raises(InternalError, match="'rollout/rewrad/mean' is not declared"):
        Metrics().mean("rollout/rewrad/mean", 1.0, 1)


def test_a_placeholder_stands_for_one_segment_only():
    assert find_spec("eval/digits/reward/mean").name == "eval/{dataset}/reward/mean"
    assert find_spec("eval/gsm8k/pass@4").name == "eval/{dataset}/pass@{k}"
    with pytest.raises(InternalError):
        find_spec("perf/wait_s/actor/0")


def test_a_metric_is_logged_as_the_kind_it_is_declared():
    with pytest.raises(InternalError, match="declared as a gauge, not as a mean"):
        Metrics().mean("train/lr", 1.0, 1)


def test_a_mean_over_unequal_parts_is_the_mean_of_all():
    # parts {1, 2, 3} and {10}: the mean of all four is 4, the mean of the parts' means would be 6
    metrics = Metrics()
    metrics.mean("rollout/reward/mean", 6.0, 3)
    metrics.mean("rollout/reward/mean", 10.0, 1)
    assert metrics.take().values() == {"rollout/reward/mean": 4.0}


def test_what_was_not_measured_is_absent_and_steps_do_not_leak():
    """U8."""
    metrics = Metrics()
    metrics.mean("train/kl_loss", 0.0, 0)
    metrics.count("rollout/dropped_groups", 0)
    assert metrics.take().values() == {"rollout/dropped_groups": 0.0}
    assert metrics.take().values() == {}


def test_counts_add_gauges_replace_and_maxima_keep_the_largest():
    metrics = Metrics()
    for value in (3, 1, 2):
        metrics.count("rollout/sampled_tokens", value)
        metrics.gauge("train/lr", value)
        metrics.maximum("rollout/staleness_steps/max", value)
    assert metrics.take().values() == {"rollout/sampled_tokens": 6, "train/lr": 2, "rollout/staleness_steps/max": 3}


def test_names_are_unique_and_explained():
    assert len({spec.name for spec in TABLE}) == len(TABLE)
    assert all(spec.unit and spec.meaning for spec in TABLE)


def test_a_jsonl_row_carries_step_and_names(tmp_path):
    metrics, collector = Metrics(), Collector([JsonlSink(tmp_path / "metrics.jsonl")])
    metrics.gauge("train/grad_norm", 0.25)
    collector.write(7, metrics.take())
    collector.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 7, "train/grad_norm": 0.25}
