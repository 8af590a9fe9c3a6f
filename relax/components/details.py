# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`--dump-details`: everything that was on the bus in one rollout, as ordinary safetensors files.

    rollout_data/{id}.safetensors   groups as they were released: the tables rollout and media
    train_data/{id}.safetensors     after training: rollout, and the tables of the roles that added columns

A tensor is called `{group}/{table}/{column}`; the columns are those of `relax.data.columns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from relax.distributed.bus.base import Block, encode_block


class DetailsWriter:
    """Writes one file a rollout and kind, whole or not at all. Blocking. `tables` are those that roles add."""

    def __init__(self, folder: Path, tables: tuple[str, ...]) -> None:
        self._folder, self.tables = folder, tables

    def write(self, kind: str, rollout_id: int, tables: Mapping[str, Iterable[Block]]) -> Path:
        """`kind` is rollout_data or train_data."""
        columns = {
            f"{block.uid}/{table}/{name}": values
            for table, blocks in tables.items()
            for block in blocks
            for name, values in block.columns.items()
        }
        path = self._folder / kind / f"{rollout_id}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".partial")
        aside.write_bytes(encode_block(Block(rollout_id, columns)))
        aside.rename(path)
        return path
