# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Losses of labelled data: next tokens, classes, preference pairs. `SupervisedOptions` describes one (no torch)."""

from relax.algorithms.supervised.options import SupervisedOptions as SupervisedOptions
from relax.algorithms.supervised.options import build_supervised_loss as build_supervised_loss
