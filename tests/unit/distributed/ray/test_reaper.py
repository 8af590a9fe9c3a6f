# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What the reaper ends: processes with a log below the folder, never the driver that asks it to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from relax.distributed.ray.reaper import Reaper

HOLDER = "import sys, time; held = open(sys.argv[1], 'w'); print('open', flush=True); time.sleep(600)"


def start_holder(path) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


@pytest.mark.parametrize("orderly", [True, False], ids=["orderly", "killed"])
def test_what_holds_a_file_below_the_folder_is_ended_and_the_driver_is_not(tmp_path, orderly):
    (tmp_path / "inside").mkdir()
    inside, outside = start_holder(tmp_path / "inside/log"), start_holder(tmp_path / "log")
    with open(tmp_path / "inside/driver.log", "w"):
        reaper = Reaper(tmp_path / "inside")
        if orderly:
            reaper.dismiss()
        else:
            reaper._process.stdin.close()
            reaper._process.wait(20)
    try:
        assert inside.wait(5) == -9
        assert outside.poll() is None
        assert not (tmp_path / "inside").exists()
    finally:
        outside.kill()
        outside.wait()
        outside.stdout.close()
        inside.stdout.close()
