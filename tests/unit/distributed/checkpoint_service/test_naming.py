# Copyright (c) 2026 Relax Authors. All Rights Reserved.
from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors.torch import load_file

from relax.distributed.checkpoint_service.naming import THINKER, sglang_names
from relax.distributed.checkpoint_service.publishers import SharedMemoryPublisher, read_version
from tests.builders import build_tiny_model


def test_names_of_a_tiny_moe_model_are_those_of_its_saved_checkpoint(tmp_path: Path) -> None:
    """The oracle is `save_pretrained`, whose files SGLang loads."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, moe_intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, num_experts=3, num_experts_per_tok=2,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config)
    fused = [name for name, _ in model.named_parameters() if ".experts." in name]
    assert sorted(re.sub(r".*experts\.", "", name) for name in fused) == ["down_proj", "gate_up_proj"]
    model.save_pretrained(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    SharedMemoryPublisher(tmp_path / "w", name_map=sglang_names()).publish(1, model.named_parameters())
    _, got = read_version(tmp_path / "w" / "v1")
    assert got.keys() == saved.keys()
    for name, tensor in saved.items():
        assert torch.equal(got[name], tensor), name


def test_a_prefix_goes_before_every_name() -> None:
    weights = {"model.norm.weight": torch.ones(2), "model.layers.0.mlp.experts.down_proj": torch.ones(2, 3, 4)}
    assert [name for name, _ in sglang_names("thinker.")(weights.items())] == [
        "thinker.model.norm.weight",
        "thinker.model.layers.0.mlp.experts.0.down_proj.weight",
        "thinker.model.layers.0.mlp.experts.1.down_proj.weight",
    ]


def test_without_splitting_fused_names_pass() -> None:
    weights = {"model.layers.0.mlp.experts.gate_up_proj": torch.ones(2, 4, 3)}
    assert [name for name, _ in sglang_names(split_experts=False)(weights.items())] == list(weights)


def test_names_of_an_omni_thinker_are_those_of_the_whole_models_checkpoint(tmp_path: Path) -> None:
    """In memory they are `model.audio_tower.*`, which SGLang would pass over with "Success"."""
    model = build_tiny_model("qwen3_omni")
    model.save_pretrained(tmp_path / "saved")
    saved = {f"thinker.{name}": tensor for name, tensor in load_file(tmp_path / "saved" / "model.safetensors").items()}
    got = dict(sglang_names(THINKER)(model.named_parameters()))
    assert got.keys() == saved.keys()
    assert all(torch.equal(got[name], tensor) for name, tensor in saved.items())
    assert {name.split(".")[1] for name in got} == {"audio_tower", "visual", "model", "lm_head"}
    assert (
        dict(sglang_names(THINKER)([(n.removeprefix("thinker."), t) for n, t in saved.items()])).keys() == saved.keys()
    )
