# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Cores of idle processes are lent, those of dead ones too, and results keep their order."""

import subprocess
import sys
import threading
import time

import pytest

from relax.utils import cores
from relax.utils.cores import CoreShare

HOLD = """
import sys
from pathlib import Path
from relax.utils.cores import CoreShare
share = CoreShare(Path(sys.argv[1]), 4)
share.begin()
print("held", flush=True)
sys.stdin.readline()
share.end()
print("idle", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def shares(tmp_path):
    made = []

    def make(cores):
        made.append(CoreShare(tmp_path, cores))
        return made[-1]

    yield make
    for share in made:
        share.close()


def test_without_a_folder_one_core_is_granted():
    share = CoreShare(None, 8)
    with share.working():
        assert share.granted() == 1
    assert list(share.in_order(lambda i: i * i, 4)) == [0, 1, 4, 9]


@pytest.mark.parametrize(
    ("cores", "at_work", "expected"),
    [
        (2, 1, [2]),  # alone at work: both cores
        (2, 2, [1, 1]),
        (2, 3, [1, 1, 1]),  # never none
        (5, 2, [2, 3]),  # an odd core goes to one of them, not to both
        (8, 3, [2, 3, 3]),
    ],
)
def test_cores_are_shared_evenly_among_those_at_work(shares, cores, at_work, expected):
    everyone = [shares(cores) for _ in range(4)]
    for share in everyone[:at_work]:
        share.begin()
    assert sorted(share.granted() for share in everyone[:at_work]) == expected


def test_a_process_that_waits_or_dies_lends_its_core(tmp_path, shares):
    own = shares(4)
    own.begin()
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        assert own.granted() == 2
        print(file=other.stdin, flush=True)
        assert other.stdout.readline() == "idle\n"
        assert own.granted() == 4
        other.kill()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        assert own.granted() == 2
        other.kill()
        other.wait()
        assert own.granted() == 4


def test_results_come_in_order_however_long_each_takes(shares):
    share = shares(2)
    threads = set()
    both = threading.Barrier(2, timeout=20)

    def work(place):
        threads.add(threading.current_thread().name)
        if place < 2:
            both.wait()  # passes only when two pieces are computed at a time
        time.sleep(0.02 if place % 2 == 0 else 0)
        return place

    with share.working():
        assert list(share.in_order(work, 7)) == list(range(7))
    assert len(threads) == 2


def test_no_piece_runs_further_ahead_than_there_are_cores(shares):
    share, started = shares(3), []
    results = share.in_order(lambda place: started.append(place) or place, 20)
    for expected in range(20):
        assert next(results) == expected
        assert max(started) <= expected + 3


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_caller_sleeps_while_an_earlier_piece_runs_longer_than_later_ones(shares, monkeypatch, count):
    share, waits, release = shares(2), [], threading.Event()
    plain_wait = cores.wait

    def counted(futures, **options):
        waits.append(len(futures))
        return plain_wait(futures, **options)

    def work(place):
        if place == 0:
            release.wait(10.0)
        return place

    monkeypatch.setattr(cores, "wait", counted)
    with share.working():
        threading.Timer(0.3, release.set).start()
        assert list(share.in_order(work, count)) == list(range(count))
    assert len(waits) <= count + 2  # one for each piece that ends, and the one for cancelled pieces


def test_an_error_ends_the_work_at_its_place(shares):
    share, started = shares(2), []

    def work(place):
        started.append(place)
        if place == 3:
            raise ValueError("piece 3")
        return place

    done = []
    with pytest.raises(ValueError, match="piece 3"):
        for place in share.in_order(work, 50):
            done.append(place)
    assert done == [0, 1, 2]
    assert max(started) < 7


def test_a_closed_share_grants_one_core_and_leaves_no_file(tmp_path):
    share = CoreShare(tmp_path, 4)
    share.begin()
    share.close()
    share.close()
    assert share.granted() == 1
    assert list(tmp_path.iterdir()) == []
