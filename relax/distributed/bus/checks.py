# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Refusals and texts that every bus shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relax.distributed.bus.base import Block, PartitionDropped, UnknownTable
from relax.utils.errors import InternalError

PLAIN_KINDS = "biuf"  # bool, signed, unsigned, float


def check_block(block: Block) -> None:
    """Raise InternalError for a column that is not a plain little-endian array of numbers or bools."""
    for name, array in block.columns.items():
        dtype = np.asarray(array).dtype
        if dtype.kind not in PLAIN_KINDS or dtype.str.startswith(">"):
            raise InternalError(
                f"uid {block.uid}: column {name!r} has dtype {dtype}; the bus carries little-endian numbers and bools"
            )


def known_table(producers: Mapping[str, str], table: str) -> None:
    """Raise `UnknownTable`, naming the tables that exist, unless a role is registered as the table's producer."""
    if table not in producers:
        known = ", ".join(f"{name} (by {role})" for name, role in sorted(producers.items()))
        raise UnknownTable(f"no role produces table {table!r}; known tables: {known or 'none'}")


def dropped(partition: str) -> PartitionDropped:
    return PartitionDropped(f"partition {partition} has been dropped; it takes and gives no blocks any more")


def describe_missing(
    partition: str, missing: Mapping[str, Sequence[int]], producers: Mapping[str, str], deadline_s: float
) -> str:
    """Text of a `BusTimeout`: what was waited for, how long, and who owes it. Long uid lists are cut to 8."""
    parts = []
    for table, uids in missing.items():
        shown = ", ".join(map(str, uids[:8])) + (f" and {len(uids) - 8} more" if len(uids) > 8 else "")
        parts.append(f"{partition}/{table}: uids {shown} (owed by role {producers[table]})")
    return f"waited {deadline_s:g} s for {'; '.join(parts)}"
