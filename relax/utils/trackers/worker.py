# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A tracker's own process.

    python -m relax.utils.trackers.worker KIND PARENT_PID LIMIT_S NOTES_FD     stdin: settings, then one row a line

It ends when its input does, at most LIMIT_S seconds later, whatever the library waits for; and when the run has died.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

Tell = Callable[[str], None]  # the user, on the console of the run
GAVE_UP = 3  # exit code
LOOK_S = 1.0
# What a chart of Weights & Biases is drawn over: an evaluation's row and a training row may have the same step.
STEP_OF = {"eval/*": "eval/step", "*": "rollout/step"}


class Tracker(Protocol):
    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Wandb:
    """A run of Weights & Biases. A run folder keeps the id, so a resumed run goes on in the same curves."""

    def __init__(
        self,
        tell: Tell,
        *,
        folder: str,
        id_file: str,
        run_pid: int,
        run_id: str | None,
        mode: str,
        config: Mapping[str, Any],
        **names: str,
    ) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        Path(folder).mkdir(parents=True, exist_ok=True)
        arguments = {
            **names,
            "dir": folder,
            "config": dict(config),
            "id": run_id or read_id(id_file),
            "resume": "allow",
            "settings": wandb.Settings(console="off", x_stats_pid=run_pid, x_stats_track_process_tree=True),
        }
        try:
            self._run = wandb.init(mode=mode, **arguments)
        except wandb.errors.Error as error:  # no key, a wrong one, or a server that does not answer
            tell(f"note: Weights & Biases: {error}; its rows stay in {folder}/wandb, send them by `wandb sync`")
            self._run = wandb.init(mode="offline", **arguments)
        keep_id(id_file, self._run.id)
        for name, step in STEP_OF.items():
            self._run.define_metric(name, step_metric=step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        evaluation = any(name.startswith("eval/") for name in values)
        self._run.log({**values, "rollout/step": step, **({"eval/step": step} if evaluation else {})})

    def close(self) -> None:
        self._run.finish()


class Clearml:
    """A task of ClearML; online ones are continued by a resumed run."""

    def __init__(
        self, tell: Tell, *, project: str, name: str, id_file: str, offline: bool, config: Mapping[str, Any]
    ) -> None:
        from clearml import Task  # pyright: ignore[reportMissingImports]

        before = read_id(id_file)
        if offline:
            Task.set_offline(True)
        self._task = Task.init(
            project_name=project,
            task_name=name,
            reuse_last_task_id=False,
            continue_last_task=before if before and not offline else False,
            auto_connect_arg_parser=False,
            auto_connect_frameworks=False,
            auto_connect_streams=False,
        )
        if before and not offline:
            self._task.set_initial_iteration(0)  # a continued task would number on behind the last step
        keep_id(id_file, self._task.id)
        self._task.connect({name: str(value) for name, value in config.items()}, name="flags")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        logger = self._task.get_logger()
        for name, value in values.items():
            logger.report_scalar(*title_and_series(name), value, step)

    def close(self) -> None:
        self._task.close()


def title_and_series(name: str) -> tuple[str, str]:
    """`rollout/reward/mean` -> a plot `rollout/reward` with the curve `mean`; shorter names are plots of their own."""
    head, _, last = name.rpartition("/")
    return (head, last) if "/" in head else (name, last)


def read_id(path: str) -> str | None:
    file = Path(path)
    return (file.read_text().strip() or None) if file.is_file() else None


def keep_id(path: str, value: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(value + "\n")


TRACKERS = {"wandb": Wandb, "clearml": Clearml}


def main(kind: str, parent: int, limit_s: float, notes: int) -> None:
    """Feed the tracker with the rows of stdin."""

    def tell(text: str) -> None:
        os.write(notes, f"{text}\n".encode())

    ended = threading.Event()
    threading.Thread(target=_guard, args=(parent, limit_s, ended), daemon=True).start()
    greeting = sys.stdin.readline()
    if not greeting:  # the run ended at once
        return
    tracker: Tracker = TRACKERS[kind](tell, **json.loads(greeting))
    for line in sys.stdin:
        row = json.loads(line)
        tracker.write(row["step"], {name: float(value) for name, value in row["values"].items()})
    ended.set()
    tracker.close()


def _guard(parent: int, limit_s: float, ended: threading.Event) -> None:
    """Give up `limit_s` seconds after the input or the run has ended."""
    while os.getppid() == parent and not ended.wait(LOOK_S):
        pass
    threading.Event().wait(limit_s)
    print(f"gave up: the last rows were not sent within {limit_s:g} s", flush=True)
    os._exit(GAVE_UP)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
