# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Losses and advantages written from the papers in numpy, one response and one token at a time.

Nothing here imports `relax.algorithms`: it is what that code is compared with (`benchmarks.closed_forms`, and the tests
of `tests/unit/algorithms`).
"""
