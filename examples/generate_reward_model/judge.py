# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A judge model: it reads a label and an answer, and says 1 when they are the same, else 0.

Its examples are pairs of digits, half of them equal, and answers that no digit is: empty, too long, a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from examples.quickstart.heldout import accuracy, answers, rows_of
from examples.quickstart.model import build_model
from examples.quickstart.sft import ColdStart, cold_start
from relax.utils.jsonl import JsonlWriter

PLAN = ColdStart(240, 1.5e-3)
LAYERS = 2
RIGHT, WRONG = "1", "0"
JUNK_EVERY = 5  # one in so many rows
WORDS = ("", "left", "right", "up", "down", "=", "+")


def question(label: str, answer: str) -> str:
    """What the judge is asked."""
    return f"{label}={answer}?"


def pairs(number: int, seed: int) -> Iterator[dict[str, object]]:
    """Rows for supervised training, verdicts balanced as far as answers are digits."""
    random = np.random.RandomState(seed)
    for place in range(number):
        label = str(random.randint(10))
        if place % JUNK_EVERY == 0:
            answer = WORDS[random.randint(len(WORDS))] if random.rand() < 0.5 else label + str(random.randint(100))
        else:
            answer = label if random.rand() < 0.5 else str(random.randint(10))
        yield _row(label, answer)


def all_pairs() -> list[dict[str, object]]:
    """Every pair of digits."""
    return [_row(str(label), str(answer)) for label in range(10) for answer in range(10)]


def _row(label: str, answer: str) -> dict[str, object]:
    verdict = RIGHT if label == answer else WRONG
    return {"prompt": [{"role": "user", "content": question(label, answer)}], "label": verdict}


def train_judge(folder: Path, *, seed: int, say: Callable[[str], None]) -> tuple[Path, float]:
    """Write the judge to `folder/judge`; return it and its share of right verdicts over all pairs of digits."""
    size = build_model(folder / "judge-random", seed=seed + 7, layers=LAYERS)
    say(f"judge: {size:,} parameters, {PLAN.steps} supervised steps")
    train = _write(folder / "judge-data" / "train.jsonl", pairs(PLAN.steps * PLAN.batch_size, seed))
    cold_start(folder / "judge-random", train, folder / "judge", "text", PLAN, wrong_share=0.0, seed=seed, say=say)
    asked = _write(folder / "judge-data" / "pairs.jsonl", iter(all_pairs()))
    return folder / "judge", accuracy(rows_of(asked), answers(folder / "judge", asked))


def _write(path: Path, rows: Iterator[dict[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with JsonlWriter(path) as writer:
        for row in rows:
            writer.write(row)
    return path
