# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A tokenizer for many families' templates, and a form of the loss mask that people can read and write.

`«` opens what is trained and `»` closes it: `user: Hi\nassistant: «Hello<end>»`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from relax.engine.sft.dataset.chat_template import ChatRenderer, MaskedTokens
from relax.engine.sft.dataset.sample import CanonicalSample
from tests.unit.engine.sft.dataset.templates import SPECIAL


@functools.lru_cache(maxsize=1)
def _tokenizer_json() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    lines = [
        f"user assistant system tool <think>\n\n</think>\n\nWhat is {a} and {a + 1}?\n\n\nIt is {a}.\n"
        for a in range(50)
    ]
    bpe.train_from_iterator(lines, trainer)
    return bpe.to_str()


def tokenizer(template: str | None, *, bos: str = "<s>", eos: str = "</s>") -> Any:
    """A byte-level BPE whose only chat template is `template`; a new object at each call."""
    import transformers
    from tokenizers import Tokenizer

    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_tokenizer_json()), bos_token=bos, eos_token=eos, pad_token="<|endoftext|>"
    )
    made.chat_template = template
    return made


def sample(
    *messages: Mapping[str, Any], tools: Any = None, metadata: Mapping[str, Any] | None = None
) -> CanonicalSample:
    return CanonicalSample(tuple(messages), tools=tools, metadata=metadata or {}, file="train.jsonl", row=3)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text}


def assistant(text: str, *calls: str, **more: Any) -> dict[str, Any]:
    """An answer; each of `calls` is the name of a function that is called with x=1."""
    made = [{"type": "function", "function": {"name": name, "arguments": {"x": 1}}} for name in calls]
    return {"role": "assistant", "content": text, **({"tool_calls": made} if made else {}), **more}


def marked(of: CanonicalSample, template: str, **options: Any) -> str:
    """The rendered text with its trained characters between `«` and `»`."""
    rendered = ChatRenderer(tokenizer(template), **options).rendered(of)
    text, parts, at = rendered.text, [], 0
    for start, end in rendered.spans:
        parts += [text[at:start], "«", text[start:end], "»"]
        at = end
    return "".join([*parts, text[at:]])


def trained_text(tokens: MaskedTokens, by: Any) -> str:
    """What the trained tokens say."""
    return by.decode(tokens.token_ids[np.flatnonzero(tokens.loss_mask)].tolist(), skip_special_tokens=False)
