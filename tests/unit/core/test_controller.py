# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The end of a run, whatever has ended it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relax.config.run import default_config
from relax.core.controller import Run
from relax.core.run_folder import RunFolder
from relax.schedule.journal import FileJournal
from relax.utils.errors import BusTimeout, EngineLost, Stuck
from relax.utils.stacks import answering


class NothingDeployed:
    """A deployment that is taken down."""

    stopped = False

    async def stop(self) -> None:
        self.stopped = True


async def end(root: Path, error: Exception) -> RunFolder:
    folder = RunFolder(root)
    folder.create()
    deployment = NothingDeployed()
    run = Run(default_config(), folder, "id", deployment, FileJournal(folder.journal, "driver"))  # type: ignore[arg-type]
    with answering(folder.stacks, "controller"), pytest.raises(type(error)):
        await run.end("failed", error)
    assert deployment.stopped
    return folder


@pytest.mark.parametrize("error", [Stuck("no group ended for 1800 s"), BusTimeout("train_3: no advantages")])
async def test_U11_a_run_that_waited_in_vain_leaves_the_stacks_of_its_processes(tmp_path: Path, capsys, error) -> None:
    folder = await end(tmp_path, error)
    told = (folder.stacks / "when-stuck.txt").read_text()
    assert told.splitlines()[0].split() == ["controller", "pid", str(os.getpid()), "answered"]
    assert "in _keep_stacks" in told
    assert str(folder.stacks / "when-stuck.txt") in capsys.readouterr().err


async def test_a_run_that_failed_otherwise_leaves_none(tmp_path: Path) -> None:
    folder = await end(tmp_path, EngineLost("engine-0 ended with exit code -9"))
    assert not folder.stacks.exists()
