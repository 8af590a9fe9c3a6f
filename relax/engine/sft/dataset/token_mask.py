# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From trained characters to trained tokens, on one tokenisation of the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relax.data.model_files import tokenizer_lock
from relax.utils.errors import ConfigError


def masked_tokens(
    tokenizer: Any, text: str, spans: Sequence[tuple[int, int]], *, special: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids [T] (int32) of `text` and whether each lies within one of `spans` [T] (uint8).

    `spans` are half-open character ranges in order. A token that also covers characters outside is not trained: a
    model that continues a prompt never samples it. `special` adds the tokens that the tokenizer puts around a text;
    they lie in no span.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"--hf-checkpoint: the tokenizer {type(tokenizer).__name__} tells no character offsets, which the loss "
            "mask needs; use a model folder with a tokenizer.json (a fast tokenizer)"
        )
    with tokenizer_lock(tokenizer):
        encoded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True, truncation=False)
    token_ids = np.asarray(encoded["input_ids"], np.int32)
    offsets = np.asarray(encoded["offset_mapping"], np.int64).reshape(-1, 2)
    return token_ids, mask_of_offsets(offsets, spans)


def mask_of_offsets(offsets: np.ndarray, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Whether each token [T] lies within one of the character ranges; `offsets` [T, 2].

    Tokenizers that trim offsets leave white space to no token; it goes to the token behind it. Tokens without
    characters, which a tokenizer adds around a text, are outside.
    """
    ends = offsets[:, 1]
    covered = np.maximum.accumulate(np.concatenate([[0], ends]))[:-1]  # characters before each token that have one
    starts = np.minimum(offsets[:, 0], covered)
    mask = np.zeros(len(ends), np.uint8)
    for low, high in spans:
        mask[(starts >= low) & (ends <= high) & (ends > starts)] = 1
    return mask
