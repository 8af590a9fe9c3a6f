# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Training and evaluation rows of SST-2, AG News and GoEmotions (simplified) for sequence classification.

python examples/seq_cls_sft/tools/prepare_classification_sft_data.py --dataset all --subset full \\
    --global-batch-size 64 --output-dir "${DATA_DIR}/sft/seq_cls"

Each data set is read at one fixed revision. Written are <output-dir>/<dataset>/<subset>/train.jsonl and eval.jsonl,
rows of `messages` (one user message), `label` (a class, or the list of classes of GoEmotions) and `source_id`.

  full      every row
  smoke     4 global batches to train on, 1 to evaluate
  extended  64 global batches to train on, 8 to evaluate

The smaller ones are drawn at random but always the same; one that a data set has too few rows for is every row.

Without a network give --source-dir, where each data set lies in a folder of its name as it was fetched:
  hf download --repo-type dataset stanfordnlp/sst2 --revision 8d51e7e4887a4caaa95b3fbebbf53c0490b58bbb \\
      --local-dir SOURCE/sst2
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # started as a file: the repository must be found
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from relax.utils.errors import DataError, InfrastructureError, RelaxError
from relax.utils.rng import permutation
from scripts.tools.prepared import written_aside

SUBSETS = {"full": None, "smoke": (4, 1), "extended": (64, 8)}  # global batches to train on and to evaluate
SPLITS = ("train", "eval")
DRAW_SEED = 20260101


@dataclass(frozen=True)
class Source:
    """A data set of the Hugging Face Hub at one revision, and what its columns mean."""

    repository: str
    revision: str
    train: str  # path of the file in the repository
    eval: str
    text: str
    label: str
    num_labels: int
    multi_label: bool = False

    def file(self, split: str) -> str:
        return self.train if split == "train" else self.eval


SOURCES = {
    "sst2": Source(
        "stanfordnlp/sst2",
        "8d51e7e4887a4caaa95b3fbebbf53c0490b58bbb",
        "data/train-00000-of-00001.parquet",
        "data/validation-00000-of-00001.parquet",  # the test split has no labels
        text="sentence",
        label="label",
        num_labels=2,
    ),
    "ag_news": Source(
        "fancyzhx/ag_news",
        "eb185aade064a813bc0b7f42de02595523103ca4",
        "data/train-00000-of-00001.parquet",
        "data/test-00000-of-00001.parquet",
        text="text",
        label="label",
        num_labels=4,
    ),
    "go_emotions": Source(
        "google-research-datasets/go_emotions",
        "add492243ff905527e67aeb8b80c082af02207c3",
        "simplified/train-00000-of-00001.parquet",
        "simplified/validation-00000-of-00001.parquet",
        text="text",
        label="labels",
        num_labels=28,
        multi_label=True,
    ),
}


def training_row(row: dict[str, Any], source: Source, *, name: str, split: str, place: int) -> dict[str, Any]:
    """The row as training reads it. Raises DataError for a text or a label that the data set does not have."""
    where = f"{name} {source.file(split)}:{place}"
    text, label = row[source.text], row[source.label]
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{source.text!r} must be text, got {text!r}", where=where)
    classes = label if source.multi_label else [label]
    if not isinstance(classes, list) or not all(_is_class(item, source.num_labels) for item in classes):
        kind = "a list of classes" if source.multi_label else "a class"
        raise DataError(f"{source.label!r} must be {kind} below {source.num_labels}, got {label!r}", where=where)
    return {
        "messages": [{"role": "user", "content": text.strip()}],
        "label": sorted(classes) if source.multi_label else label,
        "source_id": f"{name}:{split}:{place}",
    }


def _is_class(value: Any, count: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count


def kept_rows(count: int, split: str, subset: str, global_batch_size: int) -> list[int]:
    """Rows of a split that the subset has, ascending; the same at each call."""
    batches = SUBSETS[subset]
    if batches is None:
        return list(range(count))
    wanted = batches[SPLITS.index(split)] * global_batch_size
    return sorted(permutation(DRAW_SEED, SPLITS.index(split), count)[:wanted].tolist())


def source_file(name: str, split: str, source_dir: Path | None) -> Path:
    """The split's file: of `--source-dir`, else fetched from the Hub at the fixed revision."""
    source = SOURCES[name]
    if source_dir is not None:
        path = source_dir / name / source.file(split)
        if not path.is_file():
            raise DataError(
                f"{path} is not there; fetch it by: hf download --repo-type dataset {source.repository} "
                f"{source.file(split)} --revision {source.revision} --local-dir {source_dir / name}"
            )
        return path
    from huggingface_hub import hf_hub_download

    try:
        found = hf_hub_download(source.repository, source.file(split), repo_type="dataset", revision=source.revision)
    except Exception as error:
        # Whatever the Hub's client raises without a network: its user is told how to do without.
        raise InfrastructureError(
            f"{source.repository} cannot be fetched ({type(error).__name__}: {error}); where there is no network give "
            "--source-dir (see --help)"
        ) from error
    return Path(found)


def rows_of(path: Path, source: Source) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"cannot be read: {error}", where=str(path)) from error
    missing = [column for column in (source.text, source.label) if column not in table.column_names]
    if missing:
        raise DataError(f"no column {', '.join(missing)}; it has {', '.join(table.column_names)}", where=str(path))
    return table.select([source.text, source.label]).to_pylist()


def prepared_rows(name: str, split: str, path: Path, subset: str, global_batch_size: int) -> Iterator[dict[str, Any]]:
    source = SOURCES[name]
    rows = rows_of(path, source)
    for place in kept_rows(len(rows), split, subset, global_batch_size):
        yield training_row(rows[place], source, name=name, split=split, place=place)


def prepare(name: str, args: argparse.Namespace) -> None:
    folder = args.output_dir / name / args.subset
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        path, output, count = source_file(name, split, args.source_dir), folder / f"{split}.jsonl", 0
        with written_aside(output) as partial, partial.open("w", encoding="utf-8") as file:
            for row in prepared_rows(name, split, path, args.subset, args.global_batch_size):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                count += 1
        batches = f", {count // args.global_batch_size} global batches an epoch" if split == "train" else ""
        print(f"{name}: {count} rows to {output}{batches}")


def main(argv: list[str] | None = None) -> int:
    description, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", choices=("all", *SOURCES), default="all", help="which data sets (all)")
    parser.add_argument("--subset", choices=tuple(SUBSETS), default="full", help="how many rows (full)")
    parser.add_argument("--global-batch-size", type=int, default=64, help="rows of a training step (64)")
    parser.add_argument("--output-dir", type=Path, required=True, help="folder to write to; it is made")
    parser.add_argument(
        "--source-dir", type=Path, help="folder of the data sets as fetched, where there is no network"
    )
    args = parser.parse_args(argv)
    if args.global_batch_size < 1:
        parser.error(f"--global-batch-size must be at least 1, got {args.global_batch_size}")
    try:
        for name in SOURCES if args.dataset == "all" else [args.dataset]:
            prepare(name, args)
    except (RelaxError, OSError) as error:
        print(f"prepare_classification_sft_data: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, RelaxError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
