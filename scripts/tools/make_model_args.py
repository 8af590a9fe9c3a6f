# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Write a model file of `scripts/models/`: Megatron's architecture flags, from a model's Hugging Face config.json.

python scripts/tools/make_model_args.py /root/Qwen3-4B                             # print it
python scripts/tools/make_model_args.py /root/Qwen3-4B -o scripts/models/qwen3-4B.sh
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # started as a file: the repository must be found
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from relax.config.external.describe import Fact, describe, known, text_config, untold
from relax.config.external.tables import table
from relax.utils.errors import ConfigError

NEEDED = ("num-layers", "hidden-size", "num-attention-heads", "vocab-size")


def model_file(config: Mapping[str, Any], name: str) -> str:
    """The text of the shell file. Raises ConfigError for a model type or a config.json that does not say enough."""
    known(config)
    facts = describe(config)
    missing = missing_numbers(config)
    if missing:
        has = ", ".join(text_config(config))
        raise ConfigError(f"config.json does not tell --{', --'.join(missing)}; of the language model it has {has}")
    lines = [f"   {line}" for flag, fact in facts.items() for line in option(flag, fact)]
    return "\n".join([*header(name, untold(config)), "MODEL_ARGS=(", *lines, ")", ""])


def missing_numbers(config: Mapping[str, Any]) -> list[str]:
    """Flags without which there is no model."""
    facts = describe(config)
    return [flag for flag in NEEDED if flag not in facts]


def with_defaults(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config.json that leaves numbers out, with the defaults of its class where transformers is installed."""
    if not missing_numbers(config) or "model_type" not in config:
        return config
    try:
        from transformers import AutoConfig
    except ImportError:
        return config
    try:
        return AutoConfig.for_model(**config).to_dict()
    except ValueError:
        return config  # a class that this transformers does not have


def header(name: str, left: list[str]) -> list[str]:
    """Comment lines above the array."""
    lines = [
        "# Copyright (c) 2026 Relax Authors. All Rights Reserved.",
        "# shellcheck shell=bash disable=SC2034  # the script that sources this file reads MODEL_ARGS",
        "#",
        f"# {name}: architecture flags of Megatron, from the model's config.json.",
        "# Made by scripts/tools/make_model_args.py.",
    ]
    if left:
        lines.append("# No flag can tell the following, which Megatron Bridge reads from config.json:")
        lines += [f"#   {what}" for what in left]
    return lines


# Flags that a file leaves out where the model has Megatron's own value: they belong to parts that few models have.
SILENT = ("moe-router-score-function", "mscale", "mscale-all-dim", "rotary-percent", "rotary-scaling-factor")


def option(flag: str, fact: Fact) -> list[str]:
    """The line of one flag; none for a switch that is off and for a silent flag."""
    if fact.value is False or (flag in SILENT and fact.value == table("megatron")[flag].get("default")):
        return []
    return [f"--{flag}" if fact.value is True else f"--{flag} {spelled(fact.value)}"]


def spelled(value: Any) -> str:
    """As a shell word: 1e-6 for 1e-06, text in quotes."""
    if isinstance(value, tuple):
        return " ".join(map(spelled, value))
    if isinstance(value, float):
        mantissa, mark, exponent = f"{value!r}".partition("e")
        return f"{mantissa}e{int(exponent)}" if mark else f"{value:g}"
    return str(value) if isinstance(value, int) or str(value).isdigit() else f'"{value}"'


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", help="A model folder, or a config.json.")
    parser.add_argument("--name", help="Name in the first line; default: the configuration's, else the folder's.")
    parser.add_argument("-o", "--output", type=Path, help="File to write instead of printing.")
    args = parser.parse_args(argv)
    path = Path(args.model).expanduser()
    file = path / "config.json" if path.is_dir() else path
    try:
        if not file.is_file():
            raise ConfigError(f"{args.model} is neither a model folder with a config.json nor a file")
        config = json.loads(file.read_text("utf-8"))
        name = args.name or config.get("_name_or_path") or (path.name if path.is_dir() else path.stem)
        text = model_file(with_defaults(config), name)
    except (ConfigError, ValueError) as error:
        print(f"make_model_args: {error}", file=sys.stderr)
        return 2
    if args.output is None:
        print(text, end="")
    else:
        args.output.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
