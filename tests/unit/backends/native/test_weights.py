# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Names that checkpoints use, experts one by one, and tied tensors."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from relax.backends.native.protocol import RequestError
from relax.backends.native.weights import WeightLayout, WeightStaging


def staging(shapes, optional=()):
    dtypes = dict.fromkeys(shapes, torch.float32)
    return WeightStaging(WeightLayout(shapes, dtypes, frozenset(optional)))


def staged(staging, tensors, folder):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    staging.begin()
    staging.stage_folder(folder, None)
    return staging.take()


def test_checkpoint_names_of_an_omni_thinker_find_their_tensors(tmp_path):
    shapes = {
        "model.audio_tower.ln.weight": (2,),
        "model.language_model.norm.weight": (3,),
        "lm_head.weight": (4, 3),
    }
    names = [
        ("audio_tower.ln.weight", "model.norm.weight", "lm_head.weight"),
        ("thinker.audio_tower.ln.weight", "thinker.model.norm.weight", "thinker.lm_head.weight"),
        tuple(shapes),
    ]
    for of_checkpoint in names:
        tensors = {n: torch.randn(s) for n, s in zip(of_checkpoint, shapes.values(), strict=True)}
        got = staged(staging(shapes), tensors, tmp_path / "v")
        assert {n: t.tolist() for n, t in got.items()} == {
            own: tensors[n].tolist() for own, n in zip(shapes, of_checkpoint, strict=True)
        }


def test_experts_one_by_one_are_fused_gate_above_up(tmp_path):
    # 2 experts, hidden 3, intermediate 2
    shapes = {"m.experts.gate_up_proj": (2, 4, 3), "m.experts.down_proj": (2, 3, 2)}
    tensors = {}
    for expert in range(2):
        for kind, shape in (("gate_proj", (2, 3)), ("up_proj", (2, 3)), ("down_proj", (3, 2))):
            tensors[f"m.experts.{expert}.{kind}.weight"] = torch.randn(shape)
    got = staged(staging(shapes), tensors, tmp_path / "v")
    for expert in range(2):
        fused = got["m.experts.gate_up_proj"][expert]
        assert torch.equal(fused[:2], tensors[f"m.experts.{expert}.gate_proj.weight"])
        assert torch.equal(fused[2:], tensors[f"m.experts.{expert}.up_proj.weight"])
        assert torch.equal(got["m.experts.down_proj"][expert], tensors[f"m.experts.{expert}.down_proj.weight"])
    del tensors["m.experts.0.up_proj.weight"]
    with pytest.raises(RequestError, match="incomplete"):
        staged(staging(shapes), tensors, tmp_path / "w")


def test_a_tied_tensor_may_be_left_out_and_no_other(tmp_path):
    shapes = {"embed.weight": (4, 2), "lm_head.weight": (4, 2), "norm.weight": (2,)}
    tensors = {"embed.weight": torch.randn(4, 2), "norm.weight": torch.randn(2)}
    assert set(staged(staging(shapes, ["lm_head.weight"]), tensors, tmp_path / "v")) == set(tensors)
    with pytest.raises(RequestError, match="lm_head"):
        staged(staging(shapes), tensors, tmp_path / "w")


def test_staged_tensors_do_not_change_with_the_file(tmp_path):
    shapes = {"w": (64,)}
    got = staged(staging(shapes), {"w": torch.ones(64)}, tmp_path / "v")
    file = tmp_path / "v" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\0")
    assert got["w"].tolist() == [1.0] * 64


def test_weights_of_another_dtype_are_cast_to_the_models(tmp_path):
    values = torch.tensor([1.0, 0.3], dtype=torch.bfloat16)
    got = staged(staging({"w": (2,)}), {"w": values}, tmp_path / "v")
    assert got["w"].dtype == torch.float32 and got["w"].tolist() == values.float().tolist()


def test_begin_drops_what_an_abandoned_update_left(tmp_path):
    update = staging({"w": (2,)})
    update.begin()
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    update.stage_folder(tmp_path, None)
    update.begin()
    with pytest.raises(RequestError, match="no weights were sent"):
        update.take()
