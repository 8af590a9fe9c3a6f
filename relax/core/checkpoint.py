# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Checkpoints of a whole run: `iter_XXXXXXX/` beside the tracker `latest_checkpointed_iteration.txt`.

A checkpoint is written aside, synced, renamed, and only then named by the tracker, so a crash at any moment leaves the
old one whole. `run_state.json` holds what the controller needs: how many rollouts are contained, how many prompts
were drawn, and which admitted groups are not contained. A resume reads finished ones back from the trace and admits
the others again, all under the same ids. `contents.json` lists every other file of the checkpoint with its size and,
up to 16 MiB, its digest, so that a damaged one is noticed before it is loaded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from relax.components.messages import AcceptedGroup, GroupOrder, StoredGroup
from relax.distributed.trace import TraceEntry
from relax.utils.errors import ConfigError
from relax.utils.faults import pause_at

logger = logging.getLogger(__name__)

TRACKER = "latest_checkpointed_iteration.txt"
STATE = "run_state.json"
CONTENTS = "contents.json"
# folders: of the actor, of a reference that has been refreshed, of the critic
MODEL, REFERENCE, CRITIC = "model", "reference", "critic"
DIGEST_LIMIT_BYTES = 16 << 20  # larger files are compared by their size: reading them takes as long as loading them
PIECES, PIECE_BYTES = 64, 32 * 1024  # of a weight file, read to tell it from another


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
    journal: Mapping[str, int] = field(default_factory=dict)  # {writer: its lines below this sequence number count}
    reference_version: int = 0  # weight version of the reference; 0: the initial one, which is not stored
    order: str = ""  # digest of what decides which row comes when, in supervised fine-tuning
    reference: str = ""  # `weights_identity` of the initial reference; empty: there is none

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
    """The checkpoint of a run folder that the tracker names, or the one that `root` itself is; None without either.

    When the newest one is damaged, the newest older one that is whole is taken, with a warning. Raises ConfigError
    when there is none.
    """
    if (root / STATE).exists():
        if found := damage(root):
            raise ConfigError(f"--load {root}: {found}")
        return root, _read_state(root)
    tracker = root / TRACKER
    if not tracker.exists():
        return None
    text = tracker.read_text().strip()
    if not text.isdecimal():
        raise ConfigError(f"--load {root}: {TRACKER} holds {text!r}, expected the number of a rollout")
    newest = iteration_folder(root, int(text))
    found = damage(newest)
    if found is None:
        return newest, _read_state(newest)
    for folder in sorted(root.glob("iter_*"), reverse=True):
        if folder.name < newest.name and damage(folder) is None:
            logger.warning("%s: %s; going on at the older %s", newest.name, found, folder.name)
            return folder, _read_state(folder)
    raise ConfigError(f"--load {root}: {TRACKER} names {newest.name}, which cannot be loaded: {found}")


def _read_state(folder: Path) -> RunState:
    return RunState.from_json(json.loads((folder / STATE).read_text()))


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint's files, or None. One without a list of contents is taken as it is."""
    if not (folder / STATE).exists():
        return f"it has no {STATE}; was it moved?"
    if not (folder / CONTENTS).exists():
        return None
    for name, listed in json.loads((folder / CONTENTS).read_text()).items():
        path = folder / name
        if not path.exists():
            return f"{name} is missing"
        if path.stat().st_size != listed["bytes"]:
            return f"{name} has {path.stat().st_size} bytes, {listed['bytes']} were written"
        if listed["blake2b"] not in (None, _digest(path)):
            return f"{name} has other contents than were written"
    return None


def _contents(folder: Path) -> dict[str, dict[str, object]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): {"bytes": p.stat().st_size, "blake2b": _digest(p)} for p in files}


def weights_identity(folder: Path) -> str:
    """Tells one model's weights from another's without reading all of them.

    A hash over each weight file's name and size, its first pieces, which hold the header with names and shapes, and
    pieces spread over the rest. Empty for what is not a folder with weights.
    """
    files = sorted(path for path in folder.expanduser().glob("*") if path.suffix in (".safetensors", ".bin"))
    content = hashlib.blake2b(digest_size=16)
    for path in files:
        size = path.stat().st_size
        content.update(f"{path.name}:{size}:".encode())
        with path.open("rb") as file:
            for piece in range(PIECES):
                file.seek(size * piece // PIECES)
                content.update(file.read(PIECE_BYTES))
    return content.hexdigest() if files else ""


def _digest(path: Path) -> str | None:
    if path.stat().st_size > DIGEST_LIMIT_BYTES:
        return None
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


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
    await save_model(str(aside / MODEL))
    await pause_at("checkpoint")
    write_synced(aside / CONTENTS, json.dumps(_contents(aside), indent=1))
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
