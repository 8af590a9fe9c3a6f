# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A step's metrics as a Prometheus text page. `{...}` of a metric's name becomes a label.

`perf/wait_s/actor` -> `relax_perf_wait_s{role="actor"}`. A name that would then be taken by another metric says its
labels: `rollout/dropped_groups/stale` -> `relax_rollout_dropped_groups_by_reason{reason="stale"}`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from relax.utils.metrics import TABLE, MetricSpec, find_spec

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def _bare(name: str) -> str:
    """The name without its placeholders, in Prometheus's letters."""
    text = PLACEHOLDER.sub("", name.replace("@", "/at"))
    return "relax_" + "_".join(part for part in re.split(r"[^A-Za-z0-9]+", text) if part)


def family_of(spec: MetricSpec) -> str:
    """The name of a metric's family; each entry of the table has its own."""
    bare, labels = _bare(spec.name), PLACEHOLDER.findall(spec.name)
    taken = any(_bare(other.name) == bare for other in TABLE if other is not spec)
    return f"{bare}_by_{'_'.join(labels)}" if labels and taken else bare


def labels_of(spec: MetricSpec, name: str) -> dict[str, str]:
    """What stands for the placeholders in a name."""
    pieces = [
        f"(?P<{piece}>[^/]+)" if place % 2 else re.escape(piece)
        for place, piece in enumerate(PLACEHOLDER.split(spec.name))
    ]
    found = re.fullmatch("".join(pieces), name)
    return found.groupdict() if found else {}


def number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def sample(family: str, labels: Mapping[str, str], value: float) -> str:
    escaped = [
        f'{name}="{text}"'
        for name, raw in labels.items()
        for text in [raw.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")]
    ]
    return f"{family}{'{' + ','.join(escaped) + '}' if escaped else ''} {number(value)}"


def family(name: str, meaning: str, samples: Iterable[str]) -> list[str]:
    """A family's lines. All are gauges: a count here is that of one step."""
    text = meaning.replace("\\", r"\\").replace("\n", r"\n")
    return [f"# HELP {name} {text}", f"# TYPE {name} gauge", *samples]


def page(values: Mapping[str, float], own: Mapping[str, tuple[str, float]]) -> str:
    """`values` are declared metrics; `own` is {family: (meaning, value)} of further numbers."""
    samples: dict[MetricSpec, list[str]] = {}
    for name, value in values.items():
        spec = find_spec(name)
        samples.setdefault(spec, []).append(sample(family_of(spec), labels_of(spec, name), value))
    lines: list[str] = []
    for spec in TABLE:
        if spec in samples:
            lines += family(family_of(spec), f"{spec.meaning} ({spec.unit})", samples[spec])
    for name, (meaning, value) in own.items():
        lines += family(name, meaning, [sample(name, {}, value)])
    return "".join(line + "\n" for line in lines)
