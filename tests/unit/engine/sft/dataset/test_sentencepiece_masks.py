# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Masks on tokenizers of the SentencePiece kind, which put a mark of their own before words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relax.engine.sft.dataset.chat_template import render_with_loss_mask
from tests.unit.engine.sft.dataset import templates
from tests.unit.engine.sft.dataset.rendering import assistant, sample, user

MARK = "▁"


def metaspace_tokenizer(prepend: str) -> Any:
    """`prepend` as Metaspace's scheme, or "legacy": a mark before every piece of text, by the normaliser (Llama 2)."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    if prepend == "legacy":
        bpe.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    else:
        bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    bpe.decoder = decoders.Metaspace()
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    bpe.train_from_iterator([f"hello world this is {n} good answer bad" for n in range(50)], trainer)
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    made.chat_template = templates.MISTRAL
    return made


@pytest.mark.parametrize("prepend", ["legacy", "always", "first", "never"])
def test_answers_are_trained_with_the_marks_before_them_and_prompts_are_not(prepend):
    by = metaspace_tokenizer(prepend)
    dialogue = sample(user("hello world"), assistant("good answer"), user("this"), assistant("bad"))
    masked = render_with_loss_mask(dialogue, by)
    runs = np.split(masked.token_ids, np.flatnonzero(np.diff(masked.loss_mask)) + 1)
    said = ["".join(by.convert_ids_to_tokens(run.tolist())).replace(MARK, " ").split() for run in runs]
    assert masked.loss_mask[0] == 0
    assert said == [
        ["<s>[INST]", "hello", "world[/INST]"],
        ["good", "answer</s>"],
        ["[INST]", "this[/INST]"],
        ["bad</s>"],
    ]
