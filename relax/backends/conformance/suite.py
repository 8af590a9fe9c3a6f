# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""All checks in the order in which they are run."""

from __future__ import annotations

from relax.backends.conformance import control, generation, media, weights
from relax.backends.conformance.check import Check

CHECKS: tuple[Check, ...] = (*control.CHECKS, *generation.CHECKS, *media.CHECKS, *weights.CHECKS)
