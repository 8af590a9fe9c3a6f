# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Sequence classification: a head of K logits on a language model, trained by the supervised path."""
