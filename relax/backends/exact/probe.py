# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The self-check behind `exact: true`: the same tokens through the pool and through a packed training forward."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from relax.backends.exact.attention import weighted_sum
from relax.backends.exact.kv_pool import KVPool
from relax.backends.exact.media import EncodedItem, patch_width
from relax.backends.exact.model import ExactModel
from relax.backends.exact.segments import MIN_ROWS, ROW_MULTIPLE, Segment, build_plan, engine_plan
from relax.utils.types import MediaFeatures

_ROWS = (*range(MIN_ROWS, 64, ROW_MULTIPLE), 128, 256)
_OUTPUTS = 1024  # columns of a layer that are computed: enough for the kernel of wide layers, cheap in large models
_PROMPT = 9
_RESPONSES = (7, 6, 3)


@torch.no_grad()
def probe(model: ExactModel, *, single_calls: bool = True) -> tuple[bool, str]:
    """(exact, reason): whether decode, split prefill and training forward agree to the bit on this machine.

    Three sequences of at most sixteen tokens run packed with a shared prefix, and through the KV pool at different
    lengths in different company; two small items of each encoder run alone and together.

    Args:
        single_calls: the model may encode each item in a call of its own from now on, should company change bits.
    """
    if model.attn != "exact":
        return False, f"attention {model.attn!r} is not the exact one"
    if model.has_recurrent:
        return False, "the model has layers with linear attention, which no engine of ours computes"
    if not _padding_keeps_bits(model):
        return False, "sums over keys depend on the padding behind them on this machine"
    width = _width_that_reads_row_counts(model)
    if width:
        return False, f"products of rows of {width} numbers depend on how many rows share them on this machine"
    different = [name for name in model.towers if not _company_keeps_bits(model, name)]
    if different and not single_calls:
        return False, f"items that share a call of {different} change each other's bits on this machine"
    model.encode_together = not different
    generator = np.random.default_rng(1)
    vocabulary = model.text_config.vocab_size
    prompt = generator.integers(0, vocabulary, _PROMPT)
    responses = [generator.integers(0, vocabulary, length) for length in _RESPONSES]
    trained = _training_rows(model, prompt, responses)
    served = _engine_rows(model, prompt, responses)
    worst = max(float((a - b).abs().max()) for a, b in zip(trained, served, strict=True))
    if all(torch.equal(a, b) for a, b in zip(trained, served, strict=True)):
        return True, f"decode, prefill and training forward agree to the bit ({torch.get_num_threads()} threads)"
    return False, f"log-probs of decode and training forward differ by up to {worst:.1e} on this machine"


def _padding_keeps_bits(model: ExactModel) -> bool:
    """Attention of 100 keys with and without zeros behind them: a matrix product may cut a long sum anywhere."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.zeros(2, 4, 400)
    weights[:, :, :100] = torch.rand(2, 4, 100, generator=generator)
    values = torch.randn(2, 400, model.head_dim, generator=generator)
    dtype, device = model.head.weight.dtype, model.device
    weights, values = weights.to(device, dtype), values.to(device, dtype)
    results = [weighted_sum(weights[:, :, :n].contiguous(), values[:, :n].contiguous()) for n in (112, 128, 400)]
    return all(torch.equal(r, results[0]) for r in results)


def _width_that_reads_row_counts(model: ExactModel) -> int | None:
    """Width of the first linear layers whose rows get other bits in a product of fewer rows; None: there is none."""
    weights = {m.in_features: m.weight[:_OUTPUTS] for m in model.text_model.modules() if isinstance(m, nn.Linear)}
    for width, weight in weights.items():
        rows = torch.randn(_ROWS[-1], width, generator=torch.Generator().manual_seed(1)).to(weight)
        whole = F.linear(rows, weight)
        if any(not torch.equal(F.linear(rows[:n].clone(), weight), whole[:n]) for n in _ROWS):
            return width
    return None


def _company_keeps_bits(model: ExactModel, tower: str) -> bool:
    """Two small items of different size: the same features alone and in one call."""
    items = _visual_items(model) if tower == "visual" else _audio_items(model)
    together = model.encode_tower(tower, items)
    alone = [model.encode_tower(tower, [item])[0] for item in items]
    pairs = [(a, b) for one, other in zip(alone, together, strict=False) for a, b in _tensors(one, other)]
    return all(torch.equal(a, b) for a, b in pairs)


def _tensors(one: EncodedItem, other: EncodedItem) -> list[tuple[Tensor, Tensor]]:
    return list(zip((one.embeds, *one.deepstack), (other.embeds, *other.deepstack), strict=True))


def _visual_items(model: ExactModel) -> list[MediaFeatures]:
    tower = model.towers["visual"]
    generator, side = np.random.default_rng(1), tower.spatial_merge_size
    grids = [(1, side, side), (1, 2 * side, 3 * side)]
    pixels = [generator.normal(size=(t * h * w, patch_width(tower))).astype(np.float32) for t, h, w in grids]
    return [
        MediaFeatures("image", f"probe {i}", {"pixel_values": p, "image_grid_thw": np.asarray(grid, np.int64)}, 1)
        for i, (p, grid) in enumerate(zip(pixels, grids, strict=True))
    ]


def _audio_items(model: ExactModel) -> list[MediaFeatures]:
    tower, generator = model.towers["audio_tower"], np.random.default_rng(1)
    clips = [generator.normal(size=(tower.num_mel_bins, n)).astype(np.float32) for n in (7, 3 * tower.n_window)]
    return [MediaFeatures("audio", f"probe {i}", {"input_features": clip}, 1) for i, clip in enumerate(clips)]


def _training_rows(model: ExactModel, prompt: np.ndarray, responses: list[np.ndarray]) -> list[Tensor]:
    """Log-prob rows `[R, V]` at every token of each response, from one packed forward."""
    segments = [Segment(prompt), *(Segment(response, parent=0) for response in responses)]
    packed = build_plan(segments, multiple=model.query_multiple, device=str(model.device))
    hidden = model.hidden(packed.tokens, packed.positions, packed.plan)
    return [model.distribution(hidden[packed.starts[i + 1] : packed.starts[i + 2]]) for i in range(len(responses))]


def _engine_rows(model: ExactModel, prompt: np.ndarray, responses: list[np.ndarray]) -> list[Tensor]:
    """The same rows by a prefill in two pieces, then decode with requests that leave at different steps."""
    longest = max(len(r) for r in responses)
    pool = KVPool(
        model.num_layers,
        len(prompt) + longest * len(responses),
        model.num_kv_heads,
        model.head_dim,
        model.head.weight.dtype,
        str(model.device),
    )
    shared = pool.alloc(len(prompt))
    table = np.stack([np.concatenate([shared, pool.alloc(longest)]) for _ in responses])
    split = len(prompt) // 3
    for start, end in ((0, split), (split, len(prompt))):
        _forward(model, pool, table[:1], [end], prompt[start:end], np.arange(start, end), [end - start])
    rows: list[list[Tensor]] = [[] for _ in responses]
    for step in range(longest):
        alive = [i for i, response in enumerate(responses) if step < len(response)]
        place = len(prompt) + step
        tokens = np.asarray([responses[i][step] for i in alive])
        out = _forward(
            model, pool, table[alive], [place + 1] * len(alive), tokens, np.full(len(alive), place), [1] * len(alive)
        )
        for i, row in zip(alive, out, strict=True):
            rows[i].append(row)
    return [torch.stack(r) for r in rows]


def _forward(
    model: ExactModel,
    pool: KVPool,
    table: np.ndarray,
    lengths: list[int],
    tokens: np.ndarray,
    positions: np.ndarray,
    num_new: list[int],
) -> Tensor:
    plan = engine_plan(
        pool,
        table,
        np.asarray(lengths),
        np.asarray(num_new),
        multiple=model.query_multiple,
        device=str(model.device),
    )
    as_rows = lambda array: torch.from_numpy(array.astype(np.int64)).to(model.device)  # noqa: E731
    hidden = model.hidden(as_rows(tokens), as_rows(positions), plan)
    return model.distribution(hidden[: len(tokens)])
