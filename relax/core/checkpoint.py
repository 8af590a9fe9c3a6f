# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Checkpoints of a whole run: `iter_XXXXXXX/` beside the tracker `latest_checkpointed_iteration.txt`.

A checkpoint is written aside, synced, renamed, and only then named by the tracker, so a crash at any moment leaves the
old one whole. `run_state.json` holds what the controller needs: how many rollouts are contained, how many prompts
were drawn, and which admitted groups are not contained. A resume reads finished ones back from the trace and admits
the others again, all under the same ids.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from relax.components.messages import AcceptedGroup, GroupOrder, StoredGroup
from relax.distributed.trace import TraceEntry
from relax.utils.errors import ConfigError
from relax.utils.faults import pause_at

TRACKER = "latest_checkpointed_iteration.txt"
STATE = "run_state.json"


@dataclass(frozen=True)
class RunState:
    """The controller's part of a checkpoint that contains rollouts 0 .. rollout_id."""

    rollout_id: int
    next_group: int
    prompts_drawn: int
    open_groups: tuple[GroupOrder, ...]  # admitted, not finished, not contained
    dataset_digest: str
    digest: str  # chained digest of all trained groups
    optimizer_steps: int = 0
    draw_again: tuple[tuple[int, int], ...] = ()  # (epoch, row) of prompts whose group was dropped unused
    finished_groups: tuple[StoredGroup, ...] = ()  # finished, not contained; in the order in which they are bound

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict) -> RunState:
        groups = tuple(GroupOrder(**order) for order in data["open_groups"])
        again = tuple((epoch, row) for epoch, row in data.get("draw_again", ()))
        finished = tuple(_stored_group(group) for group in data.get("finished_groups", ()))
        return cls(**{**data, "open_groups": groups, "draw_again": again, "finished_groups": finished})


def _stored_group(data: dict) -> StoredGroup:
    accepted = data["accepted"]
    entry = TraceEntry(**accepted["entry"])
    return StoredGroup(GroupOrder(**data["order"]), data["version"], AcceptedGroup(**{**accepted, "entry": entry}))


def iteration_folder(root: Path, rollout_id: int) -> Path:
    return root / f"iter_{rollout_id:07d}"


def latest_checkpoint(root: Path) -> tuple[Path, RunState] | None:
    """The checkpoint that the tracker names, or None without a tracker. Raises ConfigError when it is not whole."""
    tracker = root / TRACKER
    if not tracker.exists():
        return None
    text = tracker.read_text().strip()
    if not text.isdecimal():
        raise ConfigError(f"--load {root}: {TRACKER} holds {text!r}, expected the number of a rollout")
    folder = iteration_folder(root, int(text))
    if not (folder / STATE).exists():
        raise ConfigError(f"--load {root}: {TRACKER} names {folder.name}, which has no {STATE}; was it moved?")
    return folder, RunState.from_json(json.loads((folder / STATE).read_text()))


def first_rollout(explicit: int | None, state: RunState | None) -> int:
    """The number of the first round: --start-rollout-id, else the one after the checkpoint's, else 0."""
    if explicit and state is None:
        raise ConfigError(
            f"--start-rollout-id {explicit} renumbers a resumed run, and --load holds no checkpoint ({TRACKER}): "
            "leave it out, or load a run folder that has one"
        )
    if explicit is not None:
        return explicit
    return 0 if state is None else state.rollout_id + 1


async def write_checkpoint(root: Path, state: RunState, save_model: Callable[[str], Awaitable[None]]) -> Path:
    """Write one checkpoint: model and optimizer by `save_model(folder)`, then the state, then the tracker."""
    root.mkdir(parents=True, exist_ok=True)
    final = iteration_folder(root, state.rollout_id)
    aside = root / f".{final.name}.partial"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    await save_model(str(aside / "model"))
    await pause_at("checkpoint")
    write_synced(aside / STATE, json.dumps(state.to_json(), indent=1))
    old = root / f".{final.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():  # a run that was resumed further back reaches the same rollout again
        os.rename(final, old)
    os.rename(aside, final)
    _sync_folder(root)
    shutil.rmtree(old, ignore_errors=True)
    write_synced(root / f".{TRACKER}", str(state.rollout_id))
    os.rename(root / f".{TRACKER}", root / TRACKER)
    _sync_folder(root)
    return final


def write_synced(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
