# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""SGLang's language models with `score.weight [K, D]` in place of the vocabulary head: raw logits of the last token.

One class an architecture, made of SGLang's own model of it. Tensor parallel only: the head is small and every rank
holds all of it. With pipeline stages only the last rank would have hidden states, so that is refused.
Runs inside SGLang's processes; nothing of Relax is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

# {architecture of the exported folder: where SGLang has the language model}
BASES = {
    "Qwen2ForSequenceClassification": ("sglang.srt.models.qwen2", "Qwen2ForCausalLM"),
    "Qwen3ForSequenceClassification": ("sglang.srt.models.qwen3", "Qwen3ForCausalLM"),
    "Qwen3MoeForSequenceClassification": ("sglang.srt.models.qwen3_moe", "Qwen3MoeForCausalLM"),
    "Qwen3NextForSequenceClassification": ("sglang.srt.models.qwen3_next", "Qwen3NextForCausalLM"),
    "LlamaForSequenceClassification": ("sglang.srt.models.llama", "LlamaForCausalLM"),
}
_QWEN3_5 = "sglang.srt.models.qwen3_5"  # its ...ForCausalLM are bodies: layers without a vocabulary head
BODIES = {
    "Qwen3_5ForSequenceClassification": (_QWEN3_5, "Qwen3_5ForCausalLM"),
    "Qwen3_5TextForSequenceClassification": (_QWEN3_5, "Qwen3_5ForCausalLM"),
    "Qwen3_5MoeForSequenceClassification": (_QWEN3_5, "Qwen3_5MoeForCausalLM"),
    "Qwen3_5MoeTextForSequenceClassification": (_QWEN3_5, "Qwen3_5MoeForCausalLM"),
}
HEAD = "score.weight"


def refuse_pipeline(stages: int) -> None:
    """Raise unless the model is on one pipeline stage."""
    if stages > 1:
        raise ValueError(
            f"sequence classification is served with tensor parallelism only: --pp-size {stages} is not supported, "
            "use --pp-size 1 and --tp-size"
        )


def split_head(weights: Iterable[tuple[str, Tensor]], head: dict[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
    """The weights of the language model; those of the head are put into `head` on the way."""
    for name, tensor in weights:
        if name == HEAD:
            head[name] = tensor
        else:
            yield name, tensor


def body_names(weights: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
    """Names within the body, whatever prefix the folder gives them; encoders are left out."""
    for name, tensor in weights:
        if not name.startswith("model.visual."):
            yield name.removeprefix("model.").removeprefix("language_model."), tensor


def last_rows(hidden: Tensor, lengths: Tensor) -> Tensor:
    """`[T, D]` of prompts one after another -> `[N, D]` at the last token of each."""
    return hidden[torch.cumsum(lengths, 0) - 1]


class Classifier(nn.Module):
    """Base of the classes below; `language_model` is one of SGLang's."""

    language_model: type[nn.Module]
    is_body = False  # the language model has no vocabulary head, and names its weights without `model.`

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        from sglang.srt.distributed.parallel_state import get_pp_group

        refuse_pipeline(get_pp_group().world_size)
        self.config, self.quant_config = config, quant_config
        text = getattr(config, "text_config", config)
        tied, text.tie_word_embeddings = text.tie_word_embeddings, True  # no memory for a vocabulary head
        self.base = self.language_model(config=text, quant_config=quant_config, prefix=prefix)
        text.tie_word_embeddings = tied
        self.score = nn.Linear(text.hidden_size, config.num_labels, bias=False)

    @property
    def body(self) -> nn.Module:
        return self.base if self.is_body else self.base.model

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        forward_batch: Any,
        input_embeds: Tensor | None = None,
        get_embedding: bool = True,
    ) -> Any:
        """`EmbeddingPoolerOutput` with the raw logits `[N, K]` of the requests."""
        from sglang.srt.layers.pooler import EmbeddingPoolerOutput

        if not get_embedding:
            raise ValueError("a model with a head for classes generates no text: start SGLang with --is-embedding")
        hidden = self.body(input_ids, positions, forward_batch, input_embeds)
        return EmbeddingPoolerOutput(embeddings=self.score(last_rows(hidden, forward_batch.extend_seq_lens)).float())

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        head: dict[str, Tensor] = {}
        language = split_head(weights, head)
        self.base.load_weights(body_names(language) if self.is_body else language)
        if HEAD not in head:
            raise ValueError(f"the checkpoint has no {HEAD}: export it by tools/export_classifier.py")
        self.score.weight.data.copy_(head[HEAD])

    def get_input_embeddings(self) -> nn.Module:
        return self.body.embed_tokens


def classes() -> list[type[Classifier]]:
    """One class for each architecture that this SGLang has a language model of."""
    found = []
    for name, (module, attribute) in (BASES | BODIES).items():
        try:
            base = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):  # this release of SGLang does not have the family
            continue
        found.append(type(name, (Classifier,), {"language_model": base, "is_body": name in BODIES}))
    return found


EntryClass = classes()
