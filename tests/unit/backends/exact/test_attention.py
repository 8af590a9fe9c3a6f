# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Plans and the attention core against a float64 loop over tokens; bits against row counts and padding."""

import numpy as np
import pytest
import torch

from relax.backends.exact.attention import exact_attention, fused_attention
from relax.backends.exact.kv_pool import KVPool
from relax.backends.exact.segments import Segment, build_plan, engine_plan, query_multiple
from relax.utils.errors import InternalError

HEADS, KV_HEADS, WIDTH = 4, 2, 16
MULTIPLE = query_multiple(HEADS, KV_HEADS, WIDTH)


class _Layer:
    layer_idx = 0


def _qkv(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((1, HEADS, rows, WIDTH), (1, KV_HEADS, rows, WIDTH), (1, KV_HEADS, rows, WIDTH))
    return [torch.randn(s, generator=generator) for s in shapes]


def _by_hand(query, key, value, seen, scale):
    """float64, one row and one head at a time; `seen[t]` are the rows that row t sees."""
    out = torch.zeros(query.shape[2], HEADS, WIDTH, dtype=torch.float64)
    for row, rows in enumerate(seen):
        for head in range(HEADS):
            own = head * KV_HEADS // HEADS
            scores = key[0, own, rows].double() @ query[0, head, row].double() * scale
            out[row, head] = scores.softmax(0) @ value[0, own, rows].double()
    return out


@pytest.mark.parametrize("function", [exact_attention, fused_attention])
def test_segments_see_their_ancestors_and_themselves(function):
    lengths, parents = [5, 3, 300, 1], [None, 0, 0, 1]
    packed = build_plan(
        [Segment(np.zeros(n, int), p) for n, p in zip(lengths, parents, strict=True)], multiple=MULTIPLE
    )
    query, key, value = _qkv(packed.plan.num_rows)
    chains: list[list[int]] = []
    seen = []
    for place, length in enumerate(lengths):
        before = [] if parents[place] is None else chains[parents[place]]
        own = list(range(packed.starts[place], packed.starts[place] + length))
        chains.append(before + own)
        seen += [before + own[: i + 1] for i in range(length)]
    out, _ = function(_Layer(), query, key, value, None, scaling=0.3, relax_plan=packed.plan)
    right = _by_hand(query, key, value, seen, 0.3)
    torch.testing.assert_close(out[0, : len(seen)].double(), right[: len(seen)], atol=2e-6, rtol=1e-5)
    assert (out[0, len(seen) :] == 0).all()


def test_a_sliding_window_sees_the_last_keys_only():
    packed = build_plan([Segment(np.zeros(10, int))], multiple=MULTIPLE)
    query, key, value = _qkv(packed.plan.num_rows)
    out, _ = exact_attention(_Layer(), query, key, value, None, scaling=0.3, relax_plan=packed.plan, sliding_window=3)
    right = _by_hand(query, key, value, [list(range(max(0, i - 2), i + 1)) for i in range(10)], 0.3)
    torch.testing.assert_close(out[0, :10].double(), right[:10], atol=2e-6, rtol=1e-5)


def test_gradients_are_those_of_plain_attention():
    packed = build_plan([Segment(np.zeros(6, int)), Segment(np.zeros(7, int), 0)], multiple=MULTIPLE)
    tensors = [t.double().requires_grad_() for t in _qkv(packed.plan.num_rows)]
    out, _ = exact_attention(_Layer(), *tensors, None, scaling=0.3, relax_plan=packed.plan)
    mask = torch.ones(13, 13).tril().bool()
    plain = torch.nn.functional.scaled_dot_product_attention(
        *(t[:, :, :13] for t in tensors), attn_mask=mask, scale=0.3, enable_gqa=True
    )
    weight = torch.randn(13, HEADS, WIDTH, dtype=torch.float64)
    found = torch.autograd.grad((out[0, :13] * weight).sum(), tensors)
    right = torch.autograd.grad((plain[0].transpose(0, 1) * weight).sum(), tensors)
    for a, b in zip(found, right, strict=True):
        # softmax is computed in float32 whatever the input
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def _engine(query, key, value, steps, rows):
    """Run the rows of one sequence through a pool in pieces that end at `steps`."""
    pool = KVPool(1, 1000, KV_HEADS, WIDTH)
    taken = pool.alloc(rows)[::-1].copy()
    outputs, start = [], 0
    for end in steps:
        plan = engine_plan(pool, taken[None], np.asarray([end]), np.asarray([end - start]), multiple=MULTIPLE)
        piece = [
            torch.nn.functional.pad(t[:, :, start:end], (0, 0, 0, plan.num_rows - end + start))
            for t in (query, key, value)
        ]
        out, _ = exact_attention(_Layer(), *piece, None, scaling=0.3, relax_plan=plan)
        outputs.append(out[0, : end - start])
        start = end
    return torch.cat(outputs)


@pytest.mark.parametrize("rows", [6, 40, 130, 210, 300, 520])
def test_any_split_of_a_prefill_gives_the_bits_of_the_packed_forward(rows):
    packed = build_plan([Segment(np.zeros(rows, int)), Segment(np.zeros(700, int))], multiple=MULTIPLE)
    query, key, value = _qkv(packed.plan.num_rows)
    whole, _ = exact_attention(_Layer(), query, key, value, None, scaling=0.3, relax_plan=packed.plan)
    pieces = [t[:, :, :rows] for t in (query, key, value)]
    for steps in ([rows], [1, 2, rows], [3, rows - 2, rows - 1, rows]):
        assert torch.equal(_engine(*pieces, steps, rows), whole[0, :rows])


def test_a_decode_row_has_the_same_bits_in_any_company():
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 400, 9)
    pool = KVPool(1, 4000, KV_HEADS, WIDTH)
    pool.keys.normal_()
    pool.values.normal_()
    pool.keys[:, pool.zero_row] = pool.values[:, pool.zero_row] = 0
    table = np.zeros((9, 400), np.int64)
    for place, length in enumerate(lengths):
        table[place, :length] = pool.alloc(length)
    query, key, value = _qkv(9)

    def decode(places):
        plan = engine_plan(pool, table[places], lengths[places], np.ones(len(places), int), multiple=MULTIPLE)
        tensors = [
            torch.nn.functional.pad(t[:, :, places], (0, 0, 0, plan.num_rows - len(places)))
            for t in (query, key, value)
        ]
        return exact_attention(_Layer(), *tensors, None, scaling=0.3, relax_plan=plan)[0][0, : len(places)]

    together = decode(np.arange(9))
    for places in ([0], [8, 3], [1, 2, 3, 4, 5], [7, 6, 5, 4, 3, 2, 1, 0]):
        assert torch.equal(decode(np.asarray(places)), together[places])


def test_a_model_call_without_a_plan_is_refused():
    with pytest.raises(InternalError, match="ExactModel"):
        exact_attention(_Layer(), *_qkv(4), None)


def test_positions_count_on_from_the_parent():
    packed = build_plan(
        [
            Segment(np.arange(3), positions=np.asarray([[0, 1, 1], [0, 1, 2], [0, 1, 5]])),
            Segment(np.arange(2), parent=0),
            Segment(np.arange(2)),
        ]
    )
    assert packed.positions[:, :7].tolist() == [[0, 1, 1, 6, 7, 0, 1], [0, 1, 2, 6, 7, 0, 1], [0, 1, 5, 6, 7, 0, 1]]
    assert packed.tokens.tolist() == [0, 1, 2, 0, 1, 0, 1] + [0] * 9  # sixteen rows at least


def test_pool_rows_return_when_their_last_holder_lets_go():
    pool = KVPool(1, 6, 1, 4)
    prompt = pool.alloc(4)
    pool.share(prompt)
    pool.free(prompt)
    assert pool.num_free == 2
    own = pool.alloc(2)
    with pytest.raises(InternalError, match="1 rows asked for, 0 of 6"):
        pool.alloc(1)
    pool.free(prompt)
    with pytest.raises(InternalError, match="nobody holds"):
        pool.free(prompt)
    pool.free(own)
    assert pool.num_free == 6
    assert sorted(pool.alloc(6).tolist()) == [0, 1, 2, 3, 4, 5]
