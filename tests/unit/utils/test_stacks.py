# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""U11: one command tells what every process of a stuck run is doing, and who waits for whom."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relax.utils.collect_stacks import collect, living, report
from relax.utils.stacks import FOLDER, NAME, answering

# A C function that keeps the interpreter's lock; what it runs says when it does, and ends with its standard input.
HELD_UP = "import ctypes; ctypes.PyDLL(None).system(b'echo; read line')"
OWN_HANDLER = "import signal; signal.signal(signal.SIGUSR2, print); answer_as('own'); "


@contextmanager
def child(folder: Path, code: str, *, register: str = "answer_as('child'); print(flush=True); ") -> Iterator[int]:
    """A process of the run, from the moment that it answers."""
    words = f"from relax.utils.stacks import answer_as; {register}{code}"
    environment = {**os.environ, FOLDER: str(folder), NAME: ""}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", words], env=environment, **pipes)
    try:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


async def called(what: str, started: asyncio.Event) -> None:
    started.set()
    await asyncio.Event().wait()


async def test_a_task_is_told_with_its_awaits_and_what_it_waits_for(tmp_path: Path) -> None:
    with answering(tmp_path, "controller"):
        started = asyncio.Event()
        inner = asyncio.create_task(called("actor.train", started), name="inner")

        async def waits_for_inner() -> None:
            await inner

        outer = asyncio.create_task(waits_for_inner(), name="outer")
        await started.wait()
        (found,) = await asyncio.to_thread(collect, tmp_path)
        inner.cancel()
        outer.cancel()
    assert (found.process, found.pid, found.state) == ("controller", os.getpid(), "answered")
    lines = found.new.splitlines()
    start = lines.index("task inner")
    assert lines[start + 1].endswith("in called what='actor.train'")
    assert lines[start + 2].endswith("in wait")  # of asyncio's event
    assert lines[start + 3] == "  waits for Future"
    start = lines.index("task outer")
    assert lines[start + 1].endswith("in waits_for_inner")
    assert lines[start + 2] == "  waits for task inner"
    start = lines.index("thread MainThread")
    assert any(line.endswith("in run_forever") for line in lines[start:])


def test_a_process_whose_interpreter_is_held_up_tells_its_threads(tmp_path: Path) -> None:
    with child(tmp_path, HELD_UP, register="answer_as('child'); "):
        (found,) = collect(tmp_path, answer_s=1.0, signal_s=20.0)
        assert found.state == "threads only"
        assert "most recent call first" in found.new
        assert 'File "<string>", line 1 in <module>' in found.new


def test_asking_stops_nobody_and_can_be_repeated(tmp_path: Path) -> None:
    with child(tmp_path, "import time; time.sleep(60)") as pid:
        for _ in range(2):
            (found,) = collect(tmp_path, answer_s=20.0)
            assert (found.process, found.pid, found.state) == ("child", pid, "answered")
            assert "thread MainThread" in found.new


def test_a_handler_of_somebody_else_is_left_alone_and_never_called(tmp_path: Path) -> None:
    with child(tmp_path, HELD_UP, register=OWN_HANDLER):
        (found,) = collect(tmp_path, answer_s=0.5, signal_s=0.5)
        assert (found.signal, found.state, found.new) == (False, "silent", "")


def test_a_process_that_has_ended_is_not_asked_nor_one_that_has_its_number_now(tmp_path: Path) -> None:
    with child(tmp_path, "import time; time.sleep(60)"):
        assert [each.process for each in living(tmp_path)] == ["child"]
    assert list(living(tmp_path)) == []
    header = {"process": "old", "pid": os.getpid(), "started": 1.0, "signal": True}
    (tmp_path / f"old-{os.getpid()}.txt").write_text(json.dumps(header) + "\n")
    assert collect(tmp_path) == []  # and this process has not been killed by the signal


def test_a_run_leaves_only_what_was_told(tmp_path: Path) -> None:
    folder = tmp_path / "stacks"
    with answering(folder, "controller"):
        assert os.environ[FOLDER] == str(folder)
    assert not folder.exists()
    assert FOLDER not in os.environ
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    with answering(folder, "controller"):
        collect(folder)
    assert [path.name for path in folder.iterdir()] == [f"controller-{os.getpid()}.txt"]
    assert "relax-stacks" not in [thread.name for thread in threading.enumerate()]
    with answering(folder, "controller"):  # the next run in the folder begins afresh
        (found,) = collect(folder)
        assert (folder / f"controller-{os.getpid()}.txt").read_text().count("thread MainThread") == 1
        first, *rest = report([found]).splitlines()
        assert first.split() == ["controller", "pid", str(os.getpid()), "answered"]
        assert f"== controller pid {os.getpid()}: answered" in rest


@pytest.mark.parametrize("exists", [True, False])
def test_the_command_says_when_there_is_nobody_to_ask(tmp_path: Path, exists: bool, capsys) -> None:
    from relax.entrypoints.stacks import main

    folder = tmp_path if exists else tmp_path / "absent"
    assert main(["--run", str(folder)]) == 2
    assert ("no process of it lives" if exists else "there is no such folder") in capsys.readouterr().err
