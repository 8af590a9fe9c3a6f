# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Loading a language model with a head for classes (or one score) in place of its vocabulary head.

The classes are transformers' own `...ForSequenceClassification`, whose head is `score.weight [K, D]`, so an export
loads with `AutoModelForSequenceClassification`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from relax.backends.additions import ClassHead
from relax.utils.errors import ConfigError

SUFFIX = "ForSequenceClassification"
_GENERATIVE = ("ForCausalLM", "ForConditionalGeneration")
SCORE = "score.weight"
_CLASSES = {  # of text models whose family name alone means the model with encoders
    "Qwen3_5ForCausalLM": "Qwen3_5TextForSequenceClassification",
    "Qwen3_5MoeForCausalLM": "Qwen3_5MoeTextForSequenceClassification",
}


def class_model_name(name: str, path: Path) -> str:
    """The class with a head for classes that belongs to the generative class `name`."""
    if name in _CLASSES:
        return _CLASSES[name]
    for suffix in (SUFFIX, *_GENERATIVE):
        if name.endswith(suffix):
            return name.removesuffix(suffix) + SUFFIX
    raise ConfigError(f"--hf-checkpoint {path}: {name} is not a language model that classes can be read off")


def class_model(name: str, path: Path) -> Any:
    """Transformers' class of that name; where it has none for the family, one made of its parts. None: neither."""
    import transformers
    from transformers.modeling_layers import GenericForSequenceClassification

    family = name.removesuffix(SUFFIX).removesuffix("Text")
    base = getattr(transformers, f"{family}PreTrainedModel", None)
    found = getattr(transformers, name, None)
    if found is not None or base is None:
        return found
    # Named in full, because a family's own configuration may be that of the model with encoders.
    config_class = type(transformers.AutoConfig.from_pretrained(path))
    return type(name, (GenericForSequenceClassification, base), {"config_class": config_class})


def refuse_class_model(name: str, path: Path) -> None:
    """A model whose head tells classes has no next token to train or to sample."""
    if name.endswith(SUFFIX):
        raise ConfigError(
            f"--hf-checkpoint {path}: {name} has a head for classes and no vocabulary: train it by --task-type "
            "seq_cls (or --loss-type reward_model), or give the folder of the language model"
        )


def head_arguments(head: ClassHead) -> dict[str, Any]:
    """Arguments of `from_pretrained`."""
    return {"num_labels": head.num_labels, "problem_type": head.problem_type}


def finish_head(hf: nn.Module, head: ClassHead, missing: list[str], path: Path) -> list[str]:
    """Fill a head that the folder does not hold; returns the tensors that are still missing."""
    score = getattr(hf, "score", None)
    if not isinstance(score, nn.Linear) or score.bias is not None:
        raise ConfigError(f"--hf-checkpoint {path}: {type(hf).__name__} has no plain head `score`: not supported")
    if SCORE in missing:
        deviation = float(getattr(hf.config.get_text_config(), "initializer_range", 0.02))
        generator = torch.Generator().manual_seed(head.seed)
        drawn = torch.randn(score.weight.shape, generator=generator) * deviation
        score.weight.data.copy_(drawn.to(score.weight.dtype))
    if head.head_type is not None:
        hf.config.head_type = head.head_type
    _name_padding(hf, path)
    return [name for name in missing if name != SCORE]


def _name_padding(hf: nn.Module, path: Path) -> None:
    """Transformers finds the last real token of a padded row by the padding id, which many configs leave out."""
    config = hf.config.get_text_config()
    if config.pad_token_id is None and any(Path(path).glob("tokenizer*.json")):
        from transformers import AutoTokenizer

        config.pad_token_id = AutoTokenizer.from_pretrained(path).pad_token_id
