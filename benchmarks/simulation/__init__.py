# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Whole runs on virtual time: the product's roles, bus, journal, trace and loop around the tiny twins."""
