# Copyright (c) 2026 Relax Authors. All Rights Reserved.
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax.data.paths import Segment, Slice, Source, _cut, parse_source, segments, source_files
from relax.utils.errors import ConfigError

ROWS = {"a.jsonl": 10, "b.jsonl": 5, "c.parquet": 4}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (*ROWS, "deep/z.jsonl", "deep/a.jsonl", "deep/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(spec: str | list[str]) -> list[tuple[str, int]]:
    """(file name, row) of every selected row, with the counts of ROWS."""
    found = segments(parse_source(spec), lambda path: ROWS.get(path.name, 2))
    return [(segment.file.name, row) for segment in found for row in range(segment.start, segment.stop)]


def numbered(name: str, *numbers: int) -> list[tuple[str, int]]:
    return [(name, number) for number in numbers]


@pytest.mark.parametrize(
    ("slice_text", "expected"),
    [
        ("@[0:3]", [0, 1, 2]),
        ("@[7:]", [7, 8, 9]),
        ("@[:2]", [0, 1]),
        ("@[-2:]", [8, 9]),
        ("@[-100:]", list(range(10))),
        ("@[:-8]", [0, 1]),
        ("@[2:-6]", [2, 3]),
        ("@[8:2]", []),
    ],
)
def test_D5_slice_of_a_file_takes_rows_as_python_does(folder, slice_text, expected):
    assert rows(f"a.jsonl{slice_text}") == numbered("a.jsonl", *expected)


def test_slice_after_a_list_counts_rows_of_the_whole_list(folder):
    # a has rows 0..9 and b 0..4, so [8:12] is a 8, a 9, b 0, b 1
    assert rows("[a.jsonl,b.jsonl]@[8:12]") == numbered("a.jsonl", 8, 9) + numbered("b.jsonl", 0, 1)
    assert rows("(a.jsonl, b.jsonl)@[-1:]") == numbered("b.jsonl", 4)


def test_inner_and_outer_slices_mix(folder):
    assert rows("['a.jsonl@[-3:]', \"b.jsonl\"@[1:3]]@[1:-1]") == numbered("a.jsonl", 8, 9) + numbered("b.jsonl", 1)


def test_a_list_from_the_command_line_is_a_list(folder):
    assert rows(["b.jsonl@[:1]", "a.jsonl@[:1]"]) == [("b.jsonl", 0), ("a.jsonl", 0)]


def test_folder_is_recursive_sorted_and_takes_only_supported_files(folder):
    names = [str(path.relative_to(folder)) for path in source_files(parse_source(str(folder)))]
    assert names == ["a.jsonl", "b.jsonl", "c.parquet", "deep/a.jsonl", "deep/z.jsonl"]
    assert rows("deep@[9:11]") == [("a.jsonl", 9), ("z.jsonl", 0)]


@pytest.mark.parametrize("name", ["odd@name.jsonl", "odd@[0:2].jsonl", "[odd].jsonl", "odd, name.jsonl", "(x.jsonl"])
def test_D5_a_name_with_grammar_characters_still_loads(folder, name):
    (folder / name).write_text("")
    assert source_files(parse_source(name)) == [Path(name)]
    assert rows(f"['{name}'@[1:]]") == [(name, 1)]


def test_a_name_that_ends_like_a_slice_wins_over_the_slice(folder):
    (folder / "x.jsonl@[0:1]").mkdir()
    (folder / "x.jsonl@[0:1]" / "y.jsonl").write_text("")
    assert [path.name for path in source_files(parse_source("x.jsonl@[0:1]"))] == ["y.jsonl"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("a.jsnl", ["no file or folder", "a.jsonl"]),
        ("deep/notes.txt", ["not one of", ".parquet"]),
        ("[a.jsonl,,b.jsonl]", ["empty list entry"]),
        ("[]", ["empty list entry"]),
        ("", ["empty"]),
        ("['a.jsonl]", ["no file or folder"]),
        ("nowhere/x.jsonl", ["does not exist"]),
    ],
)
def test_a_wrong_path_is_told_with_the_flag_and_near_names(folder, spec, words):
    with pytest.raises(ConfigError) as error:
        parse_source(spec, flag="--eval-prompt-data")
    assert all(word in str(error.value) for word in ["--eval-prompt-data", *words])


def test_an_empty_folder_names_what_it_found(folder):
    (folder / "arrow").mkdir()
    (folder / "arrow" / "data.arrow").write_text("")
    with pytest.raises(ConfigError, match=r"only \.arrow"):
        parse_source("arrow")


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(-30, 30)),
    st.one_of(st.none(), st.integers(-30, 30)),
)
def test_cutting_segments_is_slicing_the_list_of_rows(sizes, start, end):
    found = [Segment(Path(str(place)), 3, 3 + size) for place, size in enumerate(sizes)]
    flat = lambda items: [(item.file, row) for item in items for row in range(item.start, item.stop)]  # noqa: E731
    assert flat(_cut(found, Slice(start, end))) == flat(found)[start:end]


def test_a_file_named_twice_is_read_twice(folder):
    assert rows("[b.jsonl@[:1],b.jsonl@[:1]]") == numbered("b.jsonl", 0, 0)
    assert parse_source("b.jsonl") == Source(file=Path("b.jsonl"))
