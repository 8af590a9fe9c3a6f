# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rows of the benchmarks of supervised fine-tuning."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

DIGIT_PIXELS = 32
QUESTION = "Which digit is shown?<image>"


def sum_rows(limit: int = 16) -> list[dict[str, str]]:
    """Every a + b below `limit` as prompt and label."""
    return [
        {"problem": f"What is {a} plus {b}?", "generated_solution": f"{a + b}"}
        for a in range(limit)
        for b in range(limit)
    ]


def long_rows(count: int, words: int = 120) -> list[dict[str, str]]:
    """Texts of random length around `words` words, for throughput; the same at every call."""
    random = np.random.default_rng(0)
    vocabulary = ("What", "is", "plus", "the", "answer", "digit", "shown", "we", "solve", "step", "by", "find")
    rows = []
    for _ in range(count):
        length = int(random.integers(words // 2, words * 3 // 2))
        chosen = [vocabulary[place] for place in random.integers(0, len(vocabulary), length)]
        rows.append(
            {"problem": " ".join(chosen[: length // 4]), "generated_solution": " ".join(chosen[length // 4 :])}
        )
    return rows


def digit_rows(count: int) -> list[dict[str, Any]]:
    """Handwritten digits (UCI, inside scikit-learn) as image structs `{bytes, path}`, in ShareGPT's layout."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))[:count]
    rows = []
    for number in order.tolist():
        pixels = (digits.images[number] * 15.9375).astype(np.uint8)  # 0 .. 16 -> 0 .. 255
        image = Image.fromarray(pixels).resize((DIGIT_PIXELS, DIGIT_PIXELS), Image.Resampling.BILINEAR).convert("RGB")
        content = io.BytesIO()
        image.save(content, format="PNG")
        rows.append(
            {
                "conversations": [
                    {"from": "human", "value": QUESTION},
                    {"from": "gpt", "value": str(digits.target[number])},
                ],
                "images": [{"bytes": content.getvalue(), "path": f"digit-{number}.png"}],
            }
        )
    return rows


def write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path
