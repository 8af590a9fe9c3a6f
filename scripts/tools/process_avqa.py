# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Training rows of AVQA-R1-6K (or of another JSON list in its form): an image, a sound and a question with options.

python scripts/tools/process_avqa.py --input-dir AVQA_R1/train/omni_rl_format_train.json \\
    --output-dir AVQA_R1/train/omni_rl_format_train_test.jsonl --md-dir AVQA_R1/train

Read are `problem`, `options`, `solution` and `path` of each row; written are `prompt` (one user message), `image` and
`audio` (lists of paths), `label` (`<answer>B</answer>`) and, as metadata, `problem_id` and `data_source`, for
--input-key prompt --label-key label --multimodal-keys '{"image":"image","audio":"audio"}'.
Both names are files. An output that is there is replaced, once the new one is whole.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

if __name__ == "__main__":  # started as a file: the repository must be found
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from relax.engine.rewards.answers import choice_letter, tagged
from relax.utils.errors import DataError
from relax.utils.types import MODALITIES
from scripts.tools.prepared import Account, check_files, parser_of, run, with_placeholders

KEPT = ("problem_id", "data_source")  # keys that the output keeps, for telling rows apart
CHUNK = 1 << 20  # characters read at a time
MAX_ROW = 64 << 20  # characters of one row; what is longer is no row but a broken file
_BETWEEN = re.compile(r"\s*")


def training_row(row: Any, md_dir: Path | None, *, where: str) -> dict[str, Any]:
    """The row as training reads it. Raises DataError for a broken row."""
    if not isinstance(row, dict):
        raise DataError(f"a row must be an object, this one is a {type(row).__name__}", where=where)
    problem, options, path = (_value(row, name, kind, where) for name, kind in _FORM.items())
    media = {kind: _paths(value, kind, md_dir, where) for kind, value in path.items()}
    text = "\n".join([problem, "Options:", *options]) if options else problem
    order = [kind for kind in MODALITIES for _ in media.get(kind, ())]
    return {
        "prompt": [{"content": with_placeholders(text, order, where=where), "role": "user"}],
        **{kind: media.get(kind, []) for kind in ("image", "audio")},
        **({"video": media["video"]} if "video" in media else {}),
        "label": f"<answer>{_answer(row, options, where)}</answer>",
        **{name: row[name] for name in KEPT if name in row},
    }


_FORM: dict[str, type] = {"problem": str, "options": list, "path": dict}


def _value(row: dict[str, Any], name: str, kind: type, where: str) -> Any:
    if name == "options" and row.get(name) is None:
        return []  # a question that is not multiple choice
    value = row.get(name)
    if not isinstance(value, kind) or (kind is not list and not value):
        word = {"str": "text", "list": "a list", "dict": "an object of image and audio paths"}[kind.__name__]
        raise DataError(f"{name!r} must be {word}, got {value!r:.100}; the row has {sorted(row)}", where=where)
    if kind is list and not all(isinstance(item, str) for item in value):
        raise DataError(f"{name!r} must be a list of texts, got {value!r:.100}", where=where)
    return value


def _answer(row: dict[str, Any], options: list[str], where: str) -> str:
    """What the solution's tag holds; of a question with options it must be the letter of one."""
    solution = row.get("solution")
    answer = tagged(solution) if isinstance(solution, str) else None
    if not answer:
        raise DataError(f"'solution' must hold <answer>...</answer>, got {solution!r:.100}", where=where)
    letters = [choice_letter(option) for option in options]
    if options and choice_letter(answer) not in letters:
        raise DataError(f"the answer {answer!r} is none of the options {options}", where=where)
    return answer


def _paths(value: Any, kind: str, md_dir: Path | None, where: str) -> list[str]:
    if kind not in MODALITIES:
        raise DataError(f"'path' has the unknown kind {kind!r}; known are {', '.join(MODALITIES)}", where=where)
    paths = value if isinstance(value, list) else [value]
    if not all(isinstance(path, str) and path for path in paths):
        raise DataError(f"the {kind} of 'path' must be a path or a list of them, got {value!r:.100}", where=where)
    if md_dir is None:
        return paths
    joined = [os.path.normpath(md_dir / path) for path in paths]
    if missing := [path for path in joined if not os.path.isfile(path)]:
        raise DataError(f"{missing[0]} is not there; --md-dir is the folder that {paths[0]!r} starts in", where=where)
    return joined


def rows_of(file: TextIO, source: Path) -> Iterator[Any]:
    """The items of a JSON list, one at a time: a part of the file is in memory, never all of it."""
    decoder, text, place, number = json.JSONDecoder(), file.read(CHUNK), 0, 0

    def error(message: str) -> DataError:
        return DataError(message, where=f"{source}:{number}")

    def more() -> bool:
        nonlocal text, place
        added = file.read(max(CHUNK, len(text) - place))  # doubled, so that a long row is not parsed anew too often
        text, place = text[place:] + added, 0
        return bool(added)

    def next_mark() -> str:
        """The next character that is no space, "" at the end of the file."""
        nonlocal place
        while True:
            place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]
            if place < len(text) or not more():
                return text[place : place + 1]

    if next_mark() != "[":
        raise DataError(f"the file must hold one JSON list of rows, it starts with {text[:60]!r}", where=str(source))
    place += 1
    mark = next_mark()
    while mark != "]":
        while True:
            try:
                item, end = decoder.raw_decode(text, place)
            except json.JSONDecodeError as found:
                if len(text) - place > MAX_ROW or not more():
                    raise error(f"the row is not JSON: {found.msg}; it starts with {text[place:][:80]!r}") from found
            else:
                break
        place = end
        yield item
        mark = next_mark()
        if mark not in ("]", ","):
            what = f"{mark!r} follows" if mark else "the file ends"
            raise error(f"{what} after the row, where a comma or the list's end must be")
        if mark == ",":
            place, number = place + 1, number + 1
            next_mark()
    place += 1
    if next_mark():
        raise error(f"something follows the list's end: {text[place:][:60]!r}")


def convert(source: Path, target: Path, md_dir: Path | None) -> Account:
    """Write the training rows of `source` to `target`, one by one."""
    account = Account()
    with source.open(encoding="utf-8-sig") as file, target.open("w", encoding="utf-8") as out:
        try:
            for row in rows_of(file, source):
                made = training_row(row, md_dir, where=f"{source}:{account.read}")  # rows count from 0
                account.read += 1
                out.write(json.dumps(made, ensure_ascii=False) + "\n")
                account.written += 1
        except UnicodeDecodeError as error:
            raise DataError(f"the file is not UTF-8: {error}", where=str(source)) from error
    return account


def main(argv: list[str] | None = None) -> int:
    parser = parser_of(__doc__, source=".json", target=".jsonl")
    parser.add_argument(
        "--md-dir",
        type=Path,
        metavar="DIR",
        help="folder that the rows' paths start in: they become absolute, and their files must be there; "
        "without it paths stay as they are, relative to the folder of the output",
    )
    args = parser.parse_args(argv)
    check_files(parser, args.input_dir, args.output_dir, suffix=".jsonl")
    if args.md_dir is not None and not args.md_dir.is_dir():
        parser.error(f"--md-dir {args.md_dir} is no folder")
    md_dir = None if args.md_dir is None else args.md_dir.absolute()
    return run("process_avqa", lambda target: convert(args.input_dir, target, md_dir), args.output_dir)


if __name__ == "__main__":
    sys.exit(main())
