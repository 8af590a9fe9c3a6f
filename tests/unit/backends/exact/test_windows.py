# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Encoders: windows that share an attention call, items that share an encoder call, layouts seen before."""

import copy
import dataclasses
import warnings

import numpy as np
import pytest
import torch

from relax.backends.exact.media import _tensor, encode_audio, encode_visual
from relax.backends.exact.model import load_model
from relax.backends.exact.probe import probe
from relax.backends.exact.windows import NAME, window_attention
from tests.unit.backends.training_cases import audio, folder_of, image, prompt_with


@pytest.fixture(scope="module")
def omni(tmp_path_factory):
    return load_model(folder_of(tmp_path_factory.mktemp("models"), "qwen3_omni")).eval()


def _windows(seed, lengths, heads=4, width=16):
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randn(sum(lengths), 3, heads, width, generator=generator).requires_grad_()
    parts = [p.transpose(0, 1)[None] for p in packed.permute(1, 0, 2, 3).unbind(0)]
    return packed, parts, torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)


@pytest.mark.parametrize("lengths", [[16], [16] * 33, [4, 16, 4, 13, 196, 1, 16, 2, 13, 4]])
def test_windows_in_one_call_have_the_bits_of_a_call_for_each(lengths):
    packed, parts, borders = _windows(0, lengths)
    together, _ = window_attention(None, *parts, None, scaling=0.25, cu_seq_lens_q=borders)
    pieces = zip(*(p.split(lengths, 2) for p in parts), strict=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    alone = torch.cat([attend(*piece, scale=0.25).transpose(1, 2) for piece in pieces], 1)
    assert torch.equal(together, alone)
    weight = torch.randn(alone.shape, generator=torch.Generator().manual_seed(1))
    (found,) = torch.autograd.grad((together * weight).sum(), packed)
    (right,) = torch.autograd.grad((alone * weight).sum(), packed)
    assert torch.equal(found, right)


def test_towers_use_it_and_a_tower_with_another_choice_keeps_that(omni):
    assert {tower.config._attn_implementation for tower in omni.towers.values()} == {NAME}
    visual = omni.towers["visual"]
    items = [image(1), image(2, (1, 6, 10))]
    with torch.no_grad():
        ours = omni.encode_media(items)
        visual.config._attn_implementation = "sdpa"
        shipped = omni.encode_media(items)
        visual.config._attn_implementation = NAME
    for a, b in zip(ours, shipped, strict=True):
        assert torch.equal(a.embeds, b.embeds)
        assert all(torch.equal(x, y) for x, y in zip(a.deepstack, b.deepstack, strict=True))


def test_read_only_features_give_the_same_bits_without_a_warning_and_writable_ones_are_not_copied(omni):
    item = image(1)
    frozen = dataclasses.replace(item, tensors={name: array.copy() for name, array in item.tensors.items()})
    for array in frozen.tensors.values():
        array.flags.writeable = False
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        theirs, ours = omni.encode_media([frozen]), omni.encode_media([item])
    assert torch.equal(theirs[0].embeds, ours[0].embeds)
    pixels = item.tensors["pixel_values"]
    assert _tensor(item, "pixel_values").data_ptr() == pixels.ctypes.data


GRIDS = [(1, 4, 4), (1, 2, 2), (1, 2, 4), (1, 28, 28), (2, 4, 4), (1, 6, 10), (1, 8, 4)]
MIXED = {
    "visual": [image(i, GRIDS[i % len(GRIDS)]) for i in range(32)],
    "equal": [image(i) for i in range(32)],
    "audio": [audio(i, (100, 7, 70, 230, 2, 33, 199)[i % 7]) for i in range(32)],
}


@pytest.mark.parametrize("items", MIXED.values(), ids=MIXED)
@pytest.mark.parametrize("count", [2, 3, 8, 32])
def test_an_item_has_the_same_bits_alone_and_in_a_call_of_many(omni, items, count):
    with torch.no_grad():
        together = omni.encode_media(items[:count])
        for item, found in zip(items, together, strict=False):
            (alone,) = omni.encode_media([item])
            assert torch.equal(alone.embeds, found.embeds)
            assert all(torch.equal(a, b) for a, b in zip(alone.deepstack, found.deepstack, strict=True))


@pytest.mark.parametrize("items", MIXED.values(), ids=MIXED)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 5e-6)])
def test_gradients_of_one_call_are_those_of_single_calls(omni, items, dtype, tolerance):
    tower = copy.deepcopy(omni.towers["audio_tower" if items[0].kind == "audio" else "visual"]).to(dtype)
    encode = encode_audio if items[0].kind == "audio" else encode_visual

    def gradients(chosen):
        parts = [p for item in encode(tower, chosen)[:-1] for p in (item.embeds, *item.deepstack)]
        loss = sum((p * torch.linspace(-1, 1, p.numel(), dtype=dtype).view(p.shape)).sum() for p in parts)
        return torch.autograd.grad(loss, list(tower.parameters()))

    single = [gradients([item]) for item in items[:8]]
    for found, parts in zip(gradients(items[:8]), zip(*single, strict=True), strict=True):
        assert float((found - sum(parts)).norm()) <= tolerance * max(1.0, float(found.norm()))


def test_a_layout_seen_before_gives_the_positions_and_rows_of_a_first_look(omni):
    generator = np.random.default_rng(0)
    cases = []
    for place in range(6):
        media = (image(place, GRIDS[place]), audio(place, 60 + 10 * place))[: 1 + place % 2]
        cases.append((prompt_with(media, generator).astype(np.int64), media))
    right = [(omni._media_positions(t, m), omni.media_rows(t, m)) for t, m in cases]
    for _ in range(2):
        for (tokens, media), (positions, rows) in zip(cases, right, strict=True):
            other_text = np.where(omni._marks._special[tokens], tokens, 77)
            for ids in (tokens, other_text):
                np.testing.assert_array_equal(omni.positions(ids, media), positions)
                for a, b in zip(omni.media_rows(ids, media), rows, strict=True):
                    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("items", MIXED.values(), ids=MIXED)
def test_single_calls_give_the_bits_of_a_shared_call(omni, items):
    with torch.no_grad():
        together = omni.encode_media(items[:5])
        omni.encode_together = False
        single = omni.encode_media(items[:5])
        omni.encode_together = True
    assert all(torch.equal(a.embeds, b.embeds) for a, b in zip(single, together, strict=True))


def test_the_probe_sees_an_encoder_in_which_company_matters(omni):
    model = copy.deepcopy(omni)
    visual = model.towers["visual"]
    visual.merger.register_forward_hook(lambda module, args, out: out * (1 + 1e-6 * len(out)))
    assert probe(model, single_calls=False) == (
        False,
        "items that share a call of ['visual'] change each other's bits on this machine",
    )
    assert model.encode_together
    exact, reason = probe(model)
    assert exact, reason
    assert not model.encode_together
