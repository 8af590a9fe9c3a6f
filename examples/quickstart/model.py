# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A Qwen3-Omni thinker of about one million parameters: the real class and processor, random weights, fixed seed.

`build_model` writes an ordinary Hugging Face folder; `write_sglang_form` writes the same weights in the layout that
SGLang serves.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from examples.quickstart.tokenizer import EOS, SPECIAL, make_tokenizer
from relax.utils.torchvision_shim import ensure_torchvision

HEAD_DIM = 16
PATCH = 8
IMAGE_PIXELS = 32  # an image is 32x32: 4x4 patches, merged 2x2 into 4 tokens


def thinker_config(tokenizer: Any, *, hidden: int = 128, layers: int = 3, experts: int = 0) -> Any:
    """Config of the thinker. `experts` 0 makes it dense; else every layer has that many experts, two active."""
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeThinkerConfig

    tower = 64  # width of both encoders
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in ID_NAMES.items()}
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // HEAD_DIM,
        "num_key_value_heads": max(1, hidden // HEAD_DIM // 2),
        "head_dim": HEAD_DIM,
        "num_experts": max(4, experts),
        "num_experts_per_tok": 2,
        "moe_intermediate_size": hidden,
        "mlp_only_layers": [] if experts else list(range(layers)),
        "max_position_embeddings": 2048,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    vision = {
        "depth": 3,
        "hidden_size": tower,
        "intermediate_size": 2 * tower,
        "num_heads": tower // 16,
        "out_hidden_size": hidden,
        "patch_size": PATCH,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1, 2],  # SGLang's reader takes exactly three
    }
    audio = {
        "d_model": tower,
        "encoder_layers": 2,
        "encoder_attention_heads": tower // 16,
        "encoder_ffn_dim": 2 * tower,
        "output_dim": hidden,
        "downsample_hidden_size": 32,
        "n_window": 50,
        "n_window_infer": 100,
        "max_source_positions": 1500,
        "num_mel_bins": 128,
    }
    config = Qwen3OmniMoeThinkerConfig(text_config=text, vision_config=vision, audio_config=audio, **ids)
    config.initializer_range = 0.02
    return config


ID_NAMES = {
    "audio_token_id": "<|audio_pad|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "audio_start_token_id": "<|audio_start|>",
}


def make_processor(tokenizer: Any) -> Any:
    """The real Qwen3-Omni processor, sized for 32x32 images."""
    from transformers import Qwen2VLVideoProcessor, Qwen3OmniMoeProcessor, WhisperFeatureExtractor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    area = IMAGE_PIXELS * IMAGE_PIXELS
    size = {"shortest_edge": area, "longest_edge": area}
    return Qwen3OmniMoeProcessor(
        image_processor=Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=2, size=size),
        video_processor=Qwen2VLVideoProcessor(patch_size=PATCH, merge_size=2, size=size),
        feature_extractor=WhisperFeatureExtractor(feature_size=128),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )


def build_model(folder: Path, *, seed: int = 0, layers: int = 3, experts: int = 0) -> int:
    """Write model, tokenizer and processor to `folder`; return the number of parameters."""
    ensure_torchvision()
    import torch
    from transformers import GenerationConfig, Qwen3OmniMoeThinkerForConditionalGeneration

    tokenizer = make_tokenizer()
    processor = make_processor(tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3OmniMoeThinkerForConditionalGeneration(thinker_config(tokenizer, layers=layers, experts=experts))
    # A sampled placeholder would ask the training forward for an image that is not there.
    suppressed = [tokenizer.convert_tokens_to_ids(token) for token in SPECIAL if token != EOS]
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, suppress_tokens=suppressed
    )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def write_sglang_form(source: Path, folder: Path) -> None:
    """Write the model of `source` as the whole Qwen3-Omni without speech output, the layout that SGLang serves."""
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.suffix not in (".safetensors",) and not file.name.endswith(".index.json"):
            shutil.copyfile(file, folder / file.name)
    whole = {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "enable_audio_output": False,
        "thinker_config": json.loads((source / "config.json").read_text()),
    }
    (folder / "config.json").write_text(json.dumps(whole, indent=2))
    weights = {f"thinker.{k}": v for part in sorted(source.glob("*.safetensors")) for k, v in load_file(part).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
