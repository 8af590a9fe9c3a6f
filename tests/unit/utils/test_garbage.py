# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The collector while a process loads and after it has; each case in a process of its own."""

import subprocess
import sys

HOLD = """
import gc
from relax.utils.garbage import hold_while_loading, spare_loaded_objects
class Node:
    made = 0
    def __init__(self): self.me = self
    def __del__(self): Node.made -= 1
def waste(count):
    for _ in range(count):
        Node.made += 1
        Node()
hold_while_loading()
waste(50_000)
held = Node.made
kept = [[i] for i in range(50_000)]
spare_loaded_objects()
print(held, Node.made, gc.isenabled(), gc.get_freeze_count() > 50_000, len(gc.get_objects()) < 5_000)
waste(200_000)
print(Node.made < 200_000)
"""


def test_nothing_is_collected_while_loading_and_what_is_loaded_is_spared_afterwards():
    ran = subprocess.run([sys.executable, "-c", HOLD], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["50000", "0", "True", "True", "True", "True"]
