# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Continued pre-training (`--sft-training-mode cpt`): whole documents without a chat template, each closed once.

raw       the tokenizer's own start, the text, its end token
qwen3_5   the text, <|endoftext|>: Qwen's end token closes a chat turn, its documents end with this one
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relax.data.model_files import tokenizer_lock
from relax.engine.sft.dataset.token_mask import masked_tokens
from relax.utils.errors import ConfigError, DataError

_QWEN_END = "<|endoftext|>"


def document_tokens(tokenizer: Any, text: str, template: str, *, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Ids [T] (int32) and mask [T] (uint8): every token is trained but the first, which nothing predicts."""
    if not text:
        raise DataError("the row's text is empty", where=where)
    ids, _ = masked_tokens(tokenizer, text, (), special=template == "raw")
    end = _end_id(tokenizer, template)
    if len(ids) == 0 or ids[-1] != end:
        ids = np.append(ids, np.int32(end))
    mask = np.ones(len(ids), np.uint8)
    mask[:1] = 0
    return ids, mask


def _end_id(tokenizer: Any, template: str) -> int:
    if template == "raw":
        if tokenizer.eos_token_id is None:
            raise ConfigError("--sft-cpt-template raw: the tokenizer of --hf-checkpoint has no end token")
        return tokenizer.eos_token_id
    with tokenizer_lock(tokenizer):
        found = tokenizer.convert_tokens_to_ids(_QWEN_END)
    if found is None or found == tokenizer.unk_token_id:
        raise ConfigError(f"--sft-cpt-template qwen3_5: the tokenizer of --hf-checkpoint has no {_QWEN_END}")
    return found
