# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A second set of spellings, with underscores: each is turned into canonical flags and remembered for `--dry-run`.

No other spelling with underscores is accepted. A canonical flag that is given too must agree, except beside
`--output_dir`, where it wins.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from relax.config.external.tables import ExternalFlag
from relax.config.flags import at_least, option_name, parse_int
from relax.config.frozen import FrozenDict
from relax.config.machine import Machine
from relax.config.sections.algorithm import ESTIMATORS
from relax.config.sections.data import parse_media_keys
from relax.utils.errors import ConfigError

# spellings one letter apart whose meanings are far apart
CONFUSING = ("--num-rollouts", "--num_rollout")
CONFUSING_TEXT = (
    "{name} could mean two things: --num-rollout N is the number of rounds of 'sample, then train'; "
    "--num_rollouts N is the number of inference engines"
)

DISTILLATION = "distillation"  # no estimator: on-policy distillation on top of one, GRPO unless another is given

# used when the alias form leaves them open: {values: unless one of these is given}
ALIAS_DEFAULTS: tuple[tuple[dict[str, int], tuple[str, ...]], ...] = (
    (
        {"rollout_batch_size": 32, "n_samples_per_prompt": 8},
        ("rollout_batch_size", "global_batch_size", "n_samples_per_prompt"),
    ),
    ({"num_epoch": 1}, ("num_epoch", "num_rollout")),
)


@dataclass(frozen=True)
class Alias:
    """How one spelling is parsed, and what `--help` says that it becomes."""

    becomes: str
    parse: Callable[[str], Any] = str


def _positive(text: str) -> int:
    value = parse_int(text)
    if at_least(1)(value):
        raise argparse.ArgumentTypeError(f"must be >= 1, got {value}")
    return value


def parse_algorithm(text: str) -> str:
    """An estimator's name, or distillation, in any case."""
    name = text.lower().replace("-", "_")
    if name == DISTILLATION:
        return name
    if name not in ESTIMATORS:
        known = ", ".join((*ESTIMATORS, DISTILLATION))
        raise argparse.ArgumentTypeError(f"must be one of {known} (any case), got {text!r}")
    return name


def parse_reporters(text: str) -> tuple[str, ...]:
    """A comma list of wandb, tensorboard, clearml, none."""
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in ("wandb", "tensorboard", "clearml", "none")]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"must be a list of wandb, tensorboard, clearml or none, got {text!r}")
    return names


def parse_mode(text: str) -> str:
    if text not in ("colocate", "fully_async"):
        raise argparse.ArgumentTypeError(f"must be colocate or fully_async, got {text!r}")
    return text


ALIASES: Mapping[str, Alias] = {
    "model_name_or_path": Alias("--hf-checkpoint"),
    "dataset_name": Alias("--prompt-data"),
    "multimodal_keys": Alias("--multimodal-keys", parse_media_keys),
    "algorithm": Alias("--advantage-estimator; Distillation: --use-opd", parse_algorithm),
    "train_mode": Alias("--fully-async or --colocate, with --max-staleness", parse_mode),
    "num_rollouts": Alias("inference engines: --rollout-num-gpus / --rollout-num-gpus-per-engine", _positive),
    "micro_batch_size": Alias("--micro-batch-size", _positive),
    "epochs": Alias("--num-epoch", _positive),
    "output_dir": Alias("--save, --load and --tb-project-name"),
    "report_to": Alias("--use-wandb, --use-tensorboard, --use-clearml", parse_reporters),
    "tp_size": Alias("--tensor-model-parallel-size", _positive),
    "pp_size": Alias("--pipeline-model-parallel-size", _positive),
    "vit_tp_size": Alias("--vit-tp-size", _positive),
    "num_nodes": Alias("--resource", _positive),
    "train_nodes": Alias("--resource", _positive),
    "rollout_nodes": Alias("--resource", _positive),
}
SAME_VALUE = {
    "model_name_or_path": "hf_checkpoint",
    "dataset_name": "prompt_data",
    "multimodal_keys": "multimodal_keys",
    "micro_batch_size": "micro_batch_size",
    "epochs": "num_epoch",
}


def add_aliases(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("aliases", "Spellings with underscores; --dry-run shows what each became.")
    for name, alias in ALIASES.items():
        group.add_argument(
            f"--{name}", dest=f"alias:{name}", type=alias.parse, default=argparse.SUPPRESS, metavar="VALUE",
            help=f"Becomes {alias.becomes}.",
        )  # fmt: skip


class Expansion:
    """Given flags under construction: canonical values from aliases are added, conflicts are refused."""

    def __init__(self, given: dict[str, Any], origins: dict[str, str], external: list[ExternalFlag]) -> None:
        self.given = given
        self.origins = origins
        self.external = external

    def put(self, alias: str, name: str, value: Any, *, explicit_wins: bool = False) -> None:
        """Set the canonical flag `name`; a value already given by another flag must be the same."""
        if name in self.given and self.origins[name] == "flag":
            if explicit_wins or self.given[name] == value:
                return
            raise ConfigError(
                f"--{alias} means {option_name(name)} {value}, "
                f"but {option_name(name)} {self.given[name]} is given too: keep one"
            )
        self.given[name] = value
        self.origins[name] = f"alias --{alias}"


def expand(aliases: Mapping[str, Any], target: Expansion, machine: Machine) -> None:
    """Turn the given aliases into canonical flags."""
    for alias, name in SAME_VALUE.items():
        if alias in aliases:
            target.put(alias, name, aliases[alias])
    if "algorithm" in aliases:
        _algorithm(aliases["algorithm"], target)
    if "train_mode" in aliases:
        _mode(aliases["train_mode"], target)
    if "output_dir" in aliases:
        _output_dir(aliases["output_dir"], target)
    if "report_to" in aliases:
        _reporters(aliases["report_to"], target)
    for alias, flag in (("tp_size", "tensor-model-parallel-size"), ("pp_size", "pipeline-model-parallel-size")):
        if alias in aliases:
            target.external.append(ExternalFlag("megatron", flag, (aliases[alias],)))
    if aliases.get("vit_tp_size") not in (None, aliases.get("tp_size", 1)):
        raise ConfigError("--vit_tp_size other than --tp_size is known but not available in this version")
    if "num_rollouts" in aliases:
        per_engine = target.given.get("rollout_num_gpus_per_engine", 1)
        target.put("num_rollouts", "rollout_num_gpus", aliases["num_rollouts"] * per_engine)
    _nodes(aliases, target, machine)
    if aliases:
        _defaults(target)


def _defaults(target: Expansion) -> None:
    for values, unless in ALIAS_DEFAULTS:
        if not target.given.keys() & set(unless):
            target.given.update(values)
            target.origins.update(dict.fromkeys(values, "alias form"))


def _algorithm(name: str, target: Expansion) -> None:
    if name == DISTILLATION:
        target.put("algorithm", "advantage_estimator", "grpo", explicit_wins=True)
        target.put("algorithm", "use_opd", True)
    else:
        target.put("algorithm", "advantage_estimator", name)


def _mode(mode: str, target: Expansion) -> None:
    if mode == "fully_async":
        target.put("train_mode", "fully_async", True)
        target.put("train_mode", "max_staleness", 1, explicit_wins=True)
    else:
        target.put("train_mode", "colocate", True)
        target.put("train_mode", "max_staleness", 0)


def _output_dir(folder: str, target: Expansion) -> None:
    for name, value in (("save", folder), ("load", folder), ("tb_project_name", f"{folder.rstrip('/')}/tensorboard")):
        target.put("output_dir", name, value, explicit_wins=True)


def _reporters(names: tuple[str, ...], target: Expansion) -> None:
    """Reporters are added; `none` alone switches TensorBoard off."""
    if names == ("none",):
        target.put("report_to", "use_tensorboard", False)
    for name in names:
        if name != "none":
            target.put("report_to", f"use_{name}", True)


def _nodes(aliases: Mapping[str, Any], target: Expansion, machine: Machine) -> None:
    """--num_nodes, --train_nodes, --rollout_nodes -> --resource."""
    named = {name: aliases[name] for name in ("num_nodes", "train_nodes", "rollout_nodes") if name in aliases}
    if not named:
        return
    per_node = target.given.get("num_gpus_per_node") or machine.gpus or 8
    total = named.get("num_nodes")
    train, rollout = named.get("train_nodes"), named.get("rollout_nodes")
    colocate = bool(target.given.get("colocate"))
    if colocate:
        train, rollout = train or total, rollout or total
    elif total is not None and total > 1:
        train = train or total - (rollout or total // 2)
        rollout = rollout or total - train
    if train is None or rollout is None or train < 1 or rollout < 1:
        raise ConfigError(
            f"{_spelled(named)}: give --train_nodes and --rollout_nodes (both at least 1), or --resource"
        )
    if total is not None and not colocate and train + rollout > total:
        raise ConfigError(
            f"--train_nodes {train} + --rollout_nodes {rollout} = {train + rollout} nodes, "
            f"more than --num_nodes {total}"
        )
    resource = {"actor": (1, train * per_node), "rollout": (1, rollout * per_node)}
    alias = next(iter(named))
    target.put(alias, "resource", FrozenDict(resource))


def _spelled(named: Mapping[str, Any]) -> str:
    return " ".join(f"--{name} {value}" for name, value in named.items())
