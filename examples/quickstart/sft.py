# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The cold start: supervised fine-tuning (`--loss-type sft`) on demonstrations of which a share is wrong by design.

The demonstrations teach the model to look at its input and to answer in the right form. Where they disagree (half of
them name the next digit), the model is left undecided, and the verifiable reward decides in the second phase.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import numpy as np

from examples.quickstart.data import wrong_answer
from relax.data.model_files import load_tokenizer
from relax.engine.sft.dataset.examples import SftDataOptions, SftExample, SftExamples
from relax.utils.jsonl import JsonlWriter, dumps, read_jsonl

SHOWN_EVERY = 20  # steps
MAX_TOKENS = 8192  # of a micro-batch


@dataclass(frozen=True)
class ColdStart:
    """How long and how fast. Warm-up and a linear decay to a tenth of the learning rate."""

    steps: int
    lr: float
    batch_size: int = 64
    warmup_steps: int = 20
    clip_grad: float = 1.0


class Demonstrations(SftExamples):
    """Rows of the demonstrations. A prompt is drawn again and again, and is rendered once; answers are digits, a token
    each, and another answer to the same prompt takes the place of the first."""

    def __init__(self, options: SftDataOptions) -> None:
        super().__init__(options)
        self._tokenizer = load_tokenizer(options.model)
        self._rendered: dict[str, tuple[SftExample, int]] = {}  # prompt -> an example of it, tokens of its answer

    def example(self, row: int) -> SftExample:
        values = dict(self.raw(row).values)
        answer = self._tokenizer(values.pop("answer"), add_special_tokens=False)["input_ids"]
        key = dumps(values)
        if key not in self._rendered:
            found = super().example(row)
            assert isinstance(found, SftExample)  # no strategy leaves a row out
            self._rendered[key] = (found, len(answer))
        found, length = self._rendered[key]
        start = int(found.loss_mask.argmax())  # the first trained token
        tokens = np.concatenate([found.tokens[:start], answer, found.tokens[start + length :]]).astype(np.int32)
        mask = np.concatenate([found.loss_mask[:start], np.ones(len(answer)), found.loss_mask[start + length :]])
        return replace(found, tokens=tokens, loss_mask=mask.astype(np.uint8), row=row)


def write_demonstrations(
    data: Path, target: Path, modality: str, number: int, *, wrong_share: float, seed: int
) -> Path:
    """`number` rows of `data`, drawn with replacement; the answer of each is wrong with probability `wrong_share`."""
    rows, random = list(read_jsonl(data)), np.random.RandomState(seed)
    target.unlink(missing_ok=True)
    with JsonlWriter(target) as writer:
        for _ in range(number):
            row = rows[random.randint(len(rows))]
            wrong = random.rand() < wrong_share
            answer = wrong_answer(modality, row["label"]) if wrong else row["label"]
            media = {modality: row[modality]} if modality in row else {}
            writer.write({"prompt": row["prompt"][-1]["content"], "answer": answer, **media})
    return target


def flags(model: Path, data: Path, run: Path, output: Path, modality: str, plan: ColdStart, seed: int) -> list[str]:
    """The command line of the cold start."""
    media = [] if modality == "text" else ["--multimodal-keys", f'{{"{modality}": "{modality}"}}']
    values = {
        "--loss-type": "sft",
        "--hf-checkpoint": model,
        "--prompt-data": data,
        "--input-key": "prompt",
        "--label-key": "answer",
        "--custom-dataset-class-path": "examples.quickstart.sft.Demonstrations",
        "--global-batch-size": plan.batch_size,
        "--num-rollout": plan.steps,
        "--max-tokens-per-gpu": MAX_TOKENS,
        "--lr": plan.lr,
        "--min-lr": 0.1 * plan.lr,
        "--lr-decay-style": "linear",
        "--lr-warmup-iters": min(plan.warmup_steps, plan.steps - 1),
        "--adam-beta2": 0.98,
        "--weight-decay": 0.01,
        "--clip-grad": plan.clip_grad,
        "--seed": seed,
        "--sft-prefetch-num-workers": 1,
        "--save": run,
        "--save-hf": output,
        "--bus": "local",
    }
    switches = ["--use-dynamic-batch-size", "--inline", "--no-use-tensorboard"]
    return [*switches, *media, *(text for name, value in values.items() for text in (name, str(value)))]


def cold_start(
    model: Path,
    data: Path,
    output: Path,
    modality: str,
    plan: ColdStart,
    *,
    wrong_share: float,
    seed: int,
    say: Callable[[str], None],
) -> None:
    """Train `model` on demonstrations from `data` and export it to `output` as a Hugging Face folder."""
    from relax.entrypoints.train import main

    run = output.parent / "cold_start" / output.name
    rows = data.with_name(f"{modality}-demonstrations.jsonl")
    write_demonstrations(data, rows, modality, plan.steps * plan.batch_size, wrong_share=wrong_share, seed=seed)
    errors = io.StringIO()
    with contextlib.redirect_stdout(_Steps(say, sys.stdout)), contextlib.redirect_stderr(errors):
        code = main(flags(model, rows, run, output, modality, plan, seed))
    if code != 0:
        print(errors.getvalue(), file=sys.stderr)
        raise SystemExit(code)


class _Steps(io.TextIOBase):
    """Hands on every `SHOWN_EVERY`th step of a run and the last."""

    def __init__(self, say: Callable[[str], None], stream: TextIO) -> None:
        self._say, self._stream, self._line = say, stream, ""

    def write(self, text: str) -> int:
        self._line += text
        while "\n" in self._line:
            line, _, self._line = self._line.partition("\n")
            self._told(line)
        return len(text)

    def _told(self, line: str) -> None:
        if not line.startswith("step "):
            return
        step, _, total = line.split()[1].partition("/")
        if int(step) % SHOWN_EVERY == 0 or step == total:
            with contextlib.redirect_stdout(self._stream):
                self._say(line)
