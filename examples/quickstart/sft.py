# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The cold start: Relax's own supervised training on demonstrations of which a share is wrong by design.

The demonstrations teach the model to look at its input and to answer in the right form. Where they disagree (half of
them name the next digit), the model is left undecided, and the verifiable reward decides in the second phase.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from examples.quickstart.data import Row, wrong_answer
from examples.quickstart.heldout import messages, rows_of
from relax.backends.base import ModelSpec, StepStats
from relax.data.columns import TrainSequence
from relax.engine.sft.cold_start import ColdStart, demonstration, train
from relax.utils.types import MediaFeatures


class Demonstrations:
    """Draws batches of demonstrations from the training rows; each draw is wrong with probability `wrong_share`."""

    def __init__(
        self, model: Path, data: Path, modality: str, *, batch_size: int, wrong_share: float, seed: int
    ) -> None:
        from transformers import AutoProcessor

        from relax.data.media.processing import MediaProcessor

        self._processor = AutoProcessor.from_pretrained(model)
        self._tokenizer = self._processor.tokenizer
        self._media = MediaProcessor(self._processor)
        self._rows, self._folder, self._modality = rows_of(data), data.parent, modality
        self._batch_size, self._wrong_share = batch_size, wrong_share
        self._random = np.random.RandomState(seed)
        self._prompts: dict[int, tuple[list[int], list[MediaFeatures]]] = {}

    @property
    def suppressed_ids(self) -> tuple[int, ...]:
        return self._media.suppressed_ids

    def draw(self, step: int) -> list[TrainSequence]:
        """One batch; rows are drawn with replacement."""
        return [self._one(number) for number in range(self._batch_size)]

    def _one(self, number: int) -> TrainSequence:
        place = int(self._random.randint(len(self._rows)))
        label = self._rows[place]["label"]
        answer = wrong_answer(self._modality, label) if self._random.rand() < self._wrong_share else label
        ids, media = self._prompt(place)
        answer_ids = self._tokenizer(answer, add_special_tokens=False)["input_ids"]
        return demonstration(number, ids, [*answer_ids, self._tokenizer.eos_token_id], media)

    def _prompt(self, place: int) -> tuple[list[int], list[MediaFeatures]]:
        if place not in self._prompts:
            self._prompts[place] = self._encode(self._rows[place])
        return self._prompts[place]

    def _encode(self, row: Row) -> tuple[list[int], list[MediaFeatures]]:
        from relax.data.media.items import load_media

        text = self._processor.apply_chat_template(messages(row), add_generation_prompt=True, tokenize=False)
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        paths: list[tuple[str, str]] = [(kind, path) for kind in ("image", "audio") for path in row.get(kind, ())]
        items = [load_media(kind, path, folder=self._folder, where=path) for kind, path in paths]
        features = [self._media.extract(item) for item in items]
        return self._media.expand(ids, features), features


def cold_start(
    model: Path,
    data: Path,
    output: Path,
    modality: str,
    plan: ColdStart,
    *,
    wrong_share: float,
    seed: int,
    on_step: Callable[[int, StepStats], None],
) -> Any:
    """Train `model` on demonstrations from `data` and export it to `output` as a Hugging Face folder."""
    from relax.backends.fsdp.backend import FsdpBackend

    demonstrations = Demonstrations(
        model, data, modality, batch_size=plan.batch_size, wrong_share=wrong_share, seed=seed
    )
    backend = FsdpBackend()
    backend.open(ModelSpec(model, suppressed_ids=demonstrations.suppressed_ids), plan.optimizer)
    try:
        train(backend, demonstrations.draw, plan, on_step)
        backend.export_hf(output)
    finally:
        backend.close()
