# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Whether the files that the supervised training scripts read are there, with the columns that they name.

python scripts/tools/check_sft_data.py --data-dir /root
python scripts/tools/check_sft_data.py --file train.parquet --columns problem,generated_solution

One line a file: its rows and the columns that it lacks, or that it is missing. The exit code is 1 unless all is well.
Without --file it looks at those of scripts/training/sft below --data-dir (DATA_DIR, else the folder that holds this
checkout). A .jsonl file is judged by its first row.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

if __name__ == "__main__":  # started as a file: the repository must be found
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from relax.data.readers import RowReader, open_reader
from relax.utils.errors import RelaxError

SCRIPT_FILES = {
    "math": ("OpenMathReasoning-mini/data/cot-00000-of-00001.parquet", ("problem", "generated_solution")),
    "pokemon_en": ("pokemon-gpt4o-captions/pokemon_gpt4o_en.parquet", ("conversations", "images")),
    "pokemon_zh": ("pokemon-gpt4o-captions/pokemon_gpt4o_zh.parquet", ("conversations", "images")),
}


def check(name: str, path: Path, required: set[str]) -> tuple[bool, str]:
    """Whether the file holds the columns, and the line that says so."""
    if not path.exists():
        return False, f"{name}: missing {path}"
    reader = open_reader(path)
    try:
        rows = len(reader)
        missing = sorted(required - _columns(path, reader))
    finally:
        reader.close()
    return rows > 0 and not missing, f"{name}: rows={rows}, missing={missing}"


def _columns(path: Path, reader: RowReader) -> set[str]:
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet as pq

        return set(pq.read_schema(path).names)
    return set(reader.row(0).values) if len(reader) else set()


def main(argv: list[str] | None = None) -> int:
    description, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=description, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("DATA_DIR") or str(Path(__file__).resolve().parents[3])
    parser.add_argument("--data-dir", type=Path, default=Path(default), help=f"folder of sft/data ({default})")
    parser.add_argument("--file", type=Path, help="one file of your own, .jsonl or .parquet")
    parser.add_argument("--columns", default="", help="the columns that it must have, with commas between")
    args = parser.parse_args(argv)
    files = {name: (args.data_dir / "sft/data" / path, set(columns)) for name, (path, columns) in SCRIPT_FILES.items()}
    if args.file is not None:
        files = {args.file.name: (args.file, {name.strip() for name in args.columns.split(",") if name.strip()})}
    try:
        found = [check(name, path, required) for name, (path, required) in files.items()]
    except RelaxError as error:
        print(f"check_sft_data: {error}", file=sys.stderr)
        return error.exit_code
    print("\n".join(line for _, line in found))
    return 0 if all(good for good, _ in found) else 1


if __name__ == "__main__":
    sys.exit(main())
