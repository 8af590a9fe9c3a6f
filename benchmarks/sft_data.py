# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rows of the benchmarks of supervised fine-tuning."""

from __future__ import annotations

import ast
import io
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

DIGIT_PIXELS = 32
DOC_CHARACTERS = 160  # of a docstring
TOPICS = (("return",), ("file", "path"), ("string", "text"), ("error", "exception", "raise"))
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


def docstring_rows(count: int, *, several: bool) -> list[dict[str, Any]]:
    """Docstrings of Python's own library, real English: `label` is what is documented (0 function, 1 class), or with
    `several` the list of what it speaks of (see TOPICS), which may be empty."""
    found: list[tuple[str, bool]] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        tree = ast.parse(path.read_text("utf-8", errors="replace"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (text := ast.get_docstring(node)):
                found.append((" ".join(text.split())[:DOC_CHARACTERS], isinstance(node, ast.ClassDef)))
    random = np.random.RandomState(0)
    classes = [doc for doc in found if doc[1]]
    functions = [doc for doc in found if not doc[1]]
    half = min(count // 2, len(classes), len(functions))
    chosen = [group[place] for group in (classes, functions) for place in random.permutation(len(group))[:half]]
    rows = []
    for place in random.permutation(len(chosen)).tolist():
        text, is_class = chosen[place]
        topics = [number for number, words in enumerate(TOPICS) if any(word in text.lower() for word in words)]
        label = topics if several else int(is_class)
        rows.append({"messages": [{"role": "user", "content": text}], "label": label})
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
