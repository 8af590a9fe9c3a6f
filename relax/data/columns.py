# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Columns of a group on the bus and in the trace: per sample, flat with offsets.

With S samples in the group, T total tokens over them and R total response tokens:

    tokens          int32   [T]   prompt + response ids, media expanded
    token_offsets   int64   [S+1]
    prompt_len      int32   [S]
    response_len    int32   [S]
    loss_mask       uint8   [R]
    rollout_logprobs float32 [R]  nats, of the distribution really sampled from; 0.0 on observations
    weight_version  int32   [R]   -1 on observations
    reward, raw_reward float64 [S]
    status, finish  uint8   [S]   see STATUS and FINISH
    matched_stop    int32   [S]   stop id, -1 when none or a string
    truncated, removed uint8 [S]
    group           int64   [1]
    index           int64   [S]

A role's own table holds response-aligned columns `[R]` in the same sample order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from relax.utils.errors import InternalError
from relax.utils.types import MODALITIES, MediaFeatures, Sample

STATUS = (
    Sample.Status.PENDING,
    Sample.Status.COMPLETED,
    Sample.Status.TRUNCATED,
    Sample.Status.ABORTED,
    Sample.Status.FAILED,
)
FINISH = (None, "stop", "length", "abort")


def check_sample(sample: Sample, *, source: str) -> None:
    """Raise ValueError, naming `source` (the function that filled it), unless lengths and kinds agree."""
    who = f"{source}: sample {sample.group_index}.{sample.index}"
    length = sample.response_length
    if length < 0 or length > len(sample.tokens):
        raise ValueError(f"{who}: response_length {length} does not fit {len(sample.tokens)} tokens")
    for name in ("loss_mask", "rollout_log_probs", "weight_versions"):
        values = getattr(sample, name)
        if values is None:
            raise ValueError(f"{who}: {name} is missing; it needs one entry per response token ({length})")
        if len(values) != length:
            raise ValueError(f"{who}: {name} has {len(values)} entries for {length} response tokens")
    if any(m not in (0, 1) for m in sample.loss_mask or ()):
        raise ValueError(f"{who}: loss_mask holds values other than 0 and 1")
    if not np.isfinite(np.asarray(sample.rollout_log_probs, np.float64)).all():
        raise ValueError(f"{who}: rollout_log_probs holds a NaN or an infinity")


def group_columns(
    samples: Sequence[Sample], rewards: Sequence[float], raw_rewards: Sequence[float]
) -> dict[str, np.ndarray]:
    """Columns of the `rollout` table for one whole group, samples in index order."""
    for sample in samples:
        check_sample(sample, source="group_columns")

    def flat(name: str, dtype: type) -> np.ndarray:
        return np.concatenate([np.asarray(getattr(s, name), dtype) for s in samples] or [np.zeros(0, dtype)])

    lengths = [len(s.tokens) for s in samples]
    stops = [s.matched_stop if isinstance(s.matched_stop, int) else -1 for s in samples]
    return {
        "tokens": flat("tokens", np.int32),
        "token_offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "prompt_len": np.asarray([s.prompt_length for s in samples], np.int32),
        "response_len": np.asarray([s.response_length for s in samples], np.int32),
        "loss_mask": flat("loss_mask", np.uint8),
        "rollout_logprobs": flat("rollout_log_probs", np.float32),
        "weight_version": flat("weight_versions", np.int32),
        "reward": np.asarray(rewards, np.float64),
        "raw_reward": np.asarray(raw_rewards, np.float64),
        "status": np.asarray([STATUS.index(s.status) for s in samples], np.uint8),
        "finish": np.asarray(
            [FINISH.index(s.finish_reason) if s.finish_reason in FINISH else 1 for s in samples], np.uint8
        ),
        "matched_stop": np.asarray(stops, np.int32),
        "truncated": np.asarray([s.status is Sample.Status.TRUNCATED for s in samples], np.uint8),
        "removed": np.asarray([s.remove_sample for s in samples], np.uint8),
        "group": np.asarray([samples[0].group_index], np.int64),
        "index": np.asarray([s.index for s in samples], np.int64),
    }


def shared_media(
    samples: Sequence[Sequence[MediaFeatures]],
) -> tuple[tuple[MediaFeatures, ...], tuple[tuple[int, ...], ...]]:
    """Distinct items of a group's samples, and which of them each sample has, in order; () when all have all of them.

    Samples differ where a generate function adds media in later turns.
    """
    distinct: dict[tuple[str, str], int] = {}
    items: list[MediaFeatures] = []
    for item in (item for sample in samples for item in sample):
        if (item.kind, item.sha256) not in distinct:
            distinct[item.kind, item.sha256] = len(items)
            items.append(item)
    places = tuple(tuple(distinct[item.kind, item.sha256] for item in sample) for sample in samples)
    if len(set(places)) == 1 and places[0] == tuple(range(len(items))):
        return tuple(items), ()
    return tuple(items), places


def media_columns(features: Sequence[MediaFeatures], places: Sequence[Sequence[int]] = ()) -> dict[str, np.ndarray]:
    """Columns of the `media` table: the items of one group, and which of them each sample has (see `shared_media`)."""
    columns: dict[str, np.ndarray] = {
        "kind": np.asarray([MODALITIES.index(f.kind) for f in features], np.uint8),
        "num_tokens": np.asarray([f.num_tokens for f in features], np.int32),
        "sha256": np.asarray([list(bytes.fromhex(f.sha256)) for f in features], np.uint8).reshape(len(features), 32),
    }
    for place, item in enumerate(features):
        for name, array in item.tensors.items():
            columns[f"{place}:{name}"] = array
    if places:
        columns["sample_items"] = np.asarray([item for sample in places for item in sample], np.int32)
        columns["sample_offsets"] = np.cumsum([0, *map(len, places)]).astype(np.int64)
    return columns


def media_from_columns(columns: Mapping[str, np.ndarray]) -> list[MediaFeatures]:
    """The items that `media_columns` was given."""
    out = []
    for place, kind in enumerate(columns["kind"].tolist()):
        prefix = f"{place}:"
        tensors = {k[len(prefix) :]: v for k, v in columns.items() if k.startswith(prefix)}
        sha = bytes(columns["sha256"][place].tolist()).hex()
        out.append(MediaFeatures(MODALITIES[kind], sha, tensors, int(columns["num_tokens"][place])))
    return out


def media_places(columns: Mapping[str, np.ndarray]) -> list[list[int]]:
    """Which of the items each sample has; [] when all have all of them."""
    if "sample_items" not in columns:
        return []
    items, offsets = columns["sample_items"].tolist(), columns["sample_offsets"].tolist()
    return [items[start:end] for start, end in itertools.pairwise(offsets)]


@dataclass
class TrainSequence:
    """One sample as training sees it. `R` = response tokens.

    `columns` are response-aligned float32 `[R]` arrays by name: `rollout_logprobs`, `weight_version`, `ref_logprobs`,
    `old_logprobs`, `advantages`, `values`, `returns`, `loss_weight`, ...
    """

    group: int
    index: int  # equal for the samples that one generate call fanned out
    tokens: np.ndarray  # int32 [T]
    prompt_len: int
    loss_mask: np.ndarray  # uint8 [R]
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    media: tuple[MediaFeatures, ...] = ()
    place: int | None = None  # among all samples of the group, fan-out included; None: the index

    @property
    def uid(self) -> tuple[int, int]:
        return (self.group, self.index if self.place is None else self.place)

    @property
    def response_len(self) -> int:
        return len(self.tokens) - self.prompt_len


RESPONSE_COLUMNS = (
    "rollout_logprobs",
    "weight_version",
)  # response-aligned columns of the rollout table that training reads


def sequences(
    rollout: Mapping[str, np.ndarray],
    *role_tables: Mapping[str, np.ndarray],
    media: Sequence[MediaFeatures] = (),
    places: Sequence[Sequence[int]] = (),
) -> Iterator[TrainSequence]:
    """Split one group's `rollout` columns, joined with other roles' response-aligned columns, into sequences.

    `places` says which items of `media` each sample has; without it each has all of them.
    """
    ends = np.cumsum(rollout["response_len"].astype(np.int64))
    total = int(ends[-1]) if len(ends) else 0
    aligned = {name: rollout[name] for name in RESPONSE_COLUMNS}
    for table in role_tables:
        aligned.update(table)
    for name, values in aligned.items():
        if len(values) != total:
            raise InternalError(
                f"group {int(rollout['group'][0])}: column {name} has {len(values)} entries for {total} tokens"
            )
    offsets = rollout["token_offsets"]
    for place, end in enumerate(ends.tolist()):
        start = end - int(rollout["response_len"][place])
        yield TrainSequence(
            group=int(rollout["group"][0]),
            index=int(rollout["index"][place]),
            tokens=rollout["tokens"][offsets[place] : offsets[place + 1]],
            prompt_len=int(rollout["prompt_len"][place]),
            loss_mask=rollout["loss_mask"][start:end],
            columns={name: np.asarray(values[start:end], np.float32) for name, values in aligned.items()},
            media=tuple(media[item] for item in places[place]) if places else tuple(media),
            place=place,
        )
