# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Folders of killed processes are removed, those of living ones are not."""

import os
import subprocess
import sys

from relax.utils.lock import LOCK_NAME
from relax.utils.owned_folder import YOUNG_S, owned_folder, remove_abandoned

ABANDON = """
import os, pathlib, sys
from relax.utils.owned_folder import owned_folder
with owned_folder(pathlib.Path(sys.argv[1])):
    (pathlib.Path(sys.argv[1]) / "weights").write_text("x")
    os.kill(os.getpid(), 9)
"""


def make_old(folder):
    stat = (folder / LOCK_NAME).stat()
    os.utime(folder / LOCK_NAME, (stat.st_atime, stat.st_mtime - YOUNG_S - 1))


def test_the_folder_goes_with_its_block(tmp_path):
    with owned_folder(tmp_path / "relax-1") as folder:
        (folder / "v1").mkdir()
    assert not folder.exists()


def test_only_the_folder_of_a_killed_process_is_removed(tmp_path):
    killed, unknown = tmp_path / "relax-killed", tmp_path / "relax-unknown"
    assert subprocess.run([sys.executable, "-c", ABANDON, str(killed)], check=False).returncode == -9
    unknown.mkdir()
    with owned_folder(tmp_path / "relax-alive") as alive:
        make_old(alive)
        assert remove_abandoned(tmp_path, "relax-*") == []  # too young to tell
        make_old(killed)
        assert remove_abandoned(tmp_path, "relax-*") == [killed]
        assert alive.exists()
    assert unknown.exists()
    assert not killed.exists()
