# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Prompts of recorded groups, prepared again from the data set: the trace keeps their ids, not their media."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from relax.core.replay.compare import Difference
from relax.core.replay.record import RunRecord
from relax.core.replay.rerun import replay_config
from relax.core.rollout_parts import Preparer, open_prompts
from relax.data.chat import PreparedPrompt
from relax.distributed.bus.base import Block
from relax.utils.errors import DataError


class Prompts:
    """Reads the run's data set. Opened at the first prompt."""

    def __init__(self, record: RunRecord) -> None:
        self._record, self._config = record, replay_config(record.config)
        self._dataset = self._preparer = None

    async def prepare(self, group: int) -> PreparedPrompt:
        if group not in self._record.rows:
            raise DataError(f"the journal does not say which prompt group {group} has", where="journal/driver.jsonl")
        if self._dataset is None or self._preparer is None:
            self._dataset, self._preparer = open_prompts(self._config), Preparer(self._config)
        _, row = self._record.rows[group]
        if row >= len(self._dataset):
            raise DataError(f"group {group} had row {row}, and the data now has {len(self._dataset)} rows")
        return await self._preparer.prepare(self._dataset.row(row))

    async def with_media(self, step: int, blocks: Iterable[Block]) -> tuple[dict[int, list], list[Difference]]:
        """({group: features} of prompts that have media, prompts whose ids are not the recorded ones).

        Raises DataError for a group to whose samples a generate function added media: those are recorded nowhere.
        """
        features: dict[int, list] = {}
        changed: list[Difference] = []
        if self._config.data.multimodal_keys:
            blocks = list(blocks)
            notes = self._record.notes([block.uid for block in blocks])
            for block in blocks:
                prepared = await self.prepare(block.uid)
                if len(notes.get(block.uid, {}).get("media", ())) > len(prepared.features):
                    message = "its generate function added media to the prompt's, which the trace does not keep"
                    raise DataError(f"group {block.uid} of step {step} cannot be computed again: {message}")
                changed += compare_prompt(step, block, prepared)
                if prepared.features:
                    features[block.uid] = list(prepared.features)
        return features, changed

    def close(self) -> None:
        if self._dataset is not None:
            self._dataset.close()
        if self._preparer is not None:
            self._preparer.close()


def compare_prompt(step: int, block: Block, prepared: PreparedPrompt) -> list[Difference]:
    """The first id in which the data set's prompt is not the recorded one: the data has changed since the run."""
    before, after = block.columns["tokens"][: int(block.columns["prompt_len"][0])], np.asarray(prepared.expanded_ids)
    if np.array_equal(before, after):
        return []
    place = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    shown = [str(ids[place]) if place < len(ids) else f"{len(ids)} tokens in all" for ids in (before, after)]
    return [Difference(step, "prompt (--prompt-data has changed)", f"group g{block.uid} token {place}", *shown)]
