# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Weights of linear layers lie input by input: the numbers are the same, and so are the bits of products."""

from __future__ import annotations

import torch
from torch import nn

from relax.backends.native.layout import input_major, linear_weights, turning_keeps_bits
from relax.backends.native.weights import WeightLayout, WeightStaging
from tests.builders import build_tiny_model


def test_turned_weights_are_a_copy_whose_inputs_lie_side_by_side():
    weight = torch.arange(6.0).view(3, 2)
    turned = input_major(weight)
    assert torch.equal(turned, weight)
    assert turned.stride() == (1, 3)
    one_output = torch.ones(1, 4)  # both layouts are the same memory order here: still a copy
    assert input_major(one_output).data_ptr() != one_output.data_ptr()
    experts = torch.arange(24.0).view(2, 3, 4)
    assert input_major(experts).stride() == (12, 1, 3)
    assert torch.equal(input_major(experts), experts)


def test_linear_layers_and_experts_are_turned_and_embeddings_are_not():
    model = build_tiny_model("qwen3_moe")
    names = set(linear_weights(model))
    assert "model.layers.0.self_attn.q_proj.weight" in names
    assert "model.layers.0.mlp.experts.gate_up_proj" in names
    assert "model.layers.0.mlp.experts.down_proj" in names
    assert not any("embed" in name or "norm" in name for name in names)
    assert names <= set(model.state_dict())


def test_a_head_that_is_tied_to_the_embedding_stays_as_it_is():
    tied = nn.ModuleDict({"embed": nn.Embedding(8, 4), "head": nn.Linear(4, 8, bias=False)})
    tied["head"].weight = tied["embed"].weight
    assert linear_weights(tied) == {}


def test_products_keep_their_bits_on_this_machine():
    assert turning_keeps_bits({"a": torch.randn(48, 96), "b": torch.randn(4, 64, 32)})


def test_new_weights_are_staged_in_the_layout_of_the_old():
    layout = WeightLayout({"a": (3, 2), "b": (3,)}, dict.fromkeys("ab", torch.float32), frozenset(), frozenset("a"))
    staging = WeightStaging(layout)
    staging.begin()
    sent = {"a": torch.arange(6.0).view(3, 2), "b": torch.ones(3)}
    staging._add(staging._checked(sent))
    taken = staging.take()
    assert taken["a"].stride() == (1, 3)
    assert torch.equal(taken["a"], sent["a"])
    assert taken["b"].data_ptr() != sent["b"].data_ptr()
