# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Tiny models of families with linear attention, as Hugging Face folders."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.builders import perturb_weights, tiny_tokenizer

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "tie_word_embeddings": False,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
VISION = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 4,
    "out_hidden_size": 64,
    "patch_size": 8,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 64,
}
FAMILIES = (
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)


def recurrent_folder(folder: Path, name: str = "Qwen3_5ForCausalLM", seed: int = 0) -> Path:
    """`name` is one of FAMILIES. MTP layers under the public names are added (`mtp.*`)."""
    import transformers
    from safetensors.torch import load_file, save_file

    tokenizer = tiny_tokenizer()
    ids = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 2, "bos_token_id": None}
    config = _config(name, ids)
    torch.manual_seed(seed)
    model = getattr(transformers, name)(config).eval()
    perturb_weights(model, seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | _mtp(tensors), folder / "model.safetensors", {"format": "pt"})
    return folder


def _config(name: str, ids: dict):
    import transformers

    if name.endswith("ForConditionalGeneration"):
        media = ("image_token_id", "<|image_pad|>"), ("video_token_id", "<|video_pad|>")
        media = (*media, ("vision_start_token_id", "<|vision_start|>"), ("vision_end_token_id", "<|vision_end|>"))
        own = {key: tiny_tokenizer().convert_tokens_to_ids(token) for key, token in media}
        moe = "Moe" in name
        return (transformers.Qwen3_5MoeConfig if moe else transformers.Qwen3_5Config)(
            text_config=TEXT | ids | (EXPERTS if moe else {}),
            vision_config=VISION,
            tie_word_embeddings=False,
            pad_token_id=0,
            **own,
        )
    if name == "Qwen3NextForCausalLM":
        more = EXPERTS | {"decoder_sparse_step": 1, "mlp_only_layers": [0, 1, 2, 3]}
        return transformers.Qwen3NextConfig(**TEXT, **ids, **more)
    if name == "Qwen3_5MoeForCausalLM":
        return transformers.Qwen3_5MoeTextConfig(**TEXT, **ids, **EXPERTS)
    return transformers.Qwen3_5TextConfig(**TEXT, **ids)


def _mtp(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A copy of the last layer, which has full attention, and norms and a projection of its own."""
    generator = torch.Generator().manual_seed(1)
    width = TEXT["hidden_size"]
    found = {"mtp.fc.weight": torch.randn(width, 2 * width, generator=generator) * 0.1}
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        found[f"mtp.{name}.weight"] = 0.1 * torch.randn(width, generator=generator)
    for name, tensor in tensors.items():
        if ".layers.3." in name:
            found["mtp.layers.0." + name.partition(".layers.3.")[2]] = tensor.clone()
    return found
