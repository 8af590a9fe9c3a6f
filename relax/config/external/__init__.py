# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Flags that belong to other programs: accepted by name, checked against tables, given to their own backend only."""

from relax.config.external.tables import ExternalFlag, ExternalFlags

__all__ = ["ExternalFlag", "ExternalFlags"]
