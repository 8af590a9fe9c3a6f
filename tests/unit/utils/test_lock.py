# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import os
import subprocess
import sys

import pytest

from relax.utils.errors import ConfigError
from relax.utils.lock import RunLock


def test_a_second_run_is_refused_with_the_first_ones_pid(tmp_path):
    with RunLock(tmp_path), pytest.raises(ConfigError, match=f"in use by process {os.getpid()} on "):
        RunLock(tmp_path)


def test_a_released_folder_can_be_taken_again(tmp_path):
    first = RunLock(tmp_path)
    first.release()
    first.release()
    RunLock(tmp_path).release()


def test_another_process_is_refused_and_a_killed_one_leaves_no_lock(tmp_path):
    code = "import sys; from pathlib import Path; from relax.utils.lock import RunLock\n"
    code += "lock = RunLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"in use by process {holder.pid} on "):
            RunLock(tmp_path)
    finally:
        holder.kill()
        holder.communicate()
    RunLock(tmp_path).release()
