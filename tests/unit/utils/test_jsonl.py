# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from relax.utils.errors import DataError
from relax.utils.jsonl import JsonlWriter, dumps, read_jsonl
from relax.utils.types import Sample


def test_numpy_values_become_plain_json():
    row = {"a": np.float32(0.5), "b": np.arange(3), "c": np.int64(7), "d": np.bool_(True), 3: (1, 2)}
    assert json.loads(dumps(row)) == {"a": 0.5, "b": [0, 1, 2], "c": 7, "d": True, "3": [1, 2]}


def test_non_finite_numbers_stay_strict_json():
    strict = json.loads(dumps([float("nan"), np.float32("inf"), -np.inf, 1.5]), parse_constant=pytest.fail)
    assert strict == ["nan", "inf", "-inf", 1.5]


def test_float64_survives_to_the_bit():
    value = 0.1 + 0.2
    assert json.loads(dumps(value)) == value


def test_dataclasses_enums_and_paths_have_a_form():
    @dataclass
    class Point:
        x: int
        where: Path

    assert json.loads(dumps(Point(1, Path("/tmp/a")))) == {"x": 1, "where": "/tmp/a"}
    assert dumps(Sample.Status.ABORTED) == '"aborted"'


def test_a_value_without_a_json_form_is_an_error():
    with pytest.raises(TypeError, match="object has no JSON form"):
        dumps({"x": object()})


def test_rows_come_back_in_order(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    with JsonlWriter(path) as writer:
        writer.write({"text": "zwei\nLinien \u00e9"})
        writer.write({"n": 2})
        writer.sync()
    assert list(read_jsonl(path)) == [{"text": "zwei\nLinien \u00e9"}, {"n": 2}]


def test_a_torn_last_line_is_not_read_and_not_glued_to_the_next_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n":1}\n{"n":')
    assert list(read_jsonl(path)) == [{"n": 1}]
    with JsonlWriter(path) as writer:
        writer.write({"n": 3})
    assert list(read_jsonl(path)) == [{"n": 1}, {"n": 3}]


def test_a_broken_line_in_the_middle_names_file_and_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n":1}\nnonsense\n{"n":2}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:2: not a line of JSON"):
        list(read_jsonl(path))


def test_a_whole_last_row_without_newline_is_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n":1}\n{"n":2}')
    assert list(read_jsonl(path)) == [{"n": 1}, {"n": 2}]
