# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A checkpoint of a classification run as a Hugging Face folder with a head for classes (`score.weight`).

python examples/seq_cls_sft/tools/export_classifier.py --run-dir exp/sst2 --output-dir exp/sst2-hf --dtype bf16

The folder loads with AutoModelForSequenceClassification and is served by the SGLang adapter beside this folder.
Adapters (LoRA) are merged. Needs the memory of one copy of the model, in one process.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

if __name__ == "__main__":  # started as a file: the repository must be found
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from relax.core.export import export_checkpoint
from relax.core.run_folder import read_config
from relax.utils.errors import ConfigError, RelaxError


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, or that of the error."""
    options = _parser().parse_args(argv)
    try:
        task = read_config(options.run_dir).task
        if task.task_type != "seq_cls":
            raise ConfigError(f"--run-dir {options.run_dir} trained --task-type {task.task_type}: it has no classes")
        names = options.label_names
        if names and len(names) != task.num_labels:
            raise ConfigError(f"--label-names has {len(names)} names for --num-labels {task.num_labels}")
        _, folder = export_checkpoint(
            options.run_dir,
            options.output_dir,
            iteration=options.iteration,
            dtype=options.dtype,
            model=options.hf_checkpoint,
        )
        _describe(options.output_dir, names, task.classification_threshold if "multi" in task.problem_type else None)
    except RelaxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{folder} -> {options.output_dir}: {task.num_labels} classes, {task.problem_type}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-dir", type=Path, required=True, help="the run's --save folder")
    parser.add_argument("--output-dir", type=Path, required=True, help="a new folder")
    parser.add_argument("--iteration", type=int, help="number of the checkpoint; default: the newest")
    parser.add_argument("--hf-checkpoint", type=Path, help="the model that training started from, where it has moved")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), help="type of the tensors; default: that of training")
    parser.add_argument("--label-names", nargs="+", help="names of the classes, in order of their indices")
    return parser


def _describe(folder: Path, names: list[str] | None, threshold: float | None) -> None:
    """Put names of classes, and the threshold of a multi-label task, into config.json."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if names:
        config["id2label"] = {str(place): name for place, name in enumerate(names)}
        config["label2id"] = {name: place for place, name in enumerate(names)}
    if threshold is not None:
        config["classification_threshold"] = threshold
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
