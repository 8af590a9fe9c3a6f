# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Planted faults in the algorithm files, and the property tests that must find every one of them."""
