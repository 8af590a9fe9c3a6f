# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Reports on the parts of one rollout, joined to what a rollout that was trained as a whole reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from relax.components.messages import AdvantageReport, ReleaseReport, TrainReport

Sums = Mapping[str, tuple[float, float]]


def join_releases(parts: Sequence[ReleaseReport]) -> ReleaseReport:
    """Groups in uid order, whatever the order of the parts."""
    maxima: dict[str, float] = {}
    for part in parts:
        for name, value in part.maxima.items():
            maxima[name] = max(value, maxima.get(name, value))
    groups = sorted((group for part in parts for group in part.groups), key=lambda group: group.group)
    return ReleaseReport(tuple(groups), _added(part.metrics for part in parts), maxima, parts[-1].last)


def join_advantages(parts: Sequence[AdvantageReport], parts_per_step: int) -> AdvantageReport:
    """`parts_per_step` parts, each with one divisor, make an optimizer step; a rollout in one part has all steps."""
    divisors = parts[0].divisors
    if len(parts) > 1:
        shares = [divisor for part in parts for divisor in part.divisors]
        divisors = tuple(sum(shares[i : i + parts_per_step]) for i in range(0, len(shares), parts_per_step))
    metrics = _added(part.metrics for part in parts)
    return AdvantageReport(divisors, metrics, any(part.stop_requested for part in parts))


def join_trainings(parts: Sequence[TrainReport]) -> TrainReport:
    """Gauges are those of the last step; engines are compared in the first part that has micro-batches."""
    seconds: dict[str, float] = {}
    checksums: dict[str, dict[tuple[int, int], str]] = {}
    for part in parts:
        for name, value in part.seconds.items():
            seconds[name] = seconds.get(name, 0.0) + value
        for column, by_uid in part.checksums.items():
            checksums.setdefault(column, {}).update(by_uid)
    differences = [part.engine_difference for part in parts if part.engine_difference is not None]
    return TrainReport(
        rollout_id=parts[0].rollout_id,
        num_steps=sum(part.num_steps for part in parts),
        metrics=_added(part.metrics for part in parts),
        gauges={name: value for part in parts for name, value in part.gauges.items()},
        seconds=seconds,
        engine_difference=differences[0] if differences else None,
        steps=tuple(step for part in parts for step in part.steps),
        checksums=checksums,
        stop_requested=any(part.stop_requested for part in parts),
    )


def _added(all_sums: Iterable[Sums]) -> dict[str, tuple[float, float]]:
    out: dict[str, tuple[float, float]] = {}
    for sums in all_sums:
        for name, (total, count) in sums.items():
            before = out.get(name, (0.0, 0.0))
            out[name] = (before[0] + total, before[1] + count)
    return out
