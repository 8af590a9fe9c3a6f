# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Layout of a run's folder: `--save` when given, else `runs/{name}-{utc}-{run_id}`.

config.json  manifest.json  journal/  trace/  rollout_result/{train,eval}/  metrics/  tensorboard/
iter_XXXXXXX/  latest_checkpointed_iteration.txt  logs/{role}-{incarnation}.log  stacks/
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import uuid
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from relax.backends.base import RankInfo
from relax.config.run import RunConfig
from relax.config.stored import stored_config
from relax.utils.errors import ConfigError
from relax.utils.jsonl import dumps, plain

PACKAGES = ("torch", "transformers", "ray", "TransferQueue", "sglang-router", "safetensors", "numpy")


STORED_FACTS = ("external", "eval_datasets", "custom")  # of the configuration, in manifest.json


class RunFolder:
    """Paths below one run folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.journal, self.trace = self.root / "journal", self.root / "trace"
        self.metrics, self.tensorboard = self.root / "metrics", self.root / "tensorboard"
        self.logs, self.stacks = self.root / "logs", self.root / "stacks"

    def create(self) -> None:
        for path in (self.root, self.journal, self.trace, self.metrics, self.logs):
            path.mkdir(parents=True, exist_ok=True)

    def log(self, name: str, incarnation: int = 0) -> Path:
        return self.logs / f"{name}-{incarnation}.log"


def result_folder(config: RunConfig, folder: RunFolder) -> Path | None:
    """Where results go: `rollout_result/` is made below it. An empty --rollout-result-dir writes none."""
    given = config.logging.rollout_result_dir
    return folder.root if given is None else Path(given) if given else None


def new_run_id() -> str:
    return uuid.uuid4().hex[:8]


def choose_folder(config: RunConfig, run_id: str) -> RunFolder:
    """The folder of this run; it is created, not locked."""
    if config.checkpoint.save:
        folder = RunFolder(Path(config.checkpoint.save))
    else:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        folder = RunFolder(Path("runs") / f"{config.cluster.run_name or 'run'}-{stamp}-{run_id}")
    try:
        folder.create()
    except OSError as error:
        raise ConfigError(f"--save {folder.root}: the folder cannot be written: {error.strerror}") from error
    return folder


def write_description(folder: RunFolder, config: RunConfig, run_id: str, **facts: object) -> None:
    """`config.json` (every value and where it came from) and `manifest.json` (versions of what computes).

    Together they hold the whole configuration: `read_config` is the inverse.
    """
    values = {name: {"value": value, "origin": config.origin(name)} for name, value in sorted(config.values().items())}
    (folder.root / "config.json").write_text(dumps(values) + "\n")
    given = {"external": config.external.given, "eval_datasets": config.eval_datasets, "custom": config.custom}
    facts |= {name: plain(given[name]) for name in STORED_FACTS}
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    manifest = {
        "run_id": run_id,
        "argv": sys.argv,
        "cwd": os.getcwd(),  # what relative paths of the configuration start from
        "python": platform.python_version(),
        "machine": platform.machine(),
        "versions": versions,
        **facts,
    }
    (folder.root / "manifest.json").write_text(json.dumps(manifest, indent=1, default=str) + "\n")


def read_config(root: Path) -> RunConfig:
    """The configuration of the run below `root`, as its last incarnation had it."""
    try:
        values = json.loads((root / "config.json").read_text())
        manifest = json.loads((root / "manifest.json").read_text())
    except FileNotFoundError as error:
        raise ConfigError(
            f"--run {root}: there is no {Path(error.filename).name}; give a folder that `relax train` has written"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"--run {root}: config.json or manifest.json cannot be read: {error}") from error
    return stored_config(values, **{name: manifest[name] for name in STORED_FACTS if name in manifest})


def add_facts(folder: RunFolder, **facts: object) -> None:
    """Put what is known only once the roles are up into `manifest.json`."""
    path = folder.root / "manifest.json"
    manifest = {**json.loads(path.read_text()), **facts}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(manifest, indent=1, default=str) + "\n")
    os.replace(partial, path)


def exactness(config: RunConfig, trainer: RankInfo, engines: Mapping[str, Mapping[str, Any]]) -> tuple[bool, str]:
    """Whether engine and trainer log-probs are bit-equal in this run, and why (not). True only when every side is."""
    problems = [] if trainer.exact else [f"trainer: {trainer.exact_reason}"]
    problems += [f"{name}: {engine['exact_reason']}" for name, engine in engines.items() if not engine["exact"]]
    if config.rollout.rollout_dtype != config.train.train_dtype:
        dtypes = f"{config.rollout.rollout_dtype} and the trainer in {config.train.train_dtype}"
        problems.append(f"engines compute in {dtypes}")
    return not problems, "; ".join(problems) or trainer.exact_reason
