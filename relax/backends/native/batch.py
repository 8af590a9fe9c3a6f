# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The running responses as columns, so that one decode step costs no Python per response.

Slot i of every array belongs to one response; slots 0 .. size-1 are in use, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relax.backends.native.input_scores import InputAsked, InputScores
from relax.backends.native.protocol import SamplingParams
from relax.backends.native.rows import Prefix
from relax.backends.native.sampler import SamplingBatch
from relax.utils.types import MediaFeatures

KEY_BUCKET = 16  # key lengths are rounded up to this many rows


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model sees it."""

    ids: np.ndarray  # int64 [P], media expanded
    positions: np.ndarray  # int64 [P], or [3, P] with multimodal rotary positions
    next_position: int  # rotary position of the first response token
    key: Any  # equal for prompts that may share KV rows
    media: tuple[MediaFeatures, ...] = ()

    @classmethod
    def of_text(cls, ids: Sequence[int]) -> Prompt:
        array = np.asarray(ids, np.int64)
        return cls(array, np.arange(len(array), dtype=np.int64), len(array), array.tobytes())

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(eq=False)
class Response:
    """One response from submission to its end. Token arrays are filled when it leaves the batch."""

    rid: str
    parent_rid: str
    prompt: Prompt
    params: SamplingParams
    seed: int
    stop_ids: tuple[int, ...]  # end of sequence and stop_token_ids
    asked: InputAsked | None = None  # about the prompt
    token_ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    log_probs: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    version_starts: list[tuple[str, int]] = field(default_factory=list)
    input_scores: InputScores | None = None
    finish: dict[str, Any] | None = None
    prefix: Prefix | None = None
    cached_tokens: int = 0
    retractions: int = 0
    arrival: int = 0
    submitted_at: float = 0.0  # monotonic seconds
    admitted_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    reply: Any = None  # the engine's future

    @property
    def is_asked(self) -> bool:
        """About its prompt, and has no answer yet."""
        return self.asked is not None and self.input_scores is None


class RunningBatch:
    """Columns of the running responses."""

    _COLUMNS = (
        "token",
        "position",
        "length",
        "prefix_length",
        "place",
        "seed",
        "temperature",
        "top_k",
        "top_p",
        "max_new",
        "min_new",
        "keys",
        "stops",
        "out_ids",
        "out_log_probs",
        "arrival",
        "watches_text",
    )

    def __init__(self, capacity: int, pad_row: int) -> None:
        self.capacity, self.size, self._pad_row = capacity, 0, pad_row
        self.responses: list[Response] = []
        self.token = np.zeros(capacity, np.int64)  # sampled last, not yet fed
        self.position = np.zeros(capacity, np.int64)  # its rotary position
        self.length = np.zeros(capacity, np.int64)  # KV rows filled
        self.prefix_length = np.zeros(capacity, np.int64)
        self.place = np.zeros(capacity, np.int64)  # tokens sampled so far
        self.seed = np.zeros(capacity, np.uint64)
        self.temperature = np.zeros(capacity, np.float32)
        self.top_k = np.zeros(capacity, np.int64)
        self.top_p = np.ones(capacity, np.float64)
        self.max_new = np.zeros(capacity, np.int64)
        self.min_new = np.zeros(capacity, np.int64)
        self.arrival = np.zeros(capacity, np.int64)
        self.watches_text = np.zeros(capacity, np.bool_)  # has stop strings
        self.keys = np.full((capacity, 128), pad_row, np.int64)
        self.stops = np.full((capacity, 2), -1, np.int64)
        self.out_ids = np.zeros((capacity, 64), np.int64)
        self.out_log_probs = np.zeros((capacity, 64), np.float32)

    def add(self, response: Response, prefix: Prefix, own_rows: np.ndarray) -> int:
        """Put a prefilled response (prompt and the tokens it already has) into the next slot."""
        slot, count = self.size, len(response.token_ids)
        start, filled = len(prefix.rows), len(prefix.rows) + len(own_rows)
        self._reserve(filled + 1, count + 1, len(response.stop_ids))
        params = response.params
        self.keys[slot] = self._pad_row
        self.keys[slot, :start] = prefix.rows
        self.keys[slot, start:filled] = own_rows
        self.length[slot], self.prefix_length[slot] = filled, start
        self.place[slot], self.arrival[slot] = count, response.arrival
        self.position[slot] = response.prompt.next_position + count - 1
        self.seed[slot] = response.seed
        self.temperature[slot], self.top_k[slot], self.top_p[slot] = params.temperature, params.top_k, params.top_p
        self.watches_text[slot] = bool(params.stop)
        self.max_new[slot], self.min_new[slot] = params.max_new_tokens, params.min_new_tokens
        self.stops[slot] = -1
        self.stops[slot, : len(response.stop_ids)] = response.stop_ids
        self.out_ids[slot, :count] = response.token_ids
        self.out_log_probs[slot, :count] = response.log_probs
        self.responses.append(response)
        self.size += 1
        return slot

    def remove(self, slot: int) -> tuple[Response, np.ndarray]:
        """Take a response out with its tokens; returns it and the KV rows that it alone used."""
        response, count = self.responses[slot], int(self.place[slot])
        response.token_ids = self.out_ids[slot, :count].copy()
        response.log_probs = self.out_log_probs[slot, :count].copy()
        rows = self.keys[slot, self.prefix_length[slot] : self.length[slot]].copy()
        last = self.size - 1
        if slot != last:
            for name in self._COLUMNS:
                column = getattr(self, name)
                column[slot] = column[last]
            self.responses[slot] = self.responses[last]
        self.responses.pop()
        self.size = last
        return response, rows

    def key_length(self) -> int:
        """Bucketed key length that holds every running response and its next token."""
        longest = int(self.length[: self.size].max()) + 1
        return -(-longest // KEY_BUCKET) * KEY_BUCKET

    def feed(self, rows: np.ndarray) -> None:
        """Give each response the KV row of the token that is fed next."""
        self._reserve(int(self.length[: self.size].max()) + 1, int(self.place[: self.size].max()) + 1, 0)
        self.keys[np.arange(self.size), self.length[: self.size]] = rows
        self.length[: self.size] += 1

    def sampling(self, slots: np.ndarray) -> SamplingBatch:
        banned = (
            [
                (row, self.responses[slot].stop_ids)
                for row, slot in enumerate(slots.tolist())
                if self.place[slot] < self.min_new[slot]
            ]
            if (self.place[slots] < self.min_new[slots]).any()
            else []
        )
        return SamplingBatch(
            self.seed[slots], self.place[slots], self.temperature[slots], self.top_k[slots], self.top_p[slots], banned
        )

    def accept(self, slots: np.ndarray, ids: np.ndarray, log_probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Append one sampled token to each slot -> (hit a stop id, reached max_new), bool per slot."""
        place = self.place[slots]
        self.out_ids[slots, place] = ids
        self.out_log_probs[slots, place] = log_probs
        self.token[slots] = ids
        self.position[slots] += 1
        self.place[slots] = place + 1
        return (self.stops[slots] == ids[:, None]).any(1), place + 1 >= self.max_new[slots]

    def _reserve(self, keys: int, outputs: int, stops: int) -> None:
        if keys > self.keys.shape[1]:
            self.keys = _widened(self.keys, keys, self._pad_row)
        if outputs > self.out_ids.shape[1]:
            self.out_ids = _widened(self.out_ids, outputs, 0)
            self.out_log_probs = _widened(self.out_log_probs, outputs, 0)
        if stops > self.stops.shape[1]:
            self.stops = _widened(self.stops, stops, -1)


def _widened(array: np.ndarray, width: int, fill: int) -> np.ndarray:
    wide = np.full((array.shape[0], max(width, 2 * array.shape[1])), fill, array.dtype)
    wide[:, : array.shape[1]] = array
    return wide
