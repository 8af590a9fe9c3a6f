# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`relax render --row N FLAGS`: a row of supervised fine-tuning as training sees it, what is trained in green.

The flags are those of `relax train` with --loss-type sft. Nothing is started.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from relax.config.run import parse_args
from relax.utils.errors import ConfigError, RelaxError

if TYPE_CHECKING:
    from relax.engine.sft.dataset.examples import SftExample


def parser() -> argparse.ArgumentParser:
    """Of this command's own flags; the others go to `relax train`'s."""
    own = argparse.ArgumentParser(
        prog="relax render",
        description=(__doc__ or "").partition("\n\n")[0],
        epilog="All other flags are those of `relax train`.",
    )
    own.add_argument("--row", type=int, default=0, help="row of --prompt-data, from 0 (0)")
    own.add_argument("--plain", action="store_true", help="write what is trained between « and » in place of colour")
    return own


def main(argv: Sequence[str] | None = None) -> int:
    args, rest = parser().parse_known_args(argv)
    try:
        return _render(args.row, rest, colour=sys.stdout.isatty() and not args.plain)
    except RelaxError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code


def _render(row: int, flags: Sequence[str], *, colour: bool) -> int:
    config = parse_args(flags)
    if config.algorithm.loss_type != "sft":
        raise ConfigError(f"relax render shows rows of --loss-type sft, got --loss-type {config.algorithm.loss_type}")
    from relax.core.sft_build import data_options
    from relax.data.model_files import load_tokenizer
    from relax.engine.sft.dataset.examples import PreferenceExample, Refused, open_examples

    examples = open_examples(data_options(config, str(config.data.prompt_data)), config.sft.custom_dataset_class_path)
    if not 0 <= row < len(examples):
        raise ConfigError(f"--row {row} is not one of the {len(examples)} rows of --prompt-data")
    example = examples.example(row)
    if isinstance(example, Refused):
        print(f"row {row} is left out: {example.reason}: {example.detail}")
        return 0
    tokenizer = load_tokenizer(str(config.checkpoint.hf_checkpoint))
    if isinstance(example, PreferenceExample):
        _print(f"row {row}, chosen", example.chosen, tokenizer, colour)
        _print(f"row {row}, rejected", example.rejected, tokenizer, colour)
    else:
        _print(f"row {row}", example, tokenizer, colour)
    return 0


def _print(name: str, example: SftExample, tokenizer: Any, colour: bool) -> None:
    from relax.engine.sft.dataset.shown_text import example_text

    label = "" if example.label is None else f", label {example.label}"
    media = f", {len(example.media)} media" if example.media else ""
    print(f"{name}: {len(example.tokens)} tokens, {int(example.loss_mask.sum())} trained{media}{label}")
    print(example_text(example, tokenizer, colour=colour))


if __name__ == "__main__":
    sys.exit(main())
