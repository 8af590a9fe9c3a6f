# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From a prepared data-set row to the `Sample` that a group is made of."""

from __future__ import annotations

import copy

from relax.data.chat import PreparedPrompt
from relax.utils.types import Sample


def prompt_sample(
    prepared: PreparedPrompt, *, group: int, epoch: int = 0, row: int | None = None, generate_path: str | None = None
) -> Sample:
    """The prompt of a group. Its copies share media and features; ids, metadata and messages are each copy's own."""
    return Sample(
        group_index=group,
        epoch=epoch,
        row=row,
        prompt=prepared.prompt,
        label=prepared.label,
        metadata=copy.deepcopy(prepared.metadata),
        multimodal_inputs=prepared.multimodal_inputs(),
        multimodal_train_inputs=list(prepared.features) or None,
        tokens=list(prepared.expanded_ids),
        rollout_tokens=list(prepared.token_ids),
        generate_function_path=generate_path,
    )
