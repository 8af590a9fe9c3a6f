# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Losses and advantages written from the papers in numpy, one response and one token at a time.

The formulas know nothing of `relax.algorithms`: they are what that code is compared with, by `benchmarks.closed_forms`
and by the tests of `tests/unit/algorithms`. `variants`, `expectations` and `enumerated` say what is compared.
"""
