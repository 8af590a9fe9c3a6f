# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What Ray may not do behind our back."""

from __future__ import annotations

import subprocess
import sys

CODE = """
from relax.distributed.ray.cluster import before_import
before_import()
import ray
try:
    ray.get_actor("anything")
except Exception as error:
    print(type(error).__name__, ray.is_initialized())
"""


def test_a_call_without_a_connection_fails_and_starts_no_cluster():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120)
    kind, initialised = done.stdout.split()
    assert (kind != "ValueError", initialised) == (True, "False"), done.stderr  # ValueError: asked, and not found
