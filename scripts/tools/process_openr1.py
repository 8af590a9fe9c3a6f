# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Training rows of the data set lmms-lab/multimodal-open-r1-8k-verified (or one with its columns).

python scripts/tools/process_openr1.py --input-dir data/train-00000-of-00001.parquet \\
    --output-dir data/train-00000-of-00001-test.parquet

Read are the columns `image`, `problem` and `solution`; written are `prompt` (one user message), `image` (a list) and
`label` (`<answer>...</answer>`), for --input-key prompt --label-key label --multimodal-keys '{"image":"image"}'.
Both names are files. An output that is there is replaced, once the new one is whole.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # started as a file: the repository must be found
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from relax.data.media.decode import sniff
from relax.engine.rewards.answers import boxed, tagged
from relax.utils.errors import DataError
from scripts.tools.prepared import Account, check_files, parser_of, run, with_placeholders

COLUMNS = ("image", "problem", "solution")
BATCH_ROWS = 64  # rows in memory, and in a row group of the output: some MB of images


def training_row(row: dict[str, Any], *, where: str) -> dict[str, Any] | str:
    """The row as training reads it, or the reason why it is left out. Raises DataError for a broken row."""
    for name in ("problem", "solution"):
        if not isinstance(row[name], str) or not row[name].strip():
            raise DataError(f"{name!r} must be text, got {row[name]!r}", where=where)
    images = [image for image in _list(row["image"]) if image is not None]
    if not images:
        return "no image"
    answer = _answer(row["solution"])
    if not answer:
        return "no <answer>...</answer> and no box in the solution"
    text = with_placeholders(row["problem"], ["image"] * len(images), where=where)
    return {
        "prompt": [{"content": text, "role": "user"}],
        "image": [_image(image, where) for image in images],
        "label": f"<answer>{answer}</answer>",
    }


def _answer(solution: str) -> str | None:
    """What the solution states at its end: its tag, else its box."""
    return tagged(solution) or boxed(solution)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _image(value: Any, where: str) -> dict[str, Any]:
    """`{bytes, path}` of a Hugging Face image, of bytes or of a path. The first bytes must be those of an image."""
    if isinstance(value, bytes):
        value = {"bytes": value, "path": None}
    elif isinstance(value, str):
        value = {"bytes": None, "path": value}
    data, path = value.get("bytes"), value.get("path")
    if not data and not path:
        raise DataError("'image' has neither bytes nor a path", where=where)
    if data and not (sniff(data) or "").startswith("image/"):
        raise DataError(f"'image' holds {len(data)} bytes of no known image format: {data[:16]!r}...", where=where)
    return {"bytes": data, "path": path}


def convert(source: Path, target: Path) -> Account:
    """Write the training rows of `source` to `target`, batch by batch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    message = pa.struct([("content", pa.string()), ("role", pa.string())])
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("prompt", pa.list_(message)), ("image", pa.list_(image)), ("label", pa.string())])
    account = Account()
    try:
        table = pq.ParquetFile(source)
        names = table.schema_arrow.names
        if missing := [name for name in COLUMNS if name not in names]:
            raise DataError(f"no column {', '.join(missing)}; it has {', '.join(names)}", where=str(source))
        with pq.ParquetWriter(target, schema) as writer:
            for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=list(COLUMNS)):
                rows = training_rows(batch.to_pylist(), account, source)
                if rows:
                    writer.write_table(pa.Table.from_pylist(rows, schema=schema))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"cannot be converted: {error}", where=str(source)) from error
    return account


def training_rows(rows: list[dict[str, Any]], account: Account, source: Path) -> list[dict[str, Any]]:
    """The rows of a batch that stay; `account` counts all of them."""
    kept = []
    for row in rows:
        where = f"{source}:{account.read}"  # rows count from 0, as the trainer's own messages do
        account.read += 1
        made = training_row(row, where=where)
        if isinstance(made, str):
            account.leave_out(made, where)
        else:
            account.written += 1
            kept.append(made)
    return kept


def main(argv: list[str] | None = None) -> int:
    parser = parser_of(__doc__, source=".parquet", target=".parquet")
    args = parser.parse_args(argv)
    check_files(parser, args.input_dir, args.output_dir, suffix=".parquet")
    return run("process_openr1", lambda target: convert(args.input_dir, target), args.output_dir)


if __name__ == "__main__":
    sys.exit(main())
