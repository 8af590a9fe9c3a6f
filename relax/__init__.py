# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Relax: Reinforcement Engine Leveraging Agentic X-modality."""

__version__ = "0.1.0.dev0"
