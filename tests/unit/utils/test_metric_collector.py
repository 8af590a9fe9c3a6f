# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One row of a step from several roles: right sums, no value twice, and none lost in silence."""

from __future__ import annotations

import logging

import pytest

from relax.utils.metric_collector import KEPT_STEPS, MAX_CLIENTS, MAX_NAMES, Collector, Report
from relax.utils.metrics import MemorySink, Row


def row(**gauges: float) -> Row:
    """The run's own row; `steps=2` is train/optimizer_steps 2."""
    made = Row()
    for value in gauges.values():
        made.add("train/optimizer_steps", value)
    return made


def report(step: int | None, source: str = "tool", **facts) -> Report:
    values = {name.replace("__", "/"): value for name, value in facts.pop("values", {}).items()}
    return Report(source, values, step, **facts)


def collected() -> tuple[Collector, MemorySink]:
    sink = MemorySink()
    return Collector([sink]), sink


def test_rows_of_several_roles_are_one_row_with_the_declared_reductions():
    collector, sink = collected()
    own = Row()
    own.add("rollout/reward/mean", 6.0, 3.0)  # rewards 1, 2, 3
    own.add("rollout/response_tokens/max", 9.0)
    own.add("rollout/failed_samples", 2.0)
    own.add("train/lr", 0.5)
    collector.report(Report("a", {"rollout/reward/mean": (10.0, 1.0), "rollout/failed_samples": (1.0, 1.0)}, 4))
    collector.report(Report("b", {"rollout/response_tokens/max": (12.0, 1.0), "custom/depth": (7.0, 1.0)}, 4))
    values = collector.write(4, own)
    # mean of 1, 2, 3, 10 is 4 (the mean of the two means would be 6); max(9, 12); 2 + 1; gauges as they are
    assert values == {
        "rollout/reward/mean": 4.0,
        "rollout/response_tokens/max": 12.0,
        "rollout/failed_samples": 3.0,
        "train/lr": 0.5,
        "custom/depth": 7.0,
    }
    assert sink.rows == [(4, values)]
    assert (collector.refused, collector.missing) == (0, 0)


def test_reports_make_no_difference_to_a_run_without_them():
    """One path: the row is what the run measured, and the sinks get it once."""
    collector, sink = collected()
    assert collector.write(0, row(steps=1)) == {"train/optimizer_steps": 1.0}
    collector.close()
    assert sink.rows == [(0, {"train/optimizer_steps": 1.0})]
    assert not collector.has_reports


def test_two_values_of_one_gauge_are_a_conflict_that_is_counted_and_told(caplog):
    collector, _ = collected()
    collector.report(report(0, "a", values={"custom__x": (1.0, 1.0)}))
    collector.report(report(0, "a", values={"custom__x": (2.0, 1.0)}))  # its own: the last one stays
    collector.report(report(0, "b", values={"custom__x": (2.0, 1.0)}))  # agrees
    collector.report(report(0, "b", values={"train__lr": (9.0, 1.0)}))
    own = Row()
    own.add("train/lr", 1.0)
    with caplog.at_level(logging.WARNING):
        collector.report(report(0, "b", values={"custom__x": (5.0, 1.0)}))
        assert collector.refused == 1
        assert "custom/x is 2 by 'a' and 5 by 'b'" in caplog.text
        values = collector.write(0, own)
    assert values == {"custom/x": 2.0, "train/lr": 1.0}  # what the run measured is never overwritten
    assert collector.refused == 2
    assert "train/lr is 1 by 'run' and 9 by 'b'" in caplog.text


def test_an_undeclared_name_is_refused_and_the_rest_of_the_report_kept():
    collector, sink = collected()
    collector.report(report(0, values={"rollout__rewrad": (1.0, 1.0), "custom__x": (1.0, 1.0)}))
    collector.write(0, row(steps=1))
    assert sink.series("custom/x") == [1.0]
    assert collector.refused == 1


def test_what_comes_after_its_row_makes_a_later_line_that_says_the_metric_anew():
    collector, sink = collected()
    collector.report(report(0, values={"custom__calls__count": (5.0, 1.0)}))
    collector.write(0, row(steps=1))
    collector.report(report(0, values={"custom__calls__count": (3.0, 1.0), "custom__x": (1.0, 1.0)}))
    collector.write(1, row(steps=2))
    assert sink.rows[1:] == [
        (0, {"custom/calls/count": 8.0, "custom/x": 1.0}),  # 5 + 3, and nothing else of step 0
        (1, {"train/optimizer_steps": 2.0}),
    ]
    collector.report(report(0, values={"custom__calls__count": (2.0, 1.0)}))
    collector.write_late(1)  # another step
    assert len(sink.rows) == 3
    collector.write_late(0)  # /report_step
    assert sink.rows[3:] == [(0, {"custom/calls/count": 10.0})]
    collector.close()
    assert len(sink.rows) == 4


def test_a_conflict_after_the_row_makes_no_line():
    collector, sink = collected()
    collector.write(0, row(steps=1))
    collector.report(report(0, values={"train__optimizer_steps": (7.0, 1.0)}))
    collector.close()
    assert sink.rows == [(0, {"train/optimizer_steps": 1.0})]
    assert collector.refused == 1


def test_reports_without_a_step_belong_to_the_row_that_is_written_next_or_to_the_last_one():
    collector, sink = collected()
    collector.report(report(None, values={"custom__x__mean": (1.0, 1.0)}))
    collector.report(report(None, values={"custom__x__mean": (5.0, 3.0)}))
    collector.write(6, row(steps=1))
    collector.report(report(None, values={"custom__x__mean": (4.0, 1.0)}))
    collector.close()
    # (1 + 5) / 4; then (1 + 5 + 4) / 5
    assert [(step, values["custom/x/mean"]) for step, values in sink.rows] == [(6, 1.5), (6, 2.0)]


def test_an_evaluation_has_its_own_axis():
    collector, sink = collected()
    collector.report(report(2, values={"eval__toys__reward__mean": (3.0, 4.0)}))
    collector.write(2, row(steps=1))
    assert sink.rows == [(2, {"train/optimizer_steps": 1.0})]
    own = Row()
    own.add("eval/weight_version", 2.0)
    collector.write(2, own, "eval")
    assert sink.rows[1:] == [(2, {"eval/toys/reward/mean": 0.75, "eval/weight_version": 2.0})]
    collector.report(report(None, values={"eval__toys__reward__mean": (3.0, 4.0)}))
    assert collector.refused == 1  # which version it saw is not known


def test_early_reports_wait_and_steps_that_never_come_have_a_line_all_the_same():
    collector, sink = collected()
    for step in (3, 1):
        collector.report(report(step, values={"custom__x": (float(step), 1.0)}))
    collector.write(2, row(steps=1))
    assert sink.rows == [(1, {"custom/x": 1.0}), (2, {"train/optimizer_steps": 1.0})]
    collector.close()
    assert sink.rows[2:] == [(3, {"custom/x": 3.0})]


def test_what_is_held_is_bounded_and_the_rest_counted():
    collector, _ = collected()
    for step in range(KEPT_STEPS + 5):
        collector.report(report(step, values={"custom__x": (1.0, 1.0)}))
    assert collector.refused == 5
    collector, sink = collected()
    for step in range(KEPT_STEPS + 1):
        collector.write(step, row(steps=1))
    collector.report(report(0, values={"custom__x": (1.0, 1.0)}))  # one step too late
    assert collector.refused == 1
    collector.report(report(1, values={"custom__x": (1.0, 1.0)}))
    collector.write_late()
    assert (collector.refused, sink.rows[-1]) == (1, (1, {"custom/x": 1.0}))
    collector.report(Report("a", {f"custom/n{i}": (1.0, 1.0) for i in range(MAX_NAMES + 2)}, KEPT_STEPS + 1))
    assert collector.refused == 3


def test_clearing_forgets_what_is_not_written():
    collector, sink = collected()
    for step in (0, 1, None):
        collector.report(report(step, values={"custom__x__count": (1.0, 1.0)}))
    collector.clear(1)
    collector.write(0, row(steps=1))  # gets 1 of step 0 and 1 of the next row
    collector.write(1, row(steps=2))
    assert sink.series("custom/x/count") == [2.0]
    collector.report(report(2, values={"custom__x__count": (1.0, 1.0)}))
    collector.report(report(None, values={"custom__x__count": (1.0, 1.0)}))
    collector.clear(None)
    collector.close()
    assert sink.series("custom/x/count") == [2.0]


def test_values_that_did_not_arrive_are_known_by_what_the_client_says_it_had(caplog):
    collector, _ = collected()
    one = {"custom__x__count": (1.0, 1.0)}
    collector.report(report(0, client="p1", sent=1, values=one))
    collector.report(report(0, client="p1", sent=5, values=one))  # 3 of its 5 did not come
    collector.report(report(0, client="p2", sent=3, values=one))  # 2 of its 3
    collector.report(report(0, values=one))  # says nothing about it
    assert collector.missing == 5
    for number in range(MAX_CLIENTS):  # p1 and p2 are no longer followed, and stay counted
        collector.report(report(0, client=f"n{number}", sent=1, values=one))
    assert collector.missing == 5
    with caplog.at_level(logging.WARNING):
        collector.close()
    assert "missing=5" in caplog.text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_none_passes_as_it_is(value):
    collector, _ = collected()
    own = Row()
    own.add("train/loss", value, 1.0)
    assert repr(collector.write(0, own)["train/loss"]) == repr(value)
