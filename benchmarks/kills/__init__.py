# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Runs that are killed and resumed, and a count of what was trained that asks neither the journal nor the driver."""
