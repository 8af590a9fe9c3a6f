# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Attention of the encoders, whose tokens see their own window (an image, a video frame, a stretch of audio) only.

Transformers' towers call the attention function once a window; here windows of equal length share one call. The bits
are those of the single calls: an attention kernel computes each window and head by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

# The towers hand over all rows with the ends of their windows only to a function with "flash" in its name.
NAME = "relax_flash_windows"


def install(towers: Iterable[nn.Module]) -> None:
    """Use `window_attention` in towers that use torch's own attention. Idempotent."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, window_attention)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)
    for tower in towers:
        for module in tower.modules():
            config = getattr(module, "config", None)
            if config is not None and config._attn_implementation == "sdpa":
                config._attn_implementation = NAME


def window_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`query`, `key`, `value` `[1, H, T, d]` -> `[1, T, H, d]`; `cu_seq_lens_q [windows + 1]` row of each border."""
    if cu_seq_lens_q is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    rows = [part[0].transpose(0, 1) for part in (query, key, value)]
    lengths = np.diff(cu_seq_lens_q.cpu().numpy())
    if (lengths == lengths[0]).all():
        return _equal_windows(rows, int(lengths[0]), scaling)[None], None
    order, sizes = _by_length(lengths)
    places = torch.from_numpy(order).to(query.device)
    parts = zip(*(part.index_select(0, places).split([n * count for n, count in sizes]) for part in rows), strict=True)
    out = [_equal_windows(part, n, scaling) for part, (n, _) in zip(parts, sizes, strict=True)]
    return torch.cat(out).index_select(0, places.argsort())[None], None


def _by_length(lengths: np.ndarray) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Rows sorted by the length of their window, and (length, how many windows) in that order."""
    starts = np.cumsum(lengths) - lengths
    order = np.argsort(lengths, kind="stable")
    rows = np.concatenate([np.arange(starts[i], starts[i] + lengths[i]) for i in order])
    kinds, counts = np.unique(lengths, return_counts=True)
    return rows, list(zip(kinds.tolist(), counts.tolist(), strict=True))


def _equal_windows(rows: Iterable[Tensor], length: int, scaling: float | None) -> Tensor:
    """`[N * length, H, d]` three times -> `[N * length, H, d]`."""
    query, key, value = (part.reshape(-1, length, *part.shape[1:]).transpose(1, 2) for part in rows)
    out = F.scaled_dot_product_attention(query, key, value, scale=scaling)
    return out.transpose(1, 2).flatten(0, 1)
