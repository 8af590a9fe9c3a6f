# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Megatron's architecture flags against the model's own `config.json`.

The flags may be left out, for the Hugging Face configuration decides. Where they are given they are compared, so a
model file that belongs to another model is found before anything starts.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relax.config.external.describe import FAMILIES, ORDER, Fact, describe, model_type, text_config
from relax.config.external.tables import ExternalFlag, ExternalFlags

# architecture flags that no key of config.json answers
DESCRIBING = (
    "max-position-embeddings",
    "make-vocab-size-divisible-by",
    "rotary-interleaved",
)
ARCHITECTURE = frozenset(ORDER) | frozenset(DESCRIBING)

# flags that say by themselves that a model has a part: a known model type without the part contradicts them
PARTS = ("num-experts", "multi-latent-attention", "experimental-attention-variant")
ROTARY = ("rope", "mrope", "yarn")
PATTERNS = ("moe-layer-freq", "linear-attention-freq")


def read_config(folder: Path) -> Mapping[str, Any]:
    """`config.json` of a model folder; empty where there is none, or none that is a JSON object."""
    file = folder / "config.json"
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text("utf-8"))
    except ValueError:
        return {}  # the look at the model folder tells
    return config if isinstance(config, dict) else {}


def architecture(external: ExternalFlags, folder: Path) -> dict[str, dict[str, Any]]:
    """{--flag: its value, and whether a flag or config.json said so} of every architecture flag that has a value."""
    given = {flag.option: {"value": flag.value, "origin": "flag"} for flag in _given(external)}
    facts = describe(read_config(folder))
    derived = {
        f"--{flag}": {"value": fact.value, "origin": f"config.json: {fact.source}"}
        for flag, fact in facts.items()
        if fact.value is not False
    }
    return derived | given


def architecture_differences(external: ExternalFlags, folder: Path) -> list[str]:
    """One problem that lists flag, given value and config.json for all that differ; none without a config.json."""
    config = read_config(folder)
    facts = describe(config)
    known = model_type(text_config(config)) in FAMILIES
    lines = []
    for flag in _given(external):
        fact = facts.get(flag.name)
        if fact is None and known and flag.name in PARTS:
            lines.append(f"  {flag}: config.json names none")
        elif fact is not None and not _agree(flag, fact):
            lines.append(f"  {flag}: config.json has {_shown(fact)} ({fact.source})")
    if not lines:
        return []
    return [
        "\n".join(
            [
                f"{len(lines)} architecture flag{'s' if len(lines) > 1 else ''} of another model than "
                f"{folder / 'config.json'}; leave them out, for they follow from it, or source this model's file:",
                *lines,
            ]
        )
    ]


def _given(external: ExternalFlags) -> Sequence[ExternalFlag]:
    """The architecture flags that were given; of a repeated one the last counts."""
    last = {flag.name: flag for flag in external.given if flag.table == "megatron" and flag.name in ARCHITECTURE}
    return tuple(last.values())


def _agree(flag: ExternalFlag, fact: Fact) -> bool:
    given, configured = flag.value, fact.value
    if flag.name == "position-embedding-type" and configured in ROTARY:
        return given in ROTARY
    if flag.name in PATTERNS:
        return layer_pattern(str(given)) == layer_pattern(str(configured))
    if isinstance(given, (int, float)) and isinstance(configured, (int, float)):
        return math.isclose(given, configured, rel_tol=1e-9)
    return given == configured


def layer_pattern(text: str) -> Any:
    """A list of one number a layer, written out (`[0]*3+[1]*45`), or the number N of a regular pattern."""
    try:
        return _evaluate(ast.parse(text, mode="eval").body)
    except (SyntaxError, TypeError):
        return text  # Megatron itself refuses it


def _evaluate(node: ast.AST) -> Any:
    """Whole numbers, lists, + and *: what Megatron's patterns are made of. Raises TypeError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.List):
        return [_evaluate(item) for item in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = _evaluate(node.left), _evaluate(node.right)
        return left + right if isinstance(node.op, ast.Add) else left * right
    raise TypeError(f"not part of a layer pattern: {ast.dump(node)}")


def _shown(fact: Fact) -> str:
    if isinstance(fact.value, bool):
        return "it on" if fact.value else "it off"
    return " ".join(map(str, fact.value)) if isinstance(fact.value, tuple) else str(fact.value)
