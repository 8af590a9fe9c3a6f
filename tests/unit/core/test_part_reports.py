# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Parts of a rollout report as the whole would have."""

from __future__ import annotations

from relax.components.messages import AdvantageReport, ReleasedGroup, ReleaseReport, TrainReport
from relax.core.part_reports import join_advantages, join_releases, join_trainings
from relax.engine.parity.difference import Difference

DIFFERENCE = Difference(0.1, 0.2, 0.5, 7)


def released(*numbers: int) -> tuple[ReleasedGroup, ...]:
    return tuple(ReleasedGroup(number, (4, 4), f"d{number}", False) for number in numbers)


def test_groups_of_parts_that_came_in_another_order_are_in_uid_order():
    first = ReleaseReport(
        released(4, 9), {"rollout/reward/mean": (1.0, 4.0)}, {"rollout/response_tokens/max": 3.0}, False
    )
    second = ReleaseReport(released(2, 7), {"rollout/reward/mean": (2.0, 4.0)}, {"rollout/response_tokens/max": 8.0})
    whole = join_releases([first, second])
    assert [g.group for g in whole.groups] == [2, 4, 7, 9]
    assert whole.metrics == {"rollout/reward/mean": (3.0, 8.0)}
    assert whole.maxima == {"rollout/response_tokens/max": 8.0}
    assert whole.last


def test_shares_of_the_parts_of_a_step_add_up_to_its_divisor():
    parts = [AdvantageReport((share,), {"rollout/advantage_abs/mean": (share, 1.0)}) for share in (4.0, 2.0, 5.0, 1.0)]
    assert join_advantages(parts, 2).divisors == (6.0, 6.0)
    assert join_advantages(parts, 4).divisors == (12.0,)
    assert join_advantages(parts, 2).metrics == {"rollout/advantage_abs/mean": (12.0, 4.0)}
    assert join_advantages([AdvantageReport((4.0, 6.0), {})], 1).divisors == (4.0, 6.0)  # a rollout in one part


def test_trainings_count_steps_once_and_keep_the_gauges_of_the_last():
    parts = [
        TrainReport(3, 0, {}, {}, {"data_wait": 1.0}, engine_difference=DIFFERENCE),
        TrainReport(3, 1, {"loss": (2.0, 4.0)}, {"lr": 0.1}, {"data_wait": 1.0, "step": 2.0}, steps=({"lr": 0.1},)),
        TrainReport(3, 1, {"loss": (1.0, 4.0)}, {"lr": 0.2}, {"step": 2.0}, steps=({"lr": 0.2},), stop_requested=True),
    ]
    whole = join_trainings(parts)
    assert (whole.rollout_id, whole.num_steps, whole.stop_requested) == (3, 2, True)
    assert whole.metrics == {"loss": (3.0, 8.0)}
    assert whole.gauges == {"lr": 0.2}
    assert whole.seconds == {"data_wait": 2.0, "step": 4.0}
    assert [step["lr"] for step in whole.steps] == [0.1, 0.2]
    assert whole.engine_difference is DIFFERENCE
