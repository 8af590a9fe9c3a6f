# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`docs/external-flags.md`: what the tables and rules of `relax/config/external/` know of other programs' flags."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from typing import Any

from relax.config.external.architecture import ARCHITECTURE
from relax.config.external.describe import ORDER
from relax.config.external.rules import (
    FSDP_HINTS,
    FSDP_MEANING,
    FSDP_NEUTRAL,
    NATIVE_HINTS,
    NATIVE_NEUTRAL,
    ROUTER_OFF,
    ROUTER_OWN,
    SGLANG_MAPPED,
    SGLANG_OWN,
)
from relax.config.external.tables import PREFIXES, table, version
from relax.config.flags import option_name

TAKES = {"switch": "nothing", "boolean": "nothing", "int": "a whole number", "float": "a number", "str": "text"}


def external_flags_page(note: str) -> str:
    """The page, with `note` as its first line."""
    return f"""{note}
# Flags of Megatron, SGLang and the router

Flags of these programs are taken under their own names: Megatron's as they are, SGLang's as `--sglang-...`, those of
its router as `--router-...`. Tables in `relax/config/external/` hold name, type, choices and default of every flag, as
the program's own parser has them (`scripts/tools/make_external_tables.py` writes them, a test compares them where the
program is installed). So flags are checked also where the program is missing. User hooks read those that are given as
attributes of `args`, with underscores.

A flag goes to its own program. Another backend maps it where it has a meaning there, lets it pass where its value
changes nothing, and refuses it otherwise. Flags that are only about memory, speed or logs pass, and one note in the
log and in `--dry-run` lists them. Of a repeated flag the last counts. Below are the flags of which more is known than
the type; all others are refused by another backend than their own.

## Megatron Core {version("megatron")}

{len(table("megatron"))} flags. Those that Relax has under the same name (`--lr`, `--save`, `--global-batch-size`, ...)
are in [configuration.md](configuration.md). *Compared*: an architecture flag, which must agree with the model's
`config.json` ([models.md](models.md)).

{_rows("megatron", "on `--train-backend fsdp`", _on_fsdp)}

## SGLang {version("sglang")}

{len(table("sglang"))} flags, {sum("until" in entry for entry in table("sglang").values())} of them of older releases.

{_rows("sglang", "on `--rollout-backend native`", _on_native)}

## sglang-router {version("router")}

{len(table("router"))} flags. With `--inline` there is no router.

{_rows("router", "here", _at_router)}
"""


def _rows(name: str, column: str, verdict: Callable[[str], str]) -> str:
    """The table of the flags that have a meaning or a rule of their own."""
    rows = [f"| flag | takes | default | meaning | {column} |", "|---|---|---|---|---|"]
    for flag, entry in table(name).items():
        rule = verdict(flag)
        if "meaning" in entry or rule not in ("", "refused"):
            default = f"`{json.dumps(entry['default'])}`" if "default" in entry else ""
            rows.append(
                f"| `{PREFIXES[name]}{flag}` | {_takes(entry)} | {default} | {entry.get('meaning', '')} | {rule} |"
            )
    return "\n".join(rows)


def _takes(entry: Mapping[str, Any]) -> str:
    choices = [f"`{choice}`" for choice in entry.get("choices") or ()]
    one = " \\| ".join([*choices[:8], *(["..."] if len(choices) > 8 else [])]) or TAKES[entry["type"]]
    return f"a list, each item {one}" if entry.get("nargs") in ("+", "*") else one


def _on_fsdp(flag: str) -> str:
    if flag in ARCHITECTURE:
        return "compared" if flag in ORDER else "no effect"
    if flag in FSDP_MEANING:
        return FSDP_MEANING[flag]
    return _passes(flag, FSDP_HINTS, FSDP_NEUTRAL)


def _on_native(flag: str) -> str:
    if flag in SGLANG_OWN:
        return f"refused with every backend: use {SGLANG_OWN[flag]}"
    if flag in SGLANG_MAPPED:
        return f"`{option_name(SGLANG_MAPPED[flag])}`, with every backend"
    return _passes(flag, NATIVE_HINTS, NATIVE_NEUTRAL)


def _at_router(flag: str) -> str:
    if flag in ROUTER_OWN:
        return f"refused: {ROUTER_OWN[flag]}"
    return "refused" if flag.startswith(ROUTER_OFF) else ""


def _passes(flag: str, hints: Container[str], neutral: Mapping[str, tuple[Any, ...]]) -> str:
    if flag in neutral:
        values = ["on" if value is True else f"`{value}`" for value in neutral[flag]]
        return f"passes at {' or '.join(values)}"
    return "no effect" if flag in hints else "refused"
