# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Python's cyclic garbage collector in processes that load much and then serve for long."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 10_000  # new containers before a young collection; CPython's own 700 are a handful of requests


def hold_while_loading() -> None:
    """Collect nothing until `spare_loaded_objects`: imports make objects that stay, and each collection walks them."""
    gc.disable()


def spare_loaded_objects() -> None:
    """Collect once, then take everything that exists out of all later collections.

    Imported libraries leave half a million objects that never die. A full collection walks them all, which holds up
    every request of the process for a third of a second. Call it when a process has loaded what it serves.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    gc.enable()
