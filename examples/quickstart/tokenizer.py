# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A byte-level BPE of about 340 ids with Qwen's special tokens and chat layout, made in a second from nothing."""

from __future__ import annotations

from typing import Any

EOS = "<|im_end|>"
PAD = "<|endoftext|>"
MEDIA_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "audio_token": "<|audio_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}
SPECIAL = [PAD, "<|im_start|>", EOS, "<|vision_pad|>", *MEDIA_TOKENS.values()]

CHAT_TEMPLATE = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif part.type == 'video' %}{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
            {%- elif part.type == 'audio' %}{{- '<|audio_start|><|audio_pad|><|audio_end|>' }}
            {%- elif part.type == 'text' %}{{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""


def make_tokenizer(vocab_size: int = 340) -> Any:
    """A fast tokenizer that splits numbers into single digits; left padding, `<|im_end|>` ends a turn."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = (f"{a}+{b}={a + b} left right up down user assistant\n" for a in range(60) for b in range(60))
    bpe.train_from_iterator(lines, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        extra_special_tokens=MEDIA_TOKENS,
        model_max_length=2048,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
