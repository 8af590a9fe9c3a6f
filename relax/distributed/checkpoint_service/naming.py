# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Tensor names as SGLang loads them.

transformers 5 holds the experts of a mixture-of-experts layer fused; SGLang answers "Success" to fused names and
leaves its experts unchanged, so they are split here. Names and order within a fused tensor follow transformers' own
conversion for the `qwen2_moe` family: expert on dimension 0, then gate above up.

An omni thinker also has other names in memory (`model.audio_tower.*`, `model.language_model.*`) than in its checkpoint
(`audio_tower.*`, `model.*`), whose names SGLang reads, behind `thinker.`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

THINKER = "thinker."
_FUSED = re.compile(r"^(.*\bmlp\.experts)\.(gate_up_proj|down_proj)$")
_INNER = re.compile(r"^model\.(?=(visual|audio_tower|language_model)\.)")


def sglang_names(
    prefix: str = "", *, split_experts: bool = True
) -> Callable[[Iterable[tuple[str, Tensor]]], Iterator[tuple[str, Tensor]]]:
    """A `name_map` for publishers: puts `prefix` before every name and splits `mlp.experts.gate_up_proj [E, 2I, H]`
    and `mlp.experts.down_proj [E, H, I]` into one matrix an expert. With `THINKER` as prefix, names are those of the
    checkpoint of a whole omni model.
    """

    def rename(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights:
            if prefix == THINKER:
                name = checkpoint_name(name)
            match = _FUSED.match(name) if split_experts else None
            if match is None:
                yield prefix + name, tensor
            else:
                yield from _split(prefix + match[1], match[2], tensor)

    return rename


def checkpoint_name(name: str) -> str:
    """The name that an omni thinker's tensor has in its checkpoint; checkpoint names stay as they are."""
    short = _INNER.sub("", name)
    return "model." + short.removeprefix("language_model.") if short.startswith("language_model.") else short


def _split(experts: str, kind: str, fused: Tensor) -> Iterator[tuple[str, Tensor]]:
    for place, matrix in enumerate(fused.unbind(0)):
        if kind == "down_proj":
            yield f"{experts}.{place}.down_proj.weight", matrix
            continue
        gate, up = matrix.chunk(2, dim=0)
        yield f"{experts}.{place}.gate_proj.weight", gate
        yield f"{experts}.{place}.up_proj.weight", up
