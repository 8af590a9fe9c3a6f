# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax.core.prompt_order import PromptOrder
from relax.data import readers
from relax.data.datasets import open_dataset
from relax.data.readers import JsonlReader, ParquetReader, strip_nulls
from relax.utils.errors import ConfigError, DataError
from relax.utils.rng import permutation
from tests.builders import write_jsonl


def values(dataset) -> list[dict]:
    return [dataset.row(index).values for index in range(len(dataset))]


@pytest.fixture(params=[False, True], ids=["eager", "streaming"])
def streaming(request) -> bool:
    return request.param


def test_rows_of_jsonl_and_parquet_are_equal_in_both_forms(tmp_path, streaming):
    rows = [{"input": f"q{i}", "label": str(i), "metadata": {"n": i}} for i in range(7)]
    write_jsonl(tmp_path / "a.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "b.parquet", row_group_size=3)
    for name in ("a.jsonl", "b.parquet"):
        assert values(open_dataset(str(tmp_path / name), streaming=streaming)) == rows
    joined = open_dataset(f"[{tmp_path}/b.parquet@[-2:],{tmp_path}/a.jsonl]@[1:3]", streaming=streaming)
    assert values(joined) == [rows[6], rows[0]]


def test_where_names_the_line_of_jsonl_and_the_row_of_parquet(tmp_path, streaming):
    (tmp_path / "a.jsonl").write_text('\n{"x": 1}\n  \t\n\n{"x": 2}')
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "b.parquet", row_group_size=2)
    lines = open_dataset(str(tmp_path / "a.jsonl"), streaming=streaming)
    assert [lines.row(i).where for i in range(len(lines))] == [f"{tmp_path}/a.jsonl:2", f"{tmp_path}/a.jsonl:5"]
    table = open_dataset(f"{tmp_path}/b.parquet@[1:]", streaming=streaming)
    assert [table.row(i).where for i in range(len(table))] == [f"{tmp_path}/b.parquet:1", f"{tmp_path}/b.parquet:2"]


def test_eager_and_streaming_have_one_digest_that_names_content_and_order(tmp_path):
    a = write_jsonl(tmp_path / "a.jsonl", [{"x": 1}, {"x": 2}])
    b = write_jsonl(tmp_path / "b.jsonl", [{"x": 3}])
    digest = lambda spec, **options: open_dataset(spec, **options).digest  # noqa: E731
    assert digest(f"[{a},{b}]") == digest(f"[{a},{b}]", streaming=True)
    assert len({digest(f"[{a},{b}]"), digest(f"[{b},{a}]"), digest(str(a)), digest(f"{a}@[:1]")}) == 4
    (tmp_path / "moved").mkdir()
    moved = a.rename(tmp_path / "moved" / "c.jsonl")
    assert digest(f"[{moved},{b}]") != digest(f"[{b},{moved}]")
    before = digest(str(moved))
    write_jsonl(moved, [{"x": 1}, {"x": 9}])
    assert digest(str(moved)) != before


@pytest.mark.parametrize("line", ["[1, 2]", "3", '"text"', "null"])
def test_a_row_that_is_no_object_is_named_with_its_line(tmp_path, streaming, line):
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 1}\n' + line + "\n")
    with pytest.raises(DataError, match=rf"{path}:2: a row must be a JSON object") as error:
        values(open_dataset(str(path), streaming=streaming))
    assert error.value.where == f"{path}:2"


@pytest.mark.parametrize(("raw", "word"), [(b'{"x": ', "not JSON"), (b'{"x": "\xff"}', "not UTF-8")])
def test_a_broken_line_is_named(tmp_path, streaming, raw, word):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n\n" + raw + b"\n{}")
    with pytest.raises(DataError, match=rf"{path}:3: the line is {word}"):
        values(open_dataset(str(path), streaming=streaming))


def test_an_empty_selection_is_refused(tmp_path, streaming):
    path = write_jsonl(tmp_path / "a.jsonl", [{"x": 1}])
    with pytest.raises(ConfigError, match="has no rows"):
        open_dataset(f"{path}@[5:]", streaming=streaming)


def test_lines_end_at_line_feed_only(tmp_path):
    # U+2028, U+0085, form feed and carriage return end a line for str.splitlines, not for JSONL
    rows = [{"x": "a\u2028b\u0085c\x0cd"}, {"x": 2}]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\r\n".join(json.dumps(row, ensure_ascii=False).encode() for row in rows))
    assert values(open_dataset(str(path))) == rows


def test_D7_utf8_and_bom_are_read_whatever_the_locale(tmp_path):
    rows = [{"x": "\U0001f600 \u4f60\u597d"}, {"x": "\u00e9"}]
    path = tmp_path / "bom.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode())
    program = (
        "import sys, json; from relax.data.datasets import open_dataset; d = open_dataset(sys.argv[1]);"
        "print(json.dumps([d.row(i).values for i in range(len(d))]))"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == rows


@given(
    st.lists(
        st.one_of(st.sampled_from(["", " ", "\t \t", "\r"]), st.text(max_size=5).map(lambda x: json.dumps({"t": x}))),
        max_size=12,
    ),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 2, 3, 7, 1 << 20]),
)
def test_the_byte_index_equals_a_plain_split(tmp_path_factory, lines, final_newline, bom, block):
    data = (b"\xef\xbb\xbf" if bom else b"") + "\n".join(lines).encode() + (b"\n" if final_newline else b"")
    path = tmp_path_factory.mktemp("index") / "a.jsonl"
    path.write_bytes(data)
    old, readers.SCAN_BYTES = readers.SCAN_BYTES, block
    try:
        reader = JsonlReader(path)
    finally:
        readers.SCAN_BYTES = old
    kept = [(place + 1, json.loads(line)) for place, line in enumerate(lines) if line.strip()]
    assert [(reader.where(i), reader.row(i).values) for i in range(len(reader))] == [
        (f"{path}:{line}", value) for line, value in kept
    ]
    reader.close()


def test_D1_D2_nested_columns_of_a_huge_row_group_stream_as_plain_values(tmp_path, monkeypatch):
    rows = [
        {
            "prompt": [{"role": "user", "content": [{"type": "text", "text": f"q{i}"}, {"type": "image", "n": i}]}],
            "images": [{"bytes": bytes([i]) * 500, "path": None}, {"bytes": None, "path": f"{i}.png"}],
        }
        for i in range(40)
    ]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=40)
    # Small limits make this one group take the paths of one of gigabytes: many batches, then the mapped file.
    monkeypatch.setattr(readers, "BATCH_BYTES", 2000)
    monkeypatch.setattr(readers, "SPILL_BYTES", 1000)
    dataset = open_dataset(str(path), streaming=True, buffer_rows=2)
    for index in (39, 0, 17, 38):
        row = dataset.row(index).values
        assert (
            row["prompt"] == rows[index]["prompt"]
        )  # no invented nulls: the text part has no "n", the image no "text"
        assert row["images"] == [{"bytes": bytes([index]) * 500}, {"path": f"{index}.png"}]
        assert type(row["prompt"]) is list and type(row["prompt"][0]["content"][1]) is dict
    dataset.close()


def test_row_groups_leave_memory_at_the_limit(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": list(range(100))}), path, row_group_size=10)
    monkeypatch.setattr(readers, "GROUP_CACHE_BYTES", 200)  # a group of ten int64 is 80 bytes: two fit
    reader = ParquetReader(path)
    assert [reader.row(i).values["x"] for i in (5, 95, 15, 5)] == [5, 95, 15, 5]
    assert list(reader._groups) == [1, 0]


def test_the_streaming_buffer_is_bounded_by_rows_and_bytes(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"x": "y" * 100} for _ in range(50)])
    few = open_dataset(str(path), streaming=True, buffer_rows=3, prefetch_workers=0)
    small = open_dataset(str(path), streaming=True, buffer_bytes=500, prefetch_workers=0)
    for index in range(50):
        few.row(index), small.row(index)
    assert list(few._buffer) == [47, 48, 49]
    assert len(small._buffer) == 4 and small._held == 4 * 109  # {"x": "yyy..."} is 109 bytes


def test_prefetched_rows_are_the_same_rows_and_errors_wait_for_their_reader(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"x": i}) + "\n" for i in range(20)) + "[]\n")
    dataset = open_dataset(str(path), streaming=True)
    dataset.prefetch(range(21))
    dataset._workers.shutdown(wait=True)
    assert set(dataset._buffer) == set(range(20))
    assert [dataset.row(i).values["x"] for i in range(20)] == list(range(20))
    with pytest.raises(DataError, match=":21: a row must be"):
        dataset.row(20)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_R6_a_resumed_stream_goes_on_in_order_however_many_threads_read_ahead(tmp_path, workers):
    path = write_jsonl(tmp_path / "a.jsonl", [{"x": i} for i in range(23)])

    def draw(order: PromptOrder, count: int) -> list[int]:
        dataset = open_dataset(str(path), streaming=True, prefetch_workers=workers)
        rows = [order.next_fresh()[1] for _ in range(count)]
        dataset.prefetch(rows)
        values = [dataset.row(row).values["x"] for row in rows]
        dataset.close()
        return values

    whole = [int(row) for epoch in (0, 1) for row in permutation(5, epoch, 23)]
    order = PromptOrder(23, seed=5, shuffle=True)
    first = draw(order, 17)
    resumed = PromptOrder(23, seed=5, shuffle=True)
    resumed.drawn = order.drawn  # all that a checkpoint keeps of the position
    assert first + draw(resumed, 29) == whole


def test_a_row_that_is_being_read_ahead_is_waited_for_and_read_once(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"x": i} for i in range(8)])
    dataset = open_dataset(str(path), streaming=True, prefetch_workers=2)
    reads, read, both = [], dataset._rows.read, threading.Barrier(2)

    def slow(index):
        reads.append(index)
        both.wait(10)  # two threads are inside at the same time, which one thread cannot be
        return read(index)

    dataset._rows.read = slow
    dataset.prefetch([5, 3, 5])
    assert [dataset.row(i).values["x"] for i in (5, 3)] == [5, 3]
    assert sorted(reads) == [3, 5]
    dataset.close()


def test_a_file_that_is_no_parquet_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read as Parquet"):
        open_dataset(str(path))


def test_top_level_nulls_stay_and_nested_ones_go():
    assert strip_nulls({"a": None, "b": [{"c": None, "d": 0}]}) == {"b": [{"d": 0}]}


def test_parquet_keeps_a_null_label(tmp_path):
    pq.write_table(pa.table({"x": [1], "label": pa.array([None], pa.string())}), tmp_path / "a.parquet")
    assert open_dataset(str(tmp_path / "a.parquet")).row(0).values == {"x": 1, "label": None}


def test_relative_media_start_at_the_folder_of_the_file(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{}])
    assert open_dataset(str(path)).row(0).folder == Path(tmp_path)
