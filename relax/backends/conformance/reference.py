# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The independent answer: log-probs by an ordinary Hugging Face forward of one sequence, without cache or batching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from relax.utils.types import MediaFeatures


def hf_log_probs(
    model: Any,
    prompt: Sequence[int],
    features: Sequence[MediaFeatures],
    response: Sequence[int],
    temperature: float,
    suppressed: Sequence[int] = (),
) -> np.ndarray:
    """float64 log-probs [R] of `response` after the expanded `prompt`; suppressed ids have no probability."""
    logits = hf_logits(model, prompt, features, response)
    logits[:, list(suppressed)] = -torch.inf
    chosen = torch.tensor(list(response))[:, None]
    return (logits / temperature).log_softmax(-1).gather(1, chosen)[:, 0].numpy()


def hf_logits(
    model: Any, prompt: Sequence[int], features: Sequence[MediaFeatures], response: Sequence[int]
) -> torch.Tensor:
    """float64 logits [R, vocabulary] that each response token was drawn from."""
    full = torch.tensor([[*prompt, *response]])
    with torch.no_grad():
        out = model(input_ids=full, attention_mask=torch.ones_like(full), use_cache=False, **hf_inputs(features))
    return out.logits[0, len(prompt) - 1 : -1].double()


def hf_inputs(features: Sequence[MediaFeatures]) -> dict[str, torch.Tensor]:
    """Model arguments of media features in order of their placeholders."""
    inputs: dict[str, torch.Tensor] = {}
    for kind, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        chosen = [f for f in features if f.kind == kind]
        if chosen:
            inputs[pixels] = torch.cat([torch.from_numpy(f.tensors[pixels]) for f in chosen])
            grids = [torch.from_numpy(f.tensors[f"{kind}_grid_thw"]).reshape(3) for f in chosen]
            inputs[f"{kind}_grid_thw"] = torch.stack(grids)
    seconds = [f.tensors["video_second_per_grid"] for f in features if "video_second_per_grid" in f.tensors]
    if seconds:
        inputs["video_second_per_grid"] = torch.tensor([float(s) for s in seconds])
    clips = [torch.from_numpy(f.tensors["input_features"]) for f in features if f.kind == "audio"]
    if clips:
        longest = max(clip.shape[1] for clip in clips)
        padded = [torch.nn.functional.pad(clip, (0, longest - clip.shape[1])) for clip in clips]
        inputs["input_features"] = torch.stack(padded)
        lengths = torch.tensor([clip.shape[1] for clip in clips])
        inputs["feature_attention_mask"] = (torch.arange(longest) < lengths[:, None]).long()
    return inputs
