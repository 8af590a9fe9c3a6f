# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Tiny checkpoints with layers for multi-token prediction."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.unit.backends.training_cases import folder_of


def mtp_tensors(folder: Path, layers: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights under the names of public checkpoints."""
    generator = torch.Generator().manual_seed(seed)
    model = load_file(folder / "model.safetensors")
    width = next(t for n, t in model.items() if n.endswith("layers.1.input_layernorm.weight")).shape[0]
    tensors = {"mtp.fc.weight": torch.randn(width, 2 * width, generator=generator) * 0.1}
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        tensors[f"mtp.{name}.weight"] = 1 + 0.1 * torch.randn(width, generator=generator)
    for layer in range(layers):
        for name, tensor in model.items():
            _, found, rest = name.partition("layers.1.")
            if found and "visual" not in name:
                moved = tensor + 0.02 * torch.randn(tensor.shape, generator=generator)
                tensors[f"mtp.layers.{layer}.{rest}"] = moved
    return tensors


def with_mtp(base: Path, layers: int = 1, kind: str = "qwen3") -> Path:
    """A tiny model's folder with MTP layers."""
    folder = base / f"{kind}-mtp{layers}"
    if not folder.exists():
        shutil.copytree(folder_of(base, kind), folder)
        tensors = load_file(folder / "model.safetensors") | mtp_tensors(folder, layers)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder
