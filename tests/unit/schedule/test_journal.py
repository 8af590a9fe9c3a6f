# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The journal on disk: sequence, durability, torn lines and unknown kinds."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from relax.schedule import events as ev
from relax.schedule.journal import FileJournal, MemoryJournal, end_of_journal, read_journal, read_surviving
from relax.utils.errors import DataError

PUBLISHED, ADMITTED = ev.Published(3), ev.Admitted(7, 1, 4, 2)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_first_line_is_the_schema_and_events_are_numbered(tmp_path: Path):
    journal = FileJournal(tmp_path, "driver", incarnation=2)
    assert [journal.append(ADMITTED), journal.append(PUBLISHED)] == [0, 1]
    journal.close()
    assert lines(tmp_path / "driver.jsonl") == [
        {"schema": 1, "writer": "driver", "incarnation": 2},
        {"seq": 0, "kind": "admitted", "group": 7, "epoch": 1, "row": 4, "version": 2},
        {"seq": 1, "kind": "published", "version": 3},
    ]


def test_events_come_back_as_they_were_written(tmp_path: Path):
    events = [
        ev.RunStarted("r", "fully_async", 2, 1, 5),
        ev.Bound(0, (3, 1), last=True),
        ev.Completed(3, "0.safetensors", 0, 64, "d", 1.5),
        ev.Rewarded(3, (0.5, 1.0)),
        ev.Dropped(4, "filter"),
        ev.Resumed(1, 9, (5, 6)),
        ev.Restored(5, 0, 3, 1, 1, 2, "2.safetensors", 8, 16, "abc"),
        ev.Timing("train", 0, 2.0, 1.0),
        ev.Ended("finished"),
    ]
    journal = FileJournal(tmp_path, "driver")
    for event in events:
        journal.append(event)
    journal.close()
    assert list(read_journal(journal.path)) == list(enumerate(events))


def test_a_reward_that_is_not_there_is_null_on_disk_and_nan_in_memory(tmp_path: Path):
    journal = FileJournal(tmp_path, "rollout")
    journal.append(ev.Rewarded(3, (1.0, math.nan)))
    journal.close()
    assert lines(journal.path)[1]["rewards"] == [1.0, None]
    assert "NaN" not in journal.path.read_text()
    ((_, event),) = read_journal(journal.path)
    assert event.rewards[0] == 1.0
    assert math.isnan(event.rewards[1])


def test_durable_events_are_on_disk_when_append_returns_and_others_after_a_flush(tmp_path: Path):
    journal = FileJournal(tmp_path, "driver")
    journal.append(ADMITTED)
    assert list(read_journal(journal.path)) == []
    journal.append(PUBLISHED)  # takes what was buffered with it, in order
    assert [event for _, event in read_journal(journal.path)] == [ADMITTED, PUBLISHED]
    journal.append(ADMITTED)
    assert len(list(read_journal(journal.path))) == 2
    journal.flush()
    assert len(list(read_journal(journal.path))) == 3
    journal.close()


def test_the_events_that_a_restart_relies_on_are_the_durable_ones():
    durable = {kind for kind, event in ev.EVENTS.items() if event.durable}
    assert durable == {"bound", "published", "checkpoint", "ended"}


@pytest.mark.parametrize("torn", ['{"seq":2,"ki', '{"seq":2,"kind":"published","version":4}'])
def test_a_torn_last_line_is_cut_off_and_its_number_is_used_again(tmp_path: Path, torn: str):
    journal = FileJournal(tmp_path, "driver")
    journal.append(ADMITTED)
    journal.append(PUBLISHED)
    journal.close()
    with open(journal.path, "a") as file:
        file.write(torn)  # a crash in mid-write: no newline
    assert [event for _, event in read_journal(journal.path)] == [ADMITTED, PUBLISHED]
    again = FileJournal(tmp_path, "driver", incarnation=1)
    assert again.append(ev.Published(4)) == 2
    again.close()
    assert list(read_journal(again.path)) == [(0, ADMITTED), (1, PUBLISHED), (2, ev.Published(4))]
    assert [line["incarnation"] for line in lines(again.path) if "schema" in line] == [0, 1]


def test_unknown_kinds_and_fields_are_kept_on_disk_and_passed_over(tmp_path: Path):
    path = tmp_path / "driver.jsonl"
    unknown = '{"seq":1,"kind":"from_the_future","x":[1]}'
    path.write_text(
        '{"schema":1,"writer":"driver","incarnation":0}\n'
        '{"seq":0,"kind":"published","version":0,"later_field":5}\n' + unknown + "\n"
    )
    journal = FileJournal(tmp_path, "driver")
    assert journal.append(ADMITTED) == 2
    journal.close()
    assert [event for _, event in read_journal(path)] == [ev.Published(0), ADMITTED]
    assert unknown in path.read_text()


def test_a_newer_schema_is_refused_with_its_place(tmp_path: Path):
    path = tmp_path / "driver.jsonl"
    path.write_text('{"schema":2,"writer":"driver","incarnation":0}\n')
    with pytest.raises(DataError, match=r"driver.jsonl:1: journal schema 2 is newer than 1"):
        list(read_journal(path))


def test_closing_twice_is_allowed(tmp_path: Path):
    journal = FileJournal(tmp_path, "driver")
    journal.append(ADMITTED)
    journal.close()
    journal.close()
    assert len(list(read_journal(journal.path))) == 1


def test_the_journal_in_memory_keeps_events_in_order():
    journal = MemoryJournal()
    assert [journal.append(ADMITTED), journal.append(PUBLISHED)] == [0, 1]
    assert journal.events == [ADMITTED, PUBLISHED]


def test_lines_behind_the_cut_of_a_checkpoint_count_no_more(tmp_path: Path):
    first = FileJournal(tmp_path, "driver")
    for rollout_id in range(4):
        first.append(ev.Stepped(rollout_id, "old"))
    first.close()
    rollout = FileJournal(tmp_path, "rollout")
    rollout.append(ev.Rewarded(0, (1.0,)))
    rollout.append(ev.Rewarded(1, (1.0,)))
    rollout.close()
    with open(first.path, "a") as file:
        file.write('{"seq": 4, "kind": "step')  # a crash cut it
    second = FileJournal(tmp_path, "driver")
    assert (second.first_seq, second.next_seq, end_of_journal(rollout.path)) == (4, 4, 2)
    # the checkpoint held two rollouts, and group 0 only
    second.append(ev.Resumed(1, 9, (), {"driver": (2, 4), "rollout": (1, 2)}))
    second.append(ev.Stepped(2, "new"))
    second.close()
    found = read_surviving(tmp_path)
    stepped = [(e.rollout_id, e.digest) for _, e in found["driver"] if isinstance(e, ev.Stepped)]
    assert stepped == [(0, "old"), (1, "old"), (2, "new")]
    assert [event for _, event in found["rollout"]] == [ev.Rewarded(0, (1.0,))]


def test_the_end_of_a_journal_that_is_not_there_is_zero(tmp_path: Path):
    assert end_of_journal(tmp_path / "rollout.jsonl") == 0
