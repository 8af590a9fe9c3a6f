# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What products are padded to, that their bits then do not depend on their rows, and that the probe would see it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from relax.backends.exact import probe as probe_module
from relax.backends.exact.attention import exact_attention
from relax.backends.exact.experts import padded_experts
from relax.backends.exact.kv_pool import KVPool
from relax.backends.exact.logprobs import head_logits
from relax.backends.exact.media import audio_tokens
from relax.backends.exact.model import load_model
from relax.backends.exact.probe import probe
from relax.backends.exact.segments import (
    MIN_ROWS,
    Segment,
    build_plan,
    engine_plan,
    padded_rows,
    query_multiple,
)
from tests.unit.backends.training_cases import folder_of

WIDTHS = (16, 64, 96, 128, 256, 384, 896, 1024, 1176, 3584)


@pytest.mark.parametrize(("count", "padded"), [(0, 16), (1, 16), (4, 16), (15, 16), (16, 16), (17, 20), (250, 252)])
def test_products_have_a_multiple_of_four_rows_and_at_least_sixteen(count, padded):
    assert padded_rows(count) == padded


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "places"),
    [
        (8, 4, 16, 2),  # 2 x 2 = 4 rows
        (16, 16, 64, 4),  # 4 x 1
        (16, 16, 128, 16),  # 16 x 1
        (32, 4, 128, 2),  # 2 x 8 = 16
        (28, 4, 128, 4),  # 4 x 7 = 28: 3 x 7 = 21 is no multiple of four
        (40, 8, 128, 4),  # 4 x 5 = 20
        (8, 4, 256, 8),  # 8 x 2 = 16
    ],
)
def test_query_places_fill_a_product(heads, kv_heads, head_dim, places):
    assert query_multiple(heads, kv_heads, head_dim) == places


@pytest.mark.parametrize("width", WIDTHS)
def test_logits_of_a_row_have_the_same_bits_however_few_share_the_call(width):
    generator = torch.Generator().manual_seed(width)
    weight = torch.randn(294, width, generator=generator)
    rows = torch.randn(256, width, generator=generator)
    whole = head_logits(rows, weight)
    differ = [
        n for n in (*range(1, 40), 100, 255) if not torch.equal(head_logits(rows[:n].clone(), weight), whole[:n])
    ]
    assert not differ


@pytest.mark.parametrize("width", [64, 384])
def test_an_expert_gives_a_row_the_same_bits_however_few_it_gets(width):
    generator = torch.Generator().manual_seed(1)
    experts = torch.nn.Module()
    experts.num_experts, experts.act_fn = 4, F.silu
    experts.gate_up_proj = torch.nn.Parameter(torch.randn(4, 2 * width, width, generator=generator) / width**0.5)
    experts.down_proj = torch.nn.Parameter(torch.randn(4, width, width, generator=generator) / width**0.5)
    rows = torch.randn(128, width, generator=generator)
    index = torch.randn(128, 4, generator=generator).topk(2).indices
    weights = torch.rand(128, 2, generator=generator)
    whole = padded_experts(experts, rows, index, weights)
    for count in (1, 2, 3, 7, 20, 41):
        assert torch.equal(padded_experts(experts, rows[:count], index[:count], weights[:count]), whole[:count])


class _Layer:
    layer_idx = 0


def _attend(rows, plan, start, end):
    """Attention of rows `start:end` of query, key and value, padded as the plan says."""
    parts = (F.pad(part[:, :, start:end], (0, 0, 0, plan.num_rows - (end - start))) for part in rows)
    return exact_attention(_Layer(), *parts, None, relax_plan=plan)[0][0, : end - start]


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (8, 2), (7, 1)])
def test_attention_of_wide_heads_decodes_with_the_bits_of_the_packed_forward(head_dim, heads, kv_heads):
    generator = torch.Generator().manual_seed(head_dim)
    length, multiple = 40, query_multiple(heads, kv_heads, head_dim)
    rows = [torch.randn(1, n, length, head_dim, generator=generator) for n in (heads, kv_heads, kv_heads)]
    trained = _attend(rows, build_plan([Segment(np.zeros(length, int))], multiple=multiple).plan, 0, length)
    pool = KVPool(1, length, kv_heads, head_dim, torch.float32, "cpu")
    place = pool.alloc(length)
    served = []
    for start, end in ((0, 3), (3, 20), *((n, n + 1) for n in range(20, length))):
        plan = engine_plan(pool, place[None], np.asarray([end]), np.asarray([end - start]), multiple=multiple)
        served.append(_attend(rows, plan, start, end))
    assert torch.equal(torch.cat(served), trained)


def test_the_dummy_of_an_encoder_call_fills_a_product_by_itself(tmp_path):
    model = load_model(folder_of(tmp_path, "qwen3_omni"))
    for tower in ("visual", "audio_tower"):
        (dummy,) = model.encode_tower(tower, [])
        assert len(dummy.embeds) >= MIN_ROWS
    half = model.towers["audio_tower"].n_window
    assert len(dummy.embeds) % audio_tokens(2 * half, half) == 0


def test_the_probe_names_the_width_whose_rows_depend_on_their_number(tmp_path, monkeypatch):
    model = load_model(folder_of(tmp_path, "qwen3"))
    assert probe(model)[0]

    def linear(rows, weight, bias=None):
        out = F.linear(rows, weight, bias)
        return out + 1e-7 if len(rows) == 24 and weight.shape[1] == model.text_config.intermediate_size else out

    monkeypatch.setattr(probe_module, "F", SimpleNamespace(linear=linear))
    exact, reason = probe(model)
    assert not exact
    assert reason == (
        f"products of rows of {model.text_config.intermediate_size} numbers depend on how many rows share them "
        "on this machine"
    )
