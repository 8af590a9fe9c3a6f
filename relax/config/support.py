# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What this version can do. A name that is known but absent here is refused with a text that says so."""

from __future__ import annotations

TRAIN_BACKENDS = ("fsdp",)
