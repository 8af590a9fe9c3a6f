# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Megatron's architecture flags against the model's own `config.json`.

The flags may be left out, for the Hugging Face configuration decides. Where they are given they are compared, so a
model script that belongs to another model is found before anything starts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax.config.external.tables import ExternalFlags

# {flag: keys of config.json that hold the same number, first found wins}
COMPARED: Mapping[str, tuple[str, ...]] = {
    "num-layers": ("num_hidden_layers",),
    "hidden-size": ("hidden_size",),
    "ffn-hidden-size": ("intermediate_size",),
    "num-attention-heads": ("num_attention_heads",),
    "num-query-groups": ("num_key_value_heads",),
    "kv-channels": ("head_dim",),
    "vocab-size": ("vocab_size",),
    "norm-epsilon": ("rms_norm_eps", "layer_norm_eps"),
    "rotary-base": ("rope_theta",),
    "num-experts": ("num_experts", "num_local_experts"),
    "moe-router-topk": ("num_experts_per_tok",),
    "moe-ffn-hidden-size": ("moe_intermediate_size",),
}

# flags that only describe the architecture and have no single number to compare
DESCRIBING = (
    "swiglu",
    "group-query-attention",
    "use-rotary-position-embeddings",
    "disable-bias-linear",
    "normalization",
    "qk-layernorm",
    "add-qkv-bias",
    "rotary-percent",
    "position-embedding-type",
    "max-position-embeddings",
    "untie-embeddings-and-output-weights",
    "moe-layer-freq",
    "moe-router-score-function",
    "moe-router-load-balancing-type",
    "moe-router-pre-softmax",
    "make-vocab-size-divisible-by",
    "use-rope-scaling",
    "rotary-interleaved",
    "apply-layernorm-1p",
)
ARCHITECTURE = frozenset(COMPARED) | frozenset(DESCRIBING)


def architecture_differences(external: ExternalFlags, hf_folder: Path) -> list[str]:
    """One line a flag whose value is not the one in `hf_folder/config.json`; none when there is no such file."""
    file = hf_folder / "config.json"
    if not file.is_file():
        return []
    config = text_config(json.loads(file.read_text("utf-8")))
    lines = []
    for flag in external.given:
        if flag.table != "megatron" or flag.name not in COMPARED:
            continue
        found = [(key, config[key]) for key in COMPARED[flag.name] if config.get(key) is not None]
        if found and not _equal(flag.value, found[0][1]):
            lines.append(
                f"{flag}: {file} has {found[0][0]} = {found[0][1]}; leave the flag out or source the right model"
            )
    return lines


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a model's configuration that describes its language model."""
    for key in ("thinker_config", "text_config", "llm_config"):
        if isinstance(config.get(key), Mapping):
            return text_config(config[key])
    rope = config.get("rope_parameters")
    if isinstance(rope, Mapping) and "rope_theta" in rope:
        return {**config, "rope_theta": rope["rope_theta"]}
    return config


def _equal(given: Any, configured: Any) -> bool:
    return math.isclose(float(given), float(configured), rel_tol=1e-9)
