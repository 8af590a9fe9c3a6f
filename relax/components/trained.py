# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What one training rank has really trained, kept with its weights.

The rank writes it down from the rows that it was given, never from the journal or a plan: so it is evidence of its own
about what a checkpoint contains, and lost or doubled prompts show in it whoever has lost or doubled them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from relax.data.columns import TrainSequence

RECORD = np.dtype([("rollout", "<i4"), ("samples", "<i4"), ("group", "<i8"), ("prompt", "<u8")])
PATTERN = "trained-*.npy"  # one file a rank, beside the rank's weights


def prompt_hash(tokens: np.ndarray) -> int:
    """64 bits of the prompt's token ids, media expanded."""
    digest = hashlib.blake2b(np.ascontiguousarray(tokens, "<i4").tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class TrainedLedger:
    """(rollout, samples, group, prompt) of every group that this rank has trained samples of, in order of training."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int]] = []
        self._loaded = np.zeros(0, RECORD)

    def add(self, rollout_id: int, sequences: Iterable[TrainSequence]) -> None:
        """Note sequences whose gradients were taken."""
        samples: dict[int, int] = {}
        prompts: dict[int, int] = {}
        for sequence in sequences:
            samples[sequence.group] = samples.get(sequence.group, 0) + 1
            if sequence.group not in prompts:
                prompts[sequence.group] = prompt_hash(sequence.tokens[: sequence.prompt_len])
        self._rows += [(rollout_id, samples[group], group, prompts[group]) for group in samples]

    def records(self, before: int) -> np.ndarray:
        """`RECORD`s of the rollouts before rollout `before`; one group may have several, of streamed parts."""
        new = np.array(self._rows, RECORD)
        return np.concatenate([self._loaded, new[new["rollout"] < before]])

    def save(self, folder: Path, rank: int, before: int) -> None:
        with open(folder / PATTERN.replace("*", str(rank)), "wb") as file:
            np.save(file, self.records(before))
            file.flush()
            os.fsync(file.fileno())

    def load(self, folder: Path, rank: int) -> None:
        """Rank 0 takes over what all ranks have written, whatever their number is now."""
        self._rows = []
        self._loaded = read_trained(folder) if rank == 0 else np.zeros(0, RECORD)


def read_trained(folder: Path) -> np.ndarray:
    """`RECORD`s of all ranks of the checkpointed model in `folder`; none for a checkpoint that has no such file."""
    parts = [np.load(path) for path in sorted(folder.glob(PATTERN))]
    return np.concatenate([np.zeros(0, RECORD), *parts])
