# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From the values that a run folder keeps back to the `RunConfig` that wrote them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from relax.config.evaluation import EvalDataset
from relax.config.external.tables import ExternalFlag, ExternalFlags
from relax.config.flags import kinds
from relax.config.frozen import FrozenDict, freeze
from relax.config.run import RunConfig, default_values
from relax.config.sections import SECTIONS


def stored_config(
    entries: Mapping[str, Mapping[str, Any]],
    *,
    external: Iterable[Mapping[str, Any]] = (),
    eval_datasets: Iterable[Mapping[str, Any]] = (),
    custom: Mapping[str, Any] = FrozenDict(),
) -> RunConfig:
    """Nothing is derived again: every value counts as it was. A flag that the entries do not have has its default.

    Args:
        entries: {flag: {"value": ..., "origin": ...}}, from JSON; flags that this version does not know are left out.
        external, eval_datasets: the fields of each `ExternalFlag` and each `EvalDataset`.
        custom: keys of --custom-config-path.
    """
    sections, values = {}, dict(default_values())
    for name, section in SECTIONS.items():
        own = kinds(section)  # type: ignore[arg-type]
        for f in fields(section):  # type: ignore[arg-type]
            if f.name in entries:
                values[f.name] = _typed(entries[f.name]["value"], own[f.name].base)
        sections[name] = section(**{f.name: values[f.name] for f in fields(section)})  # type: ignore[arg-type]
    flags = [ExternalFlag(flag["table"], flag["name"], tuple(flag["values"])) for flag in external]
    origins = {name: entry["origin"] for name, entry in entries.items() if entry["origin"] != "default"}
    return RunConfig(
        **sections,
        external=ExternalFlags(tuple(flags)),
        eval_datasets=tuple(EvalDataset(**freeze(dataset)) for dataset in eval_datasets),
        custom=freeze(custom),
        origins=FrozenDict(origins),
    )


def _typed(value: Any, base: type) -> Any:
    """JSON has neither tuples nor infinite numbers."""
    if base is float and isinstance(value, str):
        return float(value)
    if base is float and isinstance(value, list):
        return tuple(float(item) for item in value)
    return freeze(value)
