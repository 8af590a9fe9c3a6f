# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One attention function for training, prefill and decode, registered with transformers as `relax_exact`.

The plan of the forward travels as the keyword `relax_plan` through the model to every layer, so a layer that is
recomputed in the backward (gradient checkpointing) finds it again. `relax_sdpa` is the same rectangles through
torch's fused attention: faster on long keys, never exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from relax.backends.exact.segments import AttentionPlan, Block
from relax.utils.errors import ConfigError, InternalError

EXACT = "relax_exact"
SDPA = "relax_sdpa"
# Keys of one partial sum over values. A matrix product splits a longer reduction at a place that depends on its
# whole length (measured: from 193 on), so the bits of a row would change with the padding behind it.
KEY_CHUNK = 128


def register_attention() -> None:
    """Make both functions known to transformers. Idempotent."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    for name, function in ((EXACT, exact_attention), (SDPA, fused_attention)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, _no_mask)


def _no_mask(*_: Any, **__: Any) -> None:
    """The plan says who sees whom; no mask tensor is built."""


def exact_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """`query [1, H, T, d]`, `key`, `value [1, Hk, T, d]` -> `[1, T, H, d]`; see `segments` for the plan."""
    return _attention(module, query, key, value, fused=False, **kwargs), None


def fused_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """As `exact_attention`, through `scaled_dot_product_attention`."""
    return _attention(module, query, key, value, fused=True, **kwargs), None


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    fused: bool,
    relax_plan: AttentionPlan | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> Tensor:
    if relax_plan is None:
        raise InternalError("relax attention was called without a plan: call the model through ExactModel")
    unknown = [name for name in ("s_aux", "softcap") if kwargs.get(name) is not None]
    if unknown or dropout:
        raise ConfigError(f"this model's attention uses {unknown or 'dropout'}, which relax_exact does not compute")
    _, heads, rows, width = query.shape
    scale = width**-0.5 if scaling is None else scaling
    keys, values = _key_source(module, key, value, relax_plan)
    flat_query = query[0].transpose(0, 1).reshape(rows, heads * width) * scale
    core = _fused_block if fused else _exact_block
    kv_heads = key.shape[1]
    outputs = [core(flat_query, keys, values, b, heads, kv_heads, sliding_window) for b in relax_plan.blocks]
    return _assemble(outputs, relax_plan, flat_query).view(1, rows, heads, width)


def _key_source(module: nn.Module, key: Tensor, value: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor]:
    """Keys and values as `[rows * Hk, d]`: the packed rows, or the pool after the new rows are written to it."""
    width = key.shape[-1]
    keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)  # [T, Hk, d]
    if plan.pool is not None:
        pool_keys, pool_values = plan.pool.keys[module.layer_idx], plan.pool.values[module.layer_idx]
        pool_keys.index_copy_(0, plan.write_rows, keys[: plan.num_real])
        pool_values.index_copy_(0, plan.write_rows, values[: plan.num_real])
        keys, values = pool_keys, pool_values
    return keys.reshape(-1, width), values.reshape(-1, width)


def _query_block(flat_query: Tensor, block: Block, heads: int, kv_heads: int) -> Tensor:
    """`[Hk * N, L * G, d]`: query places in front, the heads of one key-value head side by side."""
    width, group = flat_query.shape[1] // heads, heads // kv_heads
    places = flat_query.new_zeros(block.num_pieces * block.num_queries, heads * width)
    places = places.index_copy(0, block.slots, flat_query.index_select(0, block.rows))
    shaped = places.view(block.num_pieces, block.num_queries, kv_heads, group, width)
    return shaped.permute(2, 0, 1, 3, 4).reshape(kv_heads * block.num_pieces, block.num_queries * group, width)


def _query_rows(out: Tensor, block: Block, heads: int, kv_heads: int) -> Tensor:
    """Inverse of `_query_block`: `[R, H * d]` of the real queries."""
    width, group = out.shape[-1], heads // kv_heads
    shaped = out.view(kv_heads, block.num_pieces, block.num_queries, group, width).permute(1, 2, 0, 3, 4)
    return shaped.reshape(block.num_pieces * block.num_queries, heads * width).index_select(0, block.slots)


def _exact_block(
    flat_query: Tensor, keys: Tensor, values: Tensor, block: Block, heads: int, kv_heads: int, window: int | None
) -> Tensor:
    query = _query_block(flat_query, block, heads, kv_heads)
    count, group = block.num_keys, heads // kv_heads
    places = block.flat_keys(kv_heads)
    key = keys.index_select(0, places).view(-1, count, keys.shape[1])
    value = values.index_select(0, places).view(-1, count, values.shape[1])
    scores = torch.bmm(query, key.transpose(1, 2))
    shape = (kv_heads, block.num_pieces, block.num_queries, group, count)
    scores = scores.view(shape).add_(block.bias(window, scores.dtype)).view(scores.shape)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(value.dtype)
    return _query_rows(weighted_sum(weights, value), block, heads, kv_heads)


def weighted_sum(weights: Tensor, value: Tensor) -> Tensor:
    """`[B, L, C] @ [B, C, d]`, partial sums of `KEY_CHUNK` keys added in order of position."""
    if value.shape[1] <= KEY_CHUNK:
        return torch.bmm(weights, value)
    parts = zip(weights.split(KEY_CHUNK, 2), value.split(KEY_CHUNK, 1), strict=True)
    first = next(parts)
    total = torch.bmm(*first)
    for part in parts:
        total = total + torch.bmm(*part)
    return total


def _fused_block(
    flat_query: Tensor, keys: Tensor, values: Tensor, block: Block, heads: int, kv_heads: int, window: int | None
) -> Tensor:
    query = _query_block(flat_query, block, heads, kv_heads)
    count, group = block.num_keys, heads // kv_heads
    places = block.flat_keys(kv_heads)
    key = keys.index_select(0, places).view(-1, 1, count, keys.shape[1])
    value = values.index_select(0, places).view(-1, 1, count, values.shape[1])
    shape = (kv_heads, block.num_pieces, block.num_queries, group, count)
    bias = block.bias(window, query.dtype).expand(shape).reshape(len(key), 1, -1, count)
    out = F.scaled_dot_product_attention(query.unsqueeze(1), key, value, attn_mask=bias, scale=1.0)
    return _query_rows(out.squeeze(1), block, heads, kv_heads)


def _assemble(outputs: list[Tensor], plan: AttentionPlan, like: Tensor) -> Tensor:
    """Packed rows from the outputs of all blocks; padding rows are zero."""
    if not outputs:
        return like * 0.0
    rows = torch.cat([b.rows for b in plan.blocks]) if len(outputs) > 1 else plan.blocks[0].rows
    joined = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
    return torch.zeros_like(like).index_copy(0, rows, joined)
