# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Tensor names as SGLang loads them.

transformers 5 holds the experts of a mixture-of-experts layer fused; SGLang answers "Success" to fused names and
leaves its experts unchanged, so they are split here. Names and order within a fused tensor follow transformers' own
conversion for the `qwen2_moe` family: expert on dimension 0, then gate above up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_FUSED = re.compile(r"^(.*\bmlp\.experts)\.(gate_up_proj|down_proj)$")


def sglang_names(
    prefix: str = "", *, split_experts: bool = True
) -> Callable[[Iterable[tuple[str, Tensor]]], Iterator[tuple[str, Tensor]]]:
    """A `name_map` for publishers: puts `prefix` ("thinker." for a Qwen3-Omni thinker) before every name and splits
    `mlp.experts.gate_up_proj [E, 2I, H]` and `mlp.experts.down_proj [E, H, I]` into one matrix an expert.
    """

    def rename(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights:
            match = _FUSED.match(name) if split_experts else None
            if match is None:
                yield prefix + name, tensor
            else:
                yield from _split(prefix + match[1], match[2], tensor)

    return rename


def _split(experts: str, kind: str, fused: Tensor) -> Iterator[tuple[str, Tensor]]:
    for place, matrix in enumerate(fused.unbind(0)):
        if kind == "down_proj":
            yield f"{experts}.{place}.down_proj.weight", matrix
            continue
        gate, up = matrix.chunk(2, dim=0)
        yield f"{experts}.{place}.gate_proj.weight", gate
        yield f"{experts}.{place}.up_proj.weight", up
