# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Layers that predict the token after the next, as Qwen3-Next and Qwen3.5 checkpoints hold them under `mtp.`.

With h_t the state of token t after the final norm, e the embedding of the model and k = 1, 2, ... the depth:

    z_t = fc [norm_e(e(x_{t+k})) ; norm_h(h_t)]      fc [D, 2D]
    h_t = norm(layer_k(z)_t)                         layer_k: a decoder layer of the model
    log p(x_{t+k+1}) from the model's own head

`fc` and the three norms are shared by the depths. Sequences are packed whole, because the last token of a shared
prompt has a next token of its own in every response.

Source: DeepSeek-V3, arXiv:2412.19437 sec. 2.2 (the order in `fc` is that of the Qwen checkpoints).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relax.backends.additions import MtpSpec
from relax.backends.exact.media import EncodedItem, PlacedItem
from relax.backends.exact.segments import AttentionPlan
from relax.backends.fsdp.published import find_tensor
from relax.utils.errors import ConfigError

PREFIX = "mtp."


class MtpLayers(nn.Module):
    """Parameter names are those of the checkpoints, without `mtp.`."""

    def __init__(self, text_model: nn.Module, spec: MtpSpec) -> None:
        super().__init__()
        width = text_model.embed_tokens.weight.shape[1]
        self.spec = spec
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.pre_fc_norm_embedding = copy.deepcopy(text_model.norm)
        self.pre_fc_norm_hidden = copy.deepcopy(text_model.norm)
        pattern = text_model.layers[_attention_layer(text_model)]
        self.layers = nn.ModuleList(copy.deepcopy(pattern) for _ in range(spec.num_layers))
        self.norm = copy.deepcopy(text_model.norm)

    def forward(self, depth: int, hidden: Tensor, embeds: Tensor, place: Mapping[str, Any]) -> Tensor:
        """`hidden`, `embeds` `[T, D]` -> the state `[T, D]` of depth `depth`, counted from 0."""
        joined = torch.cat([self.pre_fc_norm_embedding(embeds), self.pre_fc_norm_hidden(hidden)], -1)
        out = self.layers[depth](self.fc(joined)[None], **place)
        return self.norm(out[0] if isinstance(out, tuple) else out)[0]


def _attention_layer(text_model: nn.Module) -> int:
    """The last layer with full attention: of its kind are the MTP layers."""
    kinds = getattr(text_model.config, "layer_types", None) or ["full_attention"] * len(text_model.layers)
    full = [place for place, kind in enumerate(kinds) if kind == "full_attention"]
    if not full:
        raise ConfigError("--enable-mtp-training: the model has no layer with full attention")
    return full[-1]


def layer_arguments(text_model: nn.Module, hidden: Tensor, positions: Tensor, plan: AttentionPlan) -> dict[str, Any]:
    """What a decoder layer is called with besides its input. `positions` is `[T]`, `[3, T]` with media."""
    where = positions[None] if positions.ndim == 1 else positions[:, None]
    if positions.ndim == 1 and "mrope_section" in (getattr(text_model.config, "rope_parameters", None) or {}):
        where = where[None].expand(3, -1, -1)
    rotary = text_model.rotary_emb(hidden[None], where)
    return {
        "attention_mask": None,
        "position_ids": where if where.ndim == 2 else where[0],
        "position_embeddings": rotary,
        "relax_plan": plan,
    }


def media_ahead(placed: Sequence[PlacedItem], starts: np.ndarray, depth: int) -> list[PlacedItem]:
    """The encoded items as the rows `depth` places before them see them, each within its own sequence.

    Args:
        starts: first packed row of each sequence, ascending.
    """
    found = []
    for part in placed:
        first = starts[np.searchsorted(starts, part.rows, side="right") - 1]
        kept = np.flatnonzero(part.rows - depth >= first)
        rows = torch.from_numpy(kept).to(part.item.embeds.device)
        found.append(PlacedItem(EncodedItem(part.item.kind, part.item.embeds[rows]), part.rows[kept] - depth))
    return found


def load_mtp(text_model: nn.Module, path: Path, spec: MtpSpec) -> MtpLayers:
    """The MTP layers of the folder. Raises `ConfigError` when it holds none, fewer than asked, or other shapes."""
    tensors = _mtp_tensors(Path(path))
    if not tensors:
        raise ConfigError(
            f"--enable-mtp-training: --hf-checkpoint {path} holds no MTP weights (tensors named {PREFIX}*): use a "
            "checkpoint that has them, or leave the flag out"
        )
    held = len({name.split(".")[2] for name in tensors if name.startswith(f"{PREFIX}layers.")})
    if held < spec.num_layers:
        raise ConfigError(f"--mtp-num-layers {spec.num_layers}: --hf-checkpoint {path} holds {held} MTP layers")
    rotary = set(inspect.signature(type(text_model.layers[0]).forward).parameters)
    if "position_embeddings" not in rotary:
        raise ConfigError(f"--enable-mtp-training: layers of {type(text_model).__name__} are not supported")
    layers = MtpLayers(text_model, spec)
    wrong = []
    for name, parameter in layers.named_parameters():
        found = find_tensor(PREFIX + name, tensors)
        if found is None or found.shape != parameter.shape:
            wrong.append(f"{PREFIX}{name}: {'absent' if found is None else list(found.shape)}")
            continue
        parameter.data = found.to(parameter.dtype).clone()
    if wrong:
        raise ConfigError(
            f"--enable-mtp-training: --hf-checkpoint {path} has other MTP layers: {'; '.join(wrong[:5])}"
        )
    return layers


def _mtp_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import safe_open

    tensors = {}
    for file_path in sorted(path.glob("*.safetensors")):
        with safe_open(file_path, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys() if name.startswith(PREFIX)}  # noqa: SIM118
    return tensors
