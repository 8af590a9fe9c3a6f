# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The cold start: Relax's own supervised training on demonstrations of which a share is wrong by design.

The demonstrations teach the model to look at its input and to answer in the right form. Where they disagree (half of
them name the next digit), the model is left undecided, and the verifiable reward decides in the second phase.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from examples.quickstart.data import wrong_answer
from relax.backends.base import ModelSpec, StepStats
from relax.data.chat import PreparedPrompt, PromptBuilder
from relax.data.columns import TrainSequence
from relax.data.datasets import open_dataset
from relax.data.media.processing import MediaProcessor
from relax.data.model_files import load_processor, load_tokenizer
from relax.engine.sft.cold_start import ColdStart, demonstration, train


class Demonstrations:
    """Draws batches of demonstrations from the training rows; each draw is wrong with probability `wrong_share`."""

    def __init__(
        self, model: Path, data: Path, modality: str, *, batch_size: int, wrong_share: float, seed: int
    ) -> None:
        self._tokenizer = load_tokenizer(model)
        media = MediaProcessor(load_processor(model), tokenizer=self._tokenizer)
        self.suppressed_ids = media.suppressed_ids
        keys = None if modality == "text" else {modality: modality}
        self._builder = PromptBuilder(
            self._tokenizer,
            media,
            input_key="prompt",
            label_key="label",
            multimodal_keys=keys,
            apply_chat_template=True,
        )
        self._rows, self._modality = open_dataset(str(data)), modality
        self._batch_size, self._wrong_share = batch_size, wrong_share
        self._random = np.random.RandomState(seed)
        self._prompts: dict[int, PreparedPrompt] = {}

    def draw(self, step: int) -> list[TrainSequence]:
        """One batch; rows are drawn with replacement."""
        return [self._one(number) for number in range(self._batch_size)]

    def _one(self, number: int) -> TrainSequence:
        prompt = self._prompt(int(self._random.randint(len(self._rows))))
        wrong = self._random.rand() < self._wrong_share
        answer = wrong_answer(self._modality, prompt.label) if wrong else prompt.label
        answer_ids = self._tokenizer(answer, add_special_tokens=False)["input_ids"]
        return demonstration(number, prompt.expanded_ids, [*answer_ids, self._tokenizer.eos_token_id], prompt.features)

    def _prompt(self, place: int) -> PreparedPrompt:
        if place not in self._prompts:
            self._prompts[place] = self._builder.build(self._rows.row(place))
        return self._prompts[place]


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
) -> None:
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
