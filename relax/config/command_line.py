# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From words to given values: the parser of all flags, and what is said about words that it does not know."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from relax.config.aliases import ALIASES, CONFUSING, CONFUSING_TEXT, add_aliases
from relax.config.external.tables import ExternalFlag, add_external, options
from relax.config.files import read_yaml
from relax.config.flags import Parser, add_section, kinds, nearest, option_name
from relax.config.frozen import FrozenDict, freeze
from relax.config.sections import SECTIONS
from relax.config.support import later_feature
from relax.config.view import RUN_TIME_FACTS
from relax.utils.errors import ConfigError

SECTION_OF: dict[str, str] = {f.name: name for name, section in SECTIONS.items() for f in fields(section)}  # type: ignore[arg-type]
HOOK_FLAGS = frozenset(f.name for section in SECTIONS.values() for f in fields(section) if f.metadata["hook"])  # type: ignore[arg-type]
DESCRIPTION = """
Reinforcement-learning post-training of omni-modal language models. A run needs a model, prompts, a reward and the size
of a round:

  train.py --hf-checkpoint MODEL --prompt-data prompts.jsonl --input-key question --label-key answer --rm-type math
           --apply-chat-template --rollout-batch-size 16 --n-samples-per-prompt 8 --num-rollout 100 --save runs/first

With --dry-run it only checks everything and prints what would run; `make demo` trains a tiny model in minutes.
"""
# How other programs call what a flag here does: what a newcomer types first.
ELSEWHERE = {
    "model": "--hf-checkpoint",
    "model-path": "--hf-checkpoint",
    "model-name": "--hf-checkpoint",
    "pretrain": "--hf-checkpoint",
    "data": "--prompt-data",
    "dataset": "--prompt-data",
    "train-data": "--prompt-data",
    "batch-size": "--rollout-batch-size (prompts of a round) or --global-batch-size (samples of an optimizer step)",
    "train-batch-size": "--global-batch-size",
    "num-generations": "--n-samples-per-prompt",
    "group-size": "--n-samples-per-prompt",
    "steps": "--num-rollout",
    "max-steps": "--num-rollout",
    "num-steps": "--num-rollout",
    "epochs": "--num-epoch",
    "num-epochs": "--num-epoch",
    "num-train-epochs": "--num-epoch",
    "learning-rate": "--lr",
    "temperature": "--rollout-temperature",
    "max-tokens": "--rollout-max-response-len",
    "max-new-tokens": "--rollout-max-response-len",
    "max-response-len": "--rollout-max-response-len",
    "max-prompt-len": "--rollout-max-prompt-len",
    "beta": "--kl-loss-coef, with --use-kl-loss",
    "reward": "--rm-type (built-in) or --custom-rm-path (a function of yours)",
    "reward-fn": "--custom-rm-path",
    "reward-function": "--custom-rm-path",
    "output-dir": "--save",
    "output": "--save",
    "resume": "--load",
    "resume-from-checkpoint": "--load",
    "gpus": "--resource",
    "num-gpus": "--resource",
    "async": "--fully-async, with --max-staleness",
    "eval-data": "--eval-prompt-data",
    "port": "--serve-port",
    "wandb-key": "the environment variable WANDB_API_KEY (every user of the machine can read a command line)",
    "disable-wandb-random-suffix": "always so: names of runs get no suffix; leave it out",
    "wandb-always-use-train-step": "always so: rollout/step counts rollouts, eval/step the evaluated version; "
    "leave it out",
}
EPILOG = (
    "Flags of Megatron (--num-layers, ...), SGLang (--sglang-*) and its router (--router-*) are accepted by name and "
    "given to their own backend. Flags cannot be abbreviated."
)


@dataclass
class Given:
    """What a command line says, before anything is derived."""

    values: dict[str, Any] = field(default_factory=dict)  # by flag name with underscores
    origins: dict[str, str] = field(default_factory=dict)
    external: list[ExternalFlag] = field(default_factory=list)
    aliases: dict[str, Any] = field(default_factory=dict)
    custom: FrozenDict = field(default_factory=FrozenDict)  # keys of --custom-config-path
    notes: list[str] = field(default_factory=list)


@functools.cache
def build_parser() -> Parser:
    parser = Parser(
        prog="train.py",
        description=DESCRIPTION,
        usage="train.py --hf-checkpoint MODEL --prompt-data FILE --rollout-batch-size N --num-rollout N [flags]",
        epilog=EPILOG,
    )
    for name, section in SECTIONS.items():
        add_section(parser, name, section)
    add_aliases(parser)
    add_external(parser)
    return parser


def read_command_line(argv: Sequence[str]) -> Given:
    """The values that `argv` gives. Raises ConfigError for a word that is no flag, with the nearest one."""
    namespace, unknown = build_parser().parse_known_args(list(argv))
    if unknown:
        raise ConfigError(explain_unknown(unknown[0], argv))
    given = Given(external=list(getattr(namespace, "external", [])), notes=list(_repeated(argv)))
    for name, value in vars(namespace).items():
        if name.startswith("alias:"):
            given.aliases[name.removeprefix("alias:")] = value
        elif name != "external":
            given.values[name] = tuple(value) if isinstance(value, list) else value
    given.origins = dict.fromkeys(given.values, "flag")
    if given.values.get("custom_config_path"):
        read_custom(given)
    return given


def _repeated(argv: Sequence[str]) -> list[str]:
    names = [word.split("=")[0] for word in argv if word.startswith("--")]
    ours = {option_name(name) for name in SECTION_OF}
    return [
        f"{name} is given {n} times: the last one counts"
        for name, n in Counter(names).items()
        if n > 1 and name in ours
    ]


def explain_unknown(word: str, argv: Sequence[str]) -> str:
    """Why `word` is not accepted, and what was probably meant."""
    name = word.split("=")[0]
    if not word.startswith("-"):
        place = list(argv).index(word)
        before = f" after {argv[place - 1]}" if place else ""
        return f"unexpected {word!r}{before}: every value belongs to a flag, and text with spaces needs quotes"
    if name in CONFUSING:
        return CONFUSING_TEXT.format(name=name)
    feature = later_feature(name)
    if feature:
        return f"{name} is known but not available in this version: it belongs to {feature}"
    dashed = "--" + name.lstrip("-").replace("_", "-")
    if dashed != name and dashed in known_flags():
        return f"unknown flag {name}: it is spelled {dashed}"
    if dashed.removeprefix("--") in ELSEWHERE:
        return f"unknown flag {name}: here that is {ELSEWHERE[dashed.removeprefix('--')]}"
    near = nearest(dashed, known_flags())
    return f"unknown flag {name}{f': did you mean {near}?' if near else '; --help lists all flags'}"


@functools.cache
def known_flags() -> tuple[str, ...]:
    """Every accepted spelling: our flags first, so that they win among equally near names."""
    return (*map(option_name, SECTION_OF), *(f"--{alias}" for alias in ALIASES), *options())


def read_custom(given: Given) -> None:
    """Keys of `--custom-config-path`: they go to the hooks' view, and to flags that only hooks read."""
    path = given.values["custom_config_path"]
    content = freeze(read_yaml(path, "custom_config_path"))
    external = {flag.option.lstrip("-").replace("-", "_"): flag.option for flag in given.external}
    for key in content:
        _check_custom_key(key, path)
        if key in external:
            raise ConfigError(f"--custom-config-path {path}: {key} is given as {external[key]} too: keep one")
    hook_values = {key: value for key, value in content.items() if key in HOOK_FLAGS}
    for key, value in hook_values.items():
        if key in given.values:
            given.notes.append(f"{option_name(key)} is given, so the {key} of {path} is not used")
            continue
        given.values[key], given.origins[key] = value, "file"
    given.custom = FrozenDict({key: value for key, value in content.items() if key not in HOOK_FLAGS})


def _check_custom_key(key: str, path: str) -> None:
    where = f"--custom-config-path {path}: {key}"
    if not key.isidentifier() or key.startswith("_"):
        raise ConfigError(f"{where} cannot be an attribute of args: use letters, digits and underscores")
    if key in RUN_TIME_FACTS:
        raise ConfigError(f"{where} is set by the run itself")
    if key in SECTION_OF and key not in HOOK_FLAGS:
        raise ConfigError(f"{where} is a flag: give it as {option_name(key)} on the command line")


def check_names(values: Mapping[str, Any]) -> None:
    """Raise ConfigError for a name that is no flag."""
    for name in values:
        if name not in SECTION_OF:
            near = nearest(name, SECTION_OF)
            raise ConfigError(
                f"no flag is called {option_name(name)}{f'; nearest is {option_name(near)}' if near else ''}"
            )


assert sum(len(kinds(section)) for section in SECTIONS.values()) == len(SECTION_OF), "a flag is in two sections"
