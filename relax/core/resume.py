# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Going on at a checkpoint: what is loaded, and what of a run folder's later records counts no more."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax.core.checkpoint import MODEL, REFERENCE, RunState, first_rollout, latest_checkpoint
from relax.core.run_folder import RunFolder
from relax.core.training_loop import TrainingLoop
from relax.schedule import events as ev
from relax.utils.errors import ConfigError
from relax.utils.jsonl import dumps, read_jsonl
from relax.utils.metric_collector import is_evaluation

logger = logging.getLogger(__name__)

# With this variable set, a resume forgets which prompts were open: the proof that lost prompts would be noticed.
FORGET_VARIABLE = "RELAX_TEST_FORGET_OPEN_GROUPS"


@dataclass(frozen=True)
class Resumption:
    """A checkpoint to go on at. `first` is the number of the next rollout."""

    folder: Path
    state: RunState
    first: int

    @property
    def run(self) -> RunFolder:
        """The run that wrote it."""
        return RunFolder(self.folder.parent)


def find_resumption(load: str | None, start_rollout_id: int | None, dataset_digest: str) -> Resumption | None:
    """The checkpoint of `--load`, or None where there is none. Raises ConfigError when it was reading other data."""
    found = latest_checkpoint(Path(load).expanduser()) if load else None
    first = first_rollout(start_rollout_id, found[1] if found else None)
    if found is None:
        return None
    folder, state = found
    if state.dataset_digest != dataset_digest:
        raise ConfigError(
            f"--load: the checkpoint was reading a data set with digest {state.dataset_digest}, --prompt-data now has "
            f"{dataset_digest}: content, order or slice has changed. Give the same data, or start a new run with "
            "--ref-load"
        )
    return Resumption(folder.resolve(), state, first)


async def resume(loop: TrainingLoop, resumption: Resumption, critic: Path | None = None) -> None:
    """Load the roles and put the loop where the checkpoint was written; `critic` is the critic's part of it."""
    folder, state, first = resumption.folder, resumption.state, resumption.first
    if os.environ.get(FORGET_VARIABLE):
        state = RunState(**{**state.__dict__, "open_groups": (), "finished_groups": (), "draw_again": ()})
    reference = str(folder / REFERENCE) if state.reference_version else None
    own = reference if loop.roles.reference is None and loop.settings.actor_scores_reference else None
    await loop.roles.actor.load(str(folder / MODEL), first, own)
    if reference is not None and loop.roles.reference is not None:
        await loop.roles.reference.load(reference)
    if critic is not None and loop.roles.critic is not None:
        await loop.roles.critic.load(str(critic), first)
    await loop.roles.rollout.set_step(first)
    undone = await _undone(loop, resumption)
    restored = await loop.roles.rollout.restore(state.finished_groups, str(resumption.run.trace))
    orders = (*(stored.order for stored in state.finished_groups), *state.open_groups)
    loop.decide(ev.Resumed(first - 1, state.next_group, tuple(order.group for order in orders), undone))
    loop.take_back(state, restored)
    print(f"resumed from {folder}: {state.rollout_id + 1} rollouts are contained", flush=True)
    if first != state.rollout_id + 1:
        logger.warning("--start-rollout-id %d replaces the checkpoint's %d", first, state.rollout_id + 1)


async def start_over(loop: TrainingLoop) -> None:
    """Start without a checkpoint: what an earlier run has written to this folder counts no more."""
    ends = {"driver": loop.journal.first_seq, "rollout": await loop.roles.rollout.sync(())}
    undone = {writer: (0, end) for writer, end in ends.items() if end}
    if undone:
        loop.decide(ev.Resumed(-1, 0, (), undone))


async def _undone(loop: TrainingLoop, resumption: Resumption) -> Mapping[str, tuple[int, int]]:
    """{writer: (first, end)} of the journal lines that were written after the checkpoint, before this incarnation."""
    if loop.settings.save_dir != resumption.run.root:
        return {}
    ends = {"driver": loop.journal.first_seq, "rollout": await loop.roles.rollout.sync(())}
    return undone_lines(ends, resumption.state.journal)


def undone_lines(ends: Mapping[str, int], cuts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """{writer: (first, end)} of lines at or behind the checkpoint's position, for writers that have some."""
    return {writer: (cuts[writer], end) for writer, end in ends.items() if cuts.get(writer, end) < end}


# ---------------------------------------------------------------------- files of the run folder


def set_results_aside(results: Path | None, metrics: Path, first: int) -> None:
    """Records of rollouts that are trained again: `{id}.jsonl` becomes `{id}.jsonl.undone`, metrics move likewise.

    An evaluation `id` saw the weights of rollouts 0 .. id - 1, so that of `first` stays when there is a checkpoint.
    """
    same = first > 0
    for kind, kept in (("train", first - 1), ("eval", first if same else -1)) if results is not None else ():
        for path in (results / "rollout_result" / kind).glob("*.jsonl"):  # type: ignore[operator]
            if path.stem.isdecimal() and int(path.stem) > kept:
                _append(path.with_name(path.name + ".undone"), path.read_text("utf-8"))
                path.unlink()
    if metrics.exists():
        rows = list(read_jsonl(metrics))
        undone = [row for row in rows if row["step"] >= first + (same and is_evaluation(row))]
        if undone:
            _append(metrics.with_name(metrics.name + ".undone"), _lines(undone))
            partial = metrics.with_suffix(".partial")
            partial.write_text(_lines([row for row in rows if row not in undone]), "utf-8")
            os.replace(partial, metrics)


def _lines(rows: list[Any]) -> str:
    return "".join(dumps(row) + "\n" for row in rows)


def _append(path: Path, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)
