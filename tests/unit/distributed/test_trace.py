# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The trace: what is written comes back, and damage has the name of its field."""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib

import numpy as np
import pytest

from relax.distributed.bus.base import Block
from relax.distributed.trace import HEADER, NOTES, TraceWriter, find_damage, flipped_bit, read_block
from relax.utils.errors import DataError

COLUMNS = {
    "tokens": np.asarray([7, 8, 9, 10, 11], np.int32),
    "loss_mask": np.asarray([1, 0, 1], np.uint8),
    "rollout_logprobs": np.asarray([-0.5, 0.0, -1.25], np.float32),
    "reward": np.asarray([1.0, 0.25], np.float64),
    "group": np.asarray([12], np.int64),
}
ROWS = {"seconds": {"generate": 0.5}, "media": [], "rows": [{"response": "four", "reward": 1.0, "index": 0}]}


def written(tmp_path):
    """Two blocks; the second one is looked at."""
    writer = TraceWriter(tmp_path)
    writer.roll("0")
    writer.write(Block(11, {"tokens": np.asarray([1], np.int32)}))
    entry = writer.write(Block(12, COLUMNS), ROWS)
    writer.close()
    return entry


def data_at(tmp_path, entry):
    data = bytearray((tmp_path / entry.file).read_bytes())
    (size,) = struct.unpack_from("<Q", data, entry.offset)
    header = json.loads(data[entry.offset + 8 : entry.offset + 8 + size])
    return data, entry.offset + 8 + size, header


def test_a_written_block_is_read_back_and_nothing_is_wrong_with_it(tmp_path):
    entry = written(tmp_path)
    assert find_damage(tmp_path, entry) is None
    assert set(entry.columns) == {HEADER, NOTES, *COLUMNS}
    assert entry.columns["loss_mask"] == f"{zlib.crc32(bytes([1, 0, 1])):08x}"
    block = read_block(tmp_path, entry)
    assert all(np.array_equal(block.columns[name], values) for name, values in COLUMNS.items())


@pytest.mark.parametrize("name", COLUMNS)
def test_a_flipped_bit_is_named_with_its_column_its_element_and_both_values(name, tmp_path):
    entry = written(tmp_path)
    data, start, header = data_at(tmp_path, entry)
    first, end = header[name]["data_offsets"]
    for byte in {first, (first + end) // 2, end - 1}:
        for bit in (0, 5, 7):
            broken = bytearray(data)
            broken[start + byte] ^= 1 << bit
            (tmp_path / entry.file).write_bytes(broken)
            damage = find_damage(tmp_path, entry)
            assert damage is not None
            assert (damage.field, damage.place) == (name, (byte - first) // COLUMNS[name].itemsize)
            assert damage.recorded == repr(COLUMNS[name][damage.place].item())
            assert damage.found != damage.recorded
            with pytest.raises(DataError, match="differs from the journal's"):
                read_block(tmp_path, entry)


def test_every_bit_of_the_header_is_told_from_the_columns(tmp_path):
    entry = written(tmp_path)
    data, start, _ = data_at(tmp_path, entry)
    for byte in range(entry.offset, start):
        broken = bytearray(data)
        broken[byte] ^= 1 << byte % 8
        (tmp_path / entry.file).write_bytes(broken)
        damage = find_damage(tmp_path, entry)
        assert damage is not None and damage.field == HEADER, byte - entry.offset


@pytest.mark.parametrize(
    ("text", "field", "recorded", "found"),
    [
        (b"four", "notes.rows[0].response", "'four'", "'fnur'"),
        (b'"digest":"', "notes.digest", None, None),
        (b'index":0', "notes.rows[0].index", "0", "1"),
        (b'"rows":[', NOTES, "a line of JSON", None),  # the bit opens no list
    ],
    ids=["text", "digest", "number", "syntax"],
)
def test_a_flipped_bit_of_the_notes_is_named_with_its_place_and_both_values(text, field, recorded, found, tmp_path):
    entry = written(tmp_path)
    path = tmp_path / "0.jsonl"
    data = bytearray(path.read_bytes())
    place = data.rindex(text) + {b"four": 1, b'"digest":"': 10}.get(text, len(text) - 1)
    data[place] ^= 1
    path.write_bytes(data)
    damage = find_damage(tmp_path, entry)
    assert damage is not None
    assert damage.field == field
    assert recorded in (None, damage.recorded)
    assert found in (None, damage.found)
    assert damage.recorded != damage.found


def test_a_line_of_notes_that_is_gone_is_missed(tmp_path):
    entry = written(tmp_path)
    path = tmp_path / "0.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert find_damage(tmp_path, entry).field == NOTES
    path.unlink()
    with pytest.raises(DataError, match="the notes of the trace cannot be read"):
        find_damage(tmp_path, entry)


def test_more_than_one_bit_is_named_by_the_column_alone(tmp_path):
    entry = written(tmp_path)
    data, start, header = data_at(tmp_path, entry)
    first = header["tokens"]["data_offsets"][0]
    data[start + first : start + first + 12] = bytes(range(100, 112))
    (tmp_path / entry.file).write_bytes(data)
    damage = find_damage(tmp_path, entry)
    assert damage is not None
    assert (damage.field, damage.place, damage.recorded) == ("tokens", None, f"crc32 {entry.columns['tokens']}")


def test_a_short_file_a_missing_one_and_an_older_journal_are_told_apart(tmp_path):
    entry = written(tmp_path)
    data, _, _ = data_at(tmp_path, entry)
    older = dataclasses.replace(entry, columns={})
    assert find_damage(tmp_path, older) is None
    data[-1] ^= 1
    (tmp_path / entry.file).write_bytes(data)
    assert find_damage(tmp_path, older).field == "(block)"
    (tmp_path / entry.file).write_bytes(data[:-3])
    assert find_damage(tmp_path, entry).found == f"{entry.length - 3} bytes"
    (tmp_path / entry.file).unlink()
    with pytest.raises(DataError, match="the trace cannot be read"):
        find_damage(tmp_path, entry)


def test_no_single_flip_explains_two():
    data = bytearray(range(200))
    recorded = zlib.crc32(data)
    data[17] ^= 0x10
    assert flipped_bit(recorded, data) == 17 * 8 + 4
    data[150] ^= 0x01
    assert flipped_bit(recorded, data) is None
