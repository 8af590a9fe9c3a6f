# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Greedy answers to held-out rows by plain transformers: no code of Relax computes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relax.utils.jsonl import read_jsonl

MAX_NEW_TOKENS = 4
BATCH = 100


def rows_of(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path))


def answers(model_folder: Path, data: Path) -> list[str]:
    """One greedy answer a row; an answer without an end token is marked with a trailing `...`."""
    import torch
    from transformers import AutoModelForMultimodalLM, AutoProcessor
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForMultimodalLM.from_pretrained(model_folder).eval()
    processor = AutoProcessor.from_pretrained(model_folder)
    rows, out = rows_of(data), []
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        inputs = processor(**_inputs(processor, batch, data.parent), padding=True, return_tensors="pt")
        with torch.inference_mode():
            ids = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
        width = inputs["input_ids"].shape[1]
        out += [_text(processor.tokenizer, row) for row in ids[:, width:].tolist()]
    return out


def _inputs(processor: Any, rows: Sequence[dict[str, Any]], folder: Path) -> dict[str, Any]:
    texts = [processor.apply_chat_template(messages(row), add_generation_prompt=True, tokenize=False) for row in rows]
    inputs: dict[str, Any] = {"text": texts}
    if "image" in rows[0]:
        from PIL import Image

        inputs["images"] = [Image.open(folder / path).convert("RGB") for row in rows for path in row["image"]]
    if "audio" in rows[0]:
        import soundfile

        clips = [soundfile.read(folder / path, dtype="float32")[0] for row in rows for path in row["audio"]]
        inputs |= {"audio": clips, "audio_kwargs": {"sampling_rate": 16000}}
    return inputs


def messages(row: dict[str, Any]) -> list[dict[str, Any]]:
    parts = {"<image>": [{"type": "image"}], "<audio>": [{"type": "audio"}]}
    return [{**message, "content": parts.get(message["content"], message["content"])} for message in row["prompt"]]


def _text(tokenizer: Any, ids: Sequence[int]) -> str:
    if tokenizer.eos_token_id in ids:
        return tokenizer.decode(ids[: ids.index(tokenizer.eos_token_id)])
    return tokenizer.decode(ids, skip_special_tokens=True) + "..."


def accuracy(rows: Sequence[dict[str, Any]], given: Sequence[str]) -> float:
    """Share of exactly right answers."""
    return sum(row["label"] == answer for row, answer in zip(rows, given, strict=True)) / len(rows)
