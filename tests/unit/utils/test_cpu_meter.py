# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import os
import subprocess
import sys

import pytest

from relax.utils.cpu_meter import CpuMeter, descendants, read_stat

BURN = "import time\nwhile time.process_time() < {}: pass\n"


def test_a_command_name_with_brackets_and_spaces_is_parsed():
    # utime 150 and stime 50 ticks
    tail = "S 7 1 1 0 -1 0 0 0 0 0 150 50 0 0 20 0 1 0 4242 0 0"
    stat = read_stat(f"12 (a) b (c)) {tail}")
    assert (stat.pid, stat.parent, stat.started) == (12, 7, 4242)
    assert stat.cpu_s == pytest.approx(200 / os.sysconf("SC_CLK_TCK"))


def test_work_of_a_child_and_of_its_child_is_counted():
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN.format(0.4)!r}])\n" + BURN.format(0.3)
    meter = CpuMeter()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert meter.close() >= 0.69


def test_a_daemon_that_outlives_its_parent_is_counted():
    # the parent ends at once; its child burns 0.5 s in a session of its own, then waits to be read
    child = BURN.format(0.5) + "print('done', flush=True)\ntime.sleep(30)\n"
    parent = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)\nprint(p.pid, flush=True)\n"
    )
    meter = CpuMeter()
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        daemon = int(process.stdout.readline())
        try:
            assert process.stdout.readline() == "done\n"
            process.wait()
            assert daemon in {stat.pid for stat in descendants(os.getpid())}
            assert meter.seconds() >= 0.49
        finally:
            os.kill(daemon, 9)
            os.waitpid(daemon, 0)
            meter.close()
