# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Weights & Biases and ClearML, each in a process of its own (`worker`) that the run feeds and can end (`process`)."""
