# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Tiny tokenizers, processors, configs and model folders built from nothing, for tests.

Everything is deterministic: the same arguments give the same bytes. Nothing is downloaded. torch and transformers are
imported inside the functions, so a test that needs no model pays for none.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
)

CHAT_TEMPLATE = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content is string %}{{ message.content }}"
    "{%- elif message.content %}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'audio' %}{{ '<|audio_start|><|audio_pad|><|audio_end|>' }}"
    "{%- elif part.type == 'text' %}{{ part.text }}{%- endif %}{%- endfor %}{%- endif %}"
    "{%- for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</tool_call>' }}"
    "{%- endfor %}{{ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)

# The attributes that the omni processors read from their tokenizer.
MEDIA_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "audio_token": "<|audio_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}

MODEL_KINDS = ("qwen3", "qwen3_moe", "qwen3_omni", "qwen3_vl")  # "qwen3_omni_moe" is the thinker with experts

_CORPUS = tuple(
    f"system user assistant What is {a} plus {b}? Which digit is shown? The answer is {a + b}."
    for a in range(20)
    for b in range(20)
)


@functools.lru_cache(maxsize=1)
def _tokenizer_json(vocab_size: int = 320) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer.to_str()


def tiny_tokenizer() -> Any:
    """A fast byte-level BPE tokenizer with at most 320 ids, Qwen's special tokens and a chat template."""
    import transformers
    from tokenizers import Tokenizer

    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_tokenizer_json()),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        extra_special_tokens=MEDIA_TOKENS,
        model_max_length=4096,
        chat_template=CHAT_TEMPLATE,
    )


def _vision_processors(video_class: str) -> tuple[Any, Any]:
    import transformers

    size = {"shortest_edge": 32 * 32, "longest_edge": 128 * 128}
    shape = {"patch_size": 8, "merge_size": 2, "size": size}
    return transformers.Qwen2VLImageProcessor(**shape), getattr(transformers, video_class)(**shape)


def tiny_omni_processor() -> Any:
    """A `Qwen3OmniMoeProcessor`: patch 8, merge 2, images of 32x32 to 128x128 pixels, 128 mel bins."""
    from relax.utils.torchvision_shim import ensure_torchvision

    ensure_torchvision()
    import transformers

    image, video = _vision_processors("Qwen2VLVideoProcessor")
    return transformers.Qwen3OmniMoeProcessor(
        image_processor=image,
        video_processor=video,
        feature_extractor=transformers.WhisperFeatureExtractor(feature_size=128),
        tokenizer=tiny_tokenizer(),
        chat_template=CHAT_TEMPLATE,
    )


def tiny_vl_processor(kind: str = "qwen3_vl") -> Any:
    """A `Qwen3VLProcessor` or, with kind "qwen2_5_vl", a `Qwen2_5_VLProcessor` of the same sizes."""
    from relax.utils.torchvision_shim import ensure_torchvision

    ensure_torchvision()
    import transformers

    names = {
        "qwen3_vl": ("Qwen3VLProcessor", "Qwen3VLVideoProcessor"),
        "qwen2_5_vl": ("Qwen2_5_VLProcessor", "Qwen2VLVideoProcessor"),
    }[kind]
    image, video = _vision_processors(names[1])
    return getattr(transformers, names[0])(
        image_processor=image, video_processor=video, tokenizer=tiny_tokenizer(), chat_template=CHAT_TEMPLATE
    )


def _text_config(tokenizer: Any, *, mrope: bool, moe: bool) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
    if mrope:
        rope |= {"mrope_section": [4, 2, 2], "mrope_interleaved": True}
    config: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "rope_parameters": rope,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "tie_word_embeddings": False,
    }
    if moe:
        config |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1}
    return config


def _vision_config() -> dict[str, Any]:
    # SGLang's MoE vision code expects exactly three deepstack layers.
    return {
        "depth": 3,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "out_hidden_size": 64,
        "patch_size": 8,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1, 2],
    }


def _token_ids(tokenizer: Any, **names: str) -> dict[str, int]:
    return {name: tokenizer.convert_tokens_to_ids(token) for name, token in names.items()}


def tiny_qwen3_config(tokenizer: Any | None = None, *, moe: bool = False) -> Any:
    """`Qwen3Config` (or `Qwen3MoeConfig`): 2 layers, hidden 64."""
    import transformers

    tokenizer = tokenizer or tiny_tokenizer()
    cls = transformers.Qwen3MoeConfig if moe else transformers.Qwen3Config
    return cls(**_text_config(tokenizer, mrope=False, moe=moe))


def tiny_vl_config(tokenizer: Any | None = None) -> Any:
    """`Qwen3VLConfig` (dense): 2 text layers, 3 vision layers."""
    import transformers

    tokenizer = tokenizer or tiny_tokenizer()
    ids = _token_ids(
        tokenizer,
        image_token_id="<|image_pad|>",
        video_token_id="<|video_pad|>",
        vision_start_token_id="<|vision_start|>",
        vision_end_token_id="<|vision_end|>",
    )
    text = _text_config(tokenizer, mrope=True, moe=False)
    return transformers.Qwen3VLConfig(
        text_config=text, vision_config=_vision_config(), tie_word_embeddings=False, **ids
    )


def tiny_omni_config(tokenizer: Any | None = None, *, moe: bool = False) -> Any:
    """`Qwen3OmniMoeThinkerConfig`; dense layers unless `moe`. Ids come from the tokenizer."""
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeThinkerConfig

    tokenizer = tokenizer or tiny_tokenizer()
    text = _text_config(tokenizer, mrope=True, moe=True)
    if not moe:
        text["mlp_only_layers"] = list(range(text["num_hidden_layers"]))
    audio = {
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "output_dim": 64,
        "downsample_hidden_size": 32,
        "n_window": 50,
        "n_window_infer": 100,
        "max_source_positions": 1500,
        "num_mel_bins": 128,
    }
    ids = _token_ids(
        tokenizer,
        image_token_id="<|image_pad|>",
        video_token_id="<|video_pad|>",
        audio_token_id="<|audio_pad|>",
        vision_start_token_id="<|vision_start|>",
        vision_end_token_id="<|vision_end|>",
        audio_start_token_id="<|audio_start|>",
        audio_end_token_id="<|audio_end|>",
    )
    return Qwen3OmniMoeThinkerConfig(text_config=text, vision_config=_vision_config(), audio_config=audio, **ids)


def perturb_weights(model: Any, seed: int = 0) -> None:
    """Replace the near-zero initial weights in place: matrices by N(0, 1/fan_in), vectors moved by N(0, 0.1^2).

    The head is scaled by 2, so logits have a standard deviation of about 2 and are far from uniform.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    head = model.get_output_embeddings()
    head_weight = None if head is None else head.weight
    embedding = model.get_input_embeddings().weight
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(parameter.dtype)
            if parameter.ndim < 2:
                parameter.add_(0.1 * noise)
            elif parameter is embedding:
                parameter.copy_(noise)
            else:
                fan_in = parameter[0].numel() if parameter.ndim != 3 else parameter.shape[-1]
                gain = 2.0 if parameter is head_weight else 1.0
                parameter.copy_(gain * noise / fan_in**0.5)


def build_tiny_model(kind: str = "qwen3", *, seed: int = 0, perturb: bool = True) -> Any:
    """A tiny float32 model in eval mode. `kind` is one of `MODEL_KINDS`; "qwen3_omni" is the thinker."""
    if kind not in (*MODEL_KINDS, "qwen3_omni_moe"):
        raise ValueError(f"kind {kind!r} is not one of {MODEL_KINDS}")
    import torch
    import transformers

    tokenizer = tiny_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind in ("qwen3_omni", "qwen3_omni_moe"):
            config = tiny_omni_config(tokenizer, moe=kind == "qwen3_omni_moe")
            model = transformers.Qwen3OmniMoeThinkerForConditionalGeneration(config)
        elif kind == "qwen3_vl":
            model = transformers.Qwen3VLForConditionalGeneration(tiny_vl_config(tokenizer))
        elif kind == "qwen3_moe":
            model = transformers.Qwen3MoeForCausalLM(tiny_qwen3_config(tokenizer, moe=True))
        else:
            model = transformers.Qwen3ForCausalLM(tiny_qwen3_config(tokenizer))
    if perturb:
        perturb_weights(model, seed)
    return model.float().eval()


def build_tiny_model_folder(path: str | Path, kind: str = "qwen3", seed: int = 0, perturb: bool = True) -> Path:
    """Save model, tokenizer and (for omni and VL) processor as an ordinary HF folder and return its path."""
    folder = Path(path)
    model = build_tiny_model(kind, seed=seed, perturb=perturb)
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    if kind.startswith("qwen3_omni"):
        tiny_omni_processor().save_pretrained(folder)
    elif kind == "qwen3_vl":
        tiny_vl_processor().save_pretrained(folder)
    else:
        tiny_tokenizer().save_pretrained(folder)
    return folder


def write_jsonl(path: str | Path, rows: list[Any]) -> Path:
    """Write one JSON value a line and return the path."""
    target = Path(path)
    target.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return target
