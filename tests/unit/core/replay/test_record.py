# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Which steps of a journal survive, and from which weights they can be trained again."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from pathlib import Path

import pytest

from relax.config.run import default_config
from relax.core.checkpoint import STATE
from relax.core.replay.record import RunRecord
from relax.core.replay.rerun import why_inexact
from relax.core.run_folder import RunFolder, write_description
from relax.distributed.trace import TraceEntry
from relax.schedule import events as ev
from relax.schedule.journal import FileJournal
from relax.utils.errors import ConfigError, DataError

STATE_JSON = {
    "rollout_id": 0, "next_group": 0, "prompts_drawn": 0, "open_groups": [], "dataset_digest": "", "digest": "d0",
}  # fmt: skip


def write_run(folder: Path, *events: ev.Event, rollout: tuple[ev.Event, ...] = (), checkpoints=(), **flags) -> Path:
    run = RunFolder(folder)
    run.create()
    write_description(run, default_config(**flags), "abc", exact=True, device="cpu")
    for name, lines in (("driver", events), ("rollout", rollout)):
        journal = FileJournal(run.journal, name)
        for event in lines:
            journal.append(event)
        journal.close()
    for number in checkpoints:
        path = folder / f"iter_{number:07d}"
        path.mkdir()
        (path / STATE).write_text(json.dumps({**STATE_JSON, "rollout_id": number, "digest": f"d{number}"}))
    return folder


def started() -> ev.Event:
    return ev.RunStarted("abc", "colocate", 2, 0, 5)


def trained(number: int, *groups: int, digest: str = "") -> list[ev.Event]:
    return [ev.Bound(number, groups, True), ev.Stepped(number, digest or f"d{number}"), ev.Published(number + 1)]


def test_a_step_has_its_groups_in_uid_order_whatever_the_pieces_of_its_bind(tmp_path):
    events = [ev.Bound(0, (4, 2), False), ev.Bound(0, (3,), True), ev.Stepped(0, "d0")]
    record = RunRecord.read(write_run(tmp_path, started(), *events))
    assert record.step(0).groups == (2, 3, 4)
    assert record.step(0).parts == ((2, 4), (3,))  # in the order of training


def test_what_came_after_the_cut_of_a_resume_does_not_count(tmp_path):
    first = [started(), *trained(0, 0, 1), ev.Checkpointed(0, "x"), *trained(1, 2, 3), *trained(2, 4, 5)]
    second = [started(), ev.Resumed(0, 6, (2,)), *trained(1, 2, 6, digest="other")]
    record = RunRecord.read(write_run(tmp_path, *first, *second, checkpoints=[0]))
    assert {number: step.groups for number, step in record.steps.items()} == {0: (0, 1), 1: (2, 6)}
    assert record.step(1).digest == "other"
    with pytest.raises(ConfigError, match=r"--step 2: .* has trained rollouts 0 to 1; the run has not ended"):
        record.step(2)


def test_a_run_that_was_started_afresh_in_the_same_folder_forgets_the_old_one(tmp_path):
    record = RunRecord.read(write_run(tmp_path, started(), *trained(0, 0), *trained(1, 1), started(), *trained(0, 0)))
    assert list(record.steps) == [0]


def test_the_newest_usable_weights_are_the_start(tmp_path):
    events = [started(), *trained(0, 0), ev.Checkpointed(0, "x"), *trained(1, 1), ev.Checkpointed(1, "y")]
    record = RunRecord.read(write_run(tmp_path, *events, *trained(2, 2), checkpoints=[0]))  # iter_1 was removed
    assert [start.version for start in record.starts] == [0, 1]
    assert record.start_for(0).checkpoint is None
    assert record.start_for(2).checkpoint == tmp_path.resolve() / "iter_0000000"
    assert (record.start_for(2).digest, record.start_for(0).digest) == ("d0", "")


def test_a_checkpoint_behind_a_refreshed_reference_is_no_start(tmp_path):
    events = [started()]
    for number in range(4):
        events += [*trained(number, number), ev.Checkpointed(number, "x")]
    kl = {"use_kl_loss": True, "kl_loss_coef": 0.1, "ref_update_interval": 2}
    record = RunRecord.read(write_run(tmp_path, *events, checkpoints=range(4), **kl))
    # the reference becomes version 2 after rollout 1: checkpoint 2 is that version, and checkpoint 3 does not hold it
    assert record.start_for(1).version == 1
    assert record.start_for(3).version == 2


def test_a_run_from_another_folder_has_no_start_of_its_own(tmp_path):
    other = write_run(tmp_path / "a", started(), *trained(0, 0), checkpoints=[0])
    folder = write_run(tmp_path / "b", started(), ev.Resumed(0, 1), *trained(1, 1), load=str(other))
    record = RunRecord.read(folder)
    assert [start.version for start in record.starts] == [1]
    (other / "iter_0000000" / STATE).unlink()
    with pytest.raises(ConfigError, match=r"no weights at or before version 1 .*there are: none.*--save-interval"):
        RunRecord.read(folder).start_for(1)


def test_the_last_finish_of_a_group_counts_and_a_missing_one_is_named(tmp_path):
    rollout = tuple(ev.Completed(3, "0.safetensors", at, 10, f"x{at}", 0.0) for at in (0, 50))
    record = RunRecord.read(write_run(tmp_path, started(), *trained(0, 3, 4), rollout=rollout))
    assert record.entry(3) == TraceEntry("0.safetensors", 50, 10, "x50")
    with pytest.raises(DataError, match="group 4 was trained, but no `completed` line says where it is"):
        record.entry(4)


def test_a_journal_that_is_no_json_is_named(tmp_path):
    folder = write_run(tmp_path, started())
    (folder / "journal" / "driver.jsonl").write_text("{broken}\n")
    with pytest.raises(DataError, match="the journal cannot be read"):
        RunRecord.read(folder)


def test_bits_are_promised_for_one_process_on_a_cpu_like_this_one(tmp_path):
    record = RunRecord.read(write_run(tmp_path, started()))
    assert why_inexact(record) == ""
    record.manifest["device"] = "cuda:0"
    record.manifest["versions"]["torch"] = "1.0"
    record.manifest["machine"] = "abacus"
    reason = why_inexact(record)
    assert "the run computed on cuda:0" in reason
    assert f"the run used torch 1.0, here is {metadata.version('torch')}" in reason
    assert f"the run's machine was abacus, here is {platform.machine()}" in reason


def test_several_training_processes_promise_no_bits(tmp_path):
    resource = {"actor": [1, 2], "rollout": [1, 1]}
    record = RunRecord.read(write_run(tmp_path, started(), resource=resource))
    assert why_inexact(record) == "2 training processes added their gradients, here is one"


def test_a_later_line_of_a_step_says_some_metrics_anew(tmp_path):
    folder = write_run(tmp_path / "run")
    rows = [
        {"step": 1, "train/loss": 0.5, "custom/calls/count": 5.0},
        {"step": 1, "eval/weight_version": 1.0, "perf/eval_s": 2.0},
        {"step": 2, "train/loss": 0.25},
        {"step": 1, "custom/calls/count": 8.0},
    ]
    path = RunFolder(folder).metrics / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert RunRecord.read(folder).metrics(1) == {"train/loss": 0.5, "custom/calls/count": 8.0}
