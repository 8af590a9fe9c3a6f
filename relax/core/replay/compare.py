# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a run recorded beside what was computed again, field by field, in the order in which a step computes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from relax.components.messages import TrainReport
from relax.schedule import events as ev
from relax.utils.jsonl import plain

# Copies of the trace, and functions of rewards and masks alone: in this order, with the same bits on every machine.
EXACT_EVERYWHERE = ("tokens", "media", "loss_mask", "rollout_logprobs", "weight_version", "advantages", "loss_weight")
BEFORE, AFTER = -1.0, math.inf  # the first optimizer step of a rollout, and the last one
TOLERANCE = 1e-3  # relative, of sums and norms where bits are not promised


@dataclass(frozen=True)
class Difference:
    """One number that is not what was recorded."""

    step: int
    field: str
    where: str  # sample, token, optimizer step or tensor
    recorded: str
    recomputed: str
    when: float = BEFORE  # optimizer step of the rollout

    def __str__(self) -> str:
        return f"step {self.step}: {self.field}, {self.where}: recorded {self.recorded}, found {self.recomputed}"

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "when"}


@dataclass
class Check:
    """One kind of field of one step."""

    name: str
    compared: int = 0
    skipped: str = ""  # why some or all of it was not compared
    differences: list[Difference] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        if self.differences:
            return f"DIFFERS {len(self.differences)}/{self.compared}"
        return f"= {self.compared}" if self.compared else "-"


@dataclass
class StepOutcome:
    step: int
    checks: list[Check] = field(default_factory=list)

    @property
    def first(self) -> Difference | None:
        """The earliest one: losses and gradients of several optimizer steps take turns."""
        found = [difference for check in self.checks for difference in check.differences]
        return min(found, key=lambda difference: difference.when, default=None)


def compare_columns(
    recorded: ev.Trained, checksums: Mapping[str, Mapping[tuple[int, int], str]], *, inexact: str
) -> list[Check]:
    """One check a column of what the trainer was given. `inexact` says why log-probs need not agree, "" if they must.

    Samples of other ranks than the first are not in the record and not compared.
    """
    checks = []
    for column in sorted(recorded.columns, key=_column_order):
        check = Check(column)
        checks.append(check)
        of_values = "returns" in recorded.columns  # advantages that a critic's forward decides
        if inexact and (column not in EXACT_EVERYWHERE or (of_values and column == "advantages")):
            check.skipped = inexact
            continue
        text, found = recorded.columns[column], checksums.get(column, {})
        for place, sample in enumerate(recorded.samples):
            group, _, index = sample.partition(".")
            before = text[8 * place : 8 * place + 8]
            after = found.get((int(group), int(index)), ev.NO_CHECKSUM)
            check.compared += 1
            if before != after:
                check.differences.append(
                    Difference(recorded.rollout_id, column, f"sample g{sample}", f"crc32 {before}", f"crc32 {after}")
                )
    return checks


def _column_order(column: str) -> tuple[int, str]:
    exact = EXACT_EVERYWHERE
    return (exact.index(column) if column in exact else len(exact), column)


def compare_updates(
    recorded: ev.Trained, divisors: Sequence[float], steps: Sequence[Mapping[str, Any]], *, inexact: str, ranks: int
) -> list[Check]:
    """Loss sums and gradients of every optimizer step."""
    loss, gradient = Check("loss"), Check("gradient")
    if len(recorded.steps) != len(steps):
        where = "optimizer steps"
        loss.differences.append(
            Difference(recorded.rollout_id, "loss", where, str(len(recorded.steps)), str(len(steps)))
        )
    for number, (before, divisor, after) in enumerate(zip(recorded.steps, divisors, steps, strict=False)):
        bits = not inexact
        _numbers(loss, recorded.rollout_id, number, {"divisor": (before["divisor"], divisor)}, bits=True)
        for kind in ("sums", "counts"):
            pairs = _pairs(f"{kind}/", before[kind], after[kind])
            _numbers(loss, recorded.rollout_id, number, pairs, bits=bits or kind == "counts")
        if ranks == 1:
            pairs = _pairs("gradient/", before["gradient"], after["gradient"])
            _numbers(gradient, recorded.rollout_id, number, pairs, bits=bits)
        else:
            gradient.skipped = f"each of {ranks} ranks had a piece of it; its norm over all is compared"
        norms = {name: (before[name], after[name]) for name in ("grad_norm", "lr")}
        _numbers(gradient, recorded.rollout_id, number, norms, bits=bits)
    return [loss, gradient]


def compare_critic(
    recorded: ev.Trained, divisors: Sequence[float], report: TrainReport, *, inexact: str, ranks: int
) -> list[Check]:
    """The critic's values and returns, its loss sums and its gradients."""
    own = replace(recorded, columns={n: c for n, c in recorded.columns.items() if n in ("values", "returns")})
    checks = compare_columns(own, report.checksums, inexact=inexact)
    checks += compare_updates(recorded, divisors, report.steps, inexact=inexact, ranks=ranks)
    for check in checks:
        check.name = f"critic {check.name}"
    return checks


def compare_weights(
    step: int, version: int, recorded: Mapping[str, str], found: Mapping[str, str], *, inexact: str
) -> Check:
    """`version` is what the rollout `step` made, or what it started from."""
    check, when = Check("weights"), AFTER if version > step else BEFORE
    if inexact:
        check.skipped = inexact
        return check
    pairs = _pairs("weights/", recorded, found)
    for name, (before, after) in pairs.items():
        check.compared += 1
        if before != after:
            check.differences.append(Difference(step, name, f"version {version}", str(before), str(after), when))
    return check


def _pairs(prefix: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """{prefix + name: (recorded, recomputed)} of all names of both, in the recorded order."""
    names: Iterable[str] = dict.fromkeys((*before, *after))
    return {prefix + name: (before.get(name, "absent"), after.get(name, "absent")) for name in names}


def _numbers(check: Check, step: int, when: int, pairs: Mapping[str, tuple[Any, Any]], *, bits: bool) -> None:
    where = f"optimizer step {when}"
    for name, (before, after) in pairs.items():
        check.compared += 1
        if not _equal(plain(before), plain(after), bits):
            check.differences.append(Difference(step, name, where, repr(before), repr(after), when))


def _equal(before: Any, after: Any, bits: bool) -> bool:
    if before == after or bits:
        return before == after
    return isinstance(before, float) and isinstance(after, float) and close(before, after)


def close(before: float, after: float) -> bool:
    """Equal as far as sums in another order are."""
    return math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=1e-6)
