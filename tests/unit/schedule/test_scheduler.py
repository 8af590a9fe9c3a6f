# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The gate and the bind, explored with random schedules and by hand."""

import random

import pytest

from relax.schedule import events as ev
from relax.schedule.scheduler import GateSettings, Scheduler
from relax.utils.errors import InternalError


def scheduler(batch=2, staleness=1, rollouts=10, engines=("e0",), **options) -> Scheduler:
    s = Scheduler(GateSettings(batch, staleness, rollouts, **options))
    for name in engines:
        s.apply(ev.EngineJoined(name, 0))
    return s


def admit_all(s: Scheduler) -> list[int]:
    groups = []
    while s.admissible():
        event = s.admit(0, s.next_group)
        s.apply(event)
        groups.append(event.group)
    return groups


def accept(s: Scheduler, *groups: int) -> None:
    for number in groups:
        version = s.open[number].version
        s.apply(ev.Accepted(number, version, version))


def train_and_install(s: Scheduler, rollout_id: int, engines=("e0",)) -> None:
    s.apply(ev.Stepped(rollout_id, "d"))
    s.apply(ev.Published(rollout_id + 1))
    for name in engines:
        s.apply(ev.Installed(name, rollout_id + 1))


@pytest.mark.parametrize(("staleness", "expected"), [(0, 2), (1, 4), (2, 6)])
def test_the_gate_admits_staleness_plus_one_rollouts(staleness, expected):
    assert len(admit_all(scheduler(batch=2, staleness=staleness))) == expected


def test_binding_or_training_a_group_does_not_free_its_slot():
    s = scheduler(batch=2, staleness=0)
    accept(s, *admit_all(s))
    s.apply(s.bind())
    assert s.admissible() == 0
    s.apply(ev.Stepped(0, "d"))
    assert s.admissible() == 0
    s.apply(ev.Published(1))
    assert s.admissible() == 0
    s.apply(ev.Installed("e0", 1))
    assert s.admissible() == 2


def test_A2_A11_finished_groups_that_a_paused_trainer_leaves_hold_new_ones_back_and_none_is_lost():
    s = scheduler(batch=1000, staleness=1)
    groups = admit_all(s)
    assert groups == list(range(2000))
    for number in reversed(groups):  # all end, nothing is trained: generation stands still instead of piling up
        accept(s, number)
        assert s.admissible() == 0
    first, second = s.bind(), None
    s.apply(first)
    train_and_install(s, 0)
    assert len(admit_all(s)) == 1000
    second = s.bind()
    s.apply(second)
    assert sorted([*first.groups, *second.groups]) == groups


@pytest.mark.parametrize("seed", range(5))
def test_A3_submitted_groups_are_running_accepted_or_rejected_whatever_ends_how(seed):
    """The room in the gate follows from these three counts alone: no number of ranks or engines scales it."""
    rng = random.Random(seed)
    engines = tuple(f"e{n}" for n in range(rng.randint(1, 4)))
    s = scheduler(batch=3, staleness=2, rollouts=1000, engines=engines)
    submitted = accepted = rejected = 0
    for _ in range(300):
        running = [n for n, group in s.open.items() if group.state.value == "admitted"]
        move = rng.choice(["admit", "accept", "reject"])
        if move == "admit" and s.admissible():
            s.apply(s.admit(0, submitted))
            submitted += 1
        elif running and move == "accept":
            accept(s, rng.choice(running))
            accepted += 1
        elif running and move == "reject":
            s.apply(ev.Dropped(rng.choice(running), rng.choice(["filter", "aborted"])))
            rejected += 1
        running = [n for n, group in s.open.items() if group.state.value == "admitted"]
        assert submitted == len(running) + accepted + rejected
        assert s.admissible() == 9 - len(running) - accepted  # (2 + 1) x 3, nothing is trained here


def test_a_slot_is_freed_when_the_slowest_engine_has_the_weights():
    s = scheduler(batch=2, staleness=0, engines=("e0", "e1"))
    accept(s, *admit_all(s))
    s.apply(s.bind())
    s.apply(ev.Stepped(0, "d"))
    s.apply(ev.Published(1))
    s.apply(ev.Installed("e0", 1))
    assert s.admissible() == 0
    s.apply(ev.Installed("e1", 1))
    assert s.admissible() == 2


def test_an_engine_that_leaves_no_longer_holds_slots():
    s = scheduler(batch=2, staleness=0, engines=("e0", "e1"))
    accept(s, *admit_all(s))
    s.apply(s.bind())
    s.apply(ev.Stepped(0, "d"))
    s.apply(ev.Published(1))
    s.apply(ev.Installed("e0", 1))
    s.apply(ev.EngineLeft("e1", "lost"))
    assert s.admissible() == 2


def test_nothing_is_admitted_without_an_engine():
    assert scheduler(engines=()).admissible() == 0


def test_a_dropped_group_is_replaced():
    s = scheduler(batch=2, staleness=0)
    first, _ = admit_all(s)
    s.apply(ev.Dropped(first, "zero_std"))
    assert s.admissible() == 1
    assert s.drops == {"zero_std": 1}


def test_the_end_of_a_run_admits_only_what_it_can_still_train():
    # two rollouts of 2: at most 4 groups are ever admitted, though the gate has room for 6
    assert len(admit_all(scheduler(batch=2, staleness=2, rollouts=2))) == 4


def test_groups_are_bound_in_completion_order_while_deadlines_allow():
    s = scheduler(batch=2, staleness=1)
    admit_all(s)  # groups 0..3 at version 0, deadline rollout 1
    accept(s, 3, 1)
    assert s.bind().groups == (3, 1)


def test_an_overtaken_group_is_waited_for_at_its_deadline():
    s = scheduler(batch=2, staleness=1)
    admit_all(s)  # 0..3, version 0
    accept(s, 0, 1)
    s.apply(s.bind())
    train_and_install(s, 0)
    assert admit_all(s) == [4, 5]  # version 1
    accept(s, 2, 4, 5)  # 3 is slow; rollout 1 is the last that may train it
    assert s.bind() is None
    accept(s, 3)
    assert s.bind().groups == (2, 3)


def test_seats_are_kept_for_deadlines_that_would_overflow_a_later_rollout():
    # staleness 2, batch 2: six groups at version 0 must be in rollouts 0..2. Once 0, 1 are bound, 2..5 fill rollouts 1
    # and 2 wholly, so groups of version 1 may not take a seat in rollout 1 although they finish first.
    s = scheduler(batch=2, staleness=2)
    admit_all(s)
    accept(s, 0, 1)
    s.apply(s.bind())
    train_and_install(s, 0)
    assert admit_all(s) == [6, 7]
    accept(s, 6, 7)
    assert s.bind() is None
    accept(s, 4, 2)
    assert s.bind().groups == (4, 2)


def test_tokens_older_than_the_admission_count_by_their_own_version():
    # staleness 1. Group 2 was admitted at version 1 and sampled by an engine that still had version 0, so rollout 1 is
    # the last that may train it, although 3 finished before.
    s = scheduler(batch=1, staleness=1)
    admit_all(s)  # 0, 1 at version 0
    accept(s, 0)
    s.apply(s.bind())
    train_and_install(s, 0)
    s.apply(ev.Dropped(1, "filtered"))
    assert admit_all(s) == [2, 3]
    accept(s, 3)
    s.apply(ev.Accepted(2, 0, 1))
    assert s.bind().groups == (2,)


@pytest.mark.parametrize("policy", ["wait", "drop"])
def test_age_is_looked_at_again_when_a_rollout_is_bound(policy):
    """A5."""
    # staleness 2: age 2 is trained, age 3 is not, however fresh the group was when it came in
    s = scheduler(batch=1, staleness=2, rollouts=6, stale_policy=policy)
    admit_all(s)  # 0, 1, 2 at version 0
    for rollout_id, number in enumerate((1, 2)):
        accept(s, number)
        if s.bind() is not None and s.bind().groups == (number,):
            s.apply(s.bind())
            train_and_install(s, rollout_id)
    admit_all(s)
    accept(s, 0)
    assert s.bind().groups == (0,) and s.next_rollout == 2
    s.next_rollout = 3  # as if a rollout without it had been bound
    accept(s, 3)
    assert s.bind().groups == (3,)
    assert [d.group for d in s.unusable()] == [0]


def test_nothing_is_admitted_once_every_rollout_is_bound():
    s = scheduler(batch=1, staleness=1, rollouts=1, surplus=1)
    accept(s, *admit_all(s)[:1])
    s.apply(s.bind())
    for event in s.unusable():
        s.apply(event)
    assert s.admissible() == 0


def test_the_only_engine_that_joins_late_closes_what_its_weights_contain():
    s = scheduler(batch=1, staleness=0)
    accept(s, *admit_all(s))
    s.apply(s.bind())
    s.apply(ev.EngineLeft("e0", "lost"))
    s.apply(ev.Stepped(0, "d"))
    s.apply(ev.Published(1))
    assert s.admissible() == 0
    s.apply(ev.EngineJoined("e0", 1))
    assert s.admissible() == 1
    with pytest.raises(InternalError, match="engine e1 holds version 2, which was never published"):
        s.apply(ev.EngineJoined("e1", 2))


def test_policy_drop_takes_completion_order_and_drops_what_grew_too_old():
    """A6."""
    s = scheduler(batch=2, staleness=1, stale_policy="drop")
    admit_all(s)
    accept(s, 0, 1)
    s.apply(s.bind())
    train_and_install(s, 0)
    admit_all(s)
    accept(s, 2, 4)
    s.apply(s.bind())
    train_and_install(s, 1)
    assert [d.group for d in s.unusable()] == [3]


def test_surplus_of_over_sampling_is_dropped_once_its_rollout_is_bound():
    s = scheduler(batch=2, staleness=0, surplus=2)
    assert admit_all(s) == [0, 1, 2, 3]
    accept(s, 2, 0)
    s.apply(s.bind())
    assert sorted(d.group for d in s.unusable()) == [1, 3]
    assert {d.reason for d in s.unusable()} == {"surplus"}


def test_deterministic_mode_binds_the_smallest_ids_whatever_finishes_first():
    s = scheduler(batch=2, staleness=1, deterministic=True)
    admit_all(s)
    accept(s, 3, 1)
    assert s.bind() is None
    accept(s, 0)
    assert s.bind().groups == (0, 1)


def test_streamed_parts_are_the_next_groups_by_id_and_make_the_rollout_of_the_whole():
    s = scheduler(batch=4, staleness=0, parts=2)
    admit_all(s)
    accept(s, 3, 1)
    assert s.bind() is None  # 0 may still end, and 1 waits for it
    assert s.needed() == 0
    accept(s, 0)
    assert s.bind() == ev.Bound(0, (0, 1), last=False)
    s.apply(s.bind())
    assert (s.next_rollout, s.seats, s.admissible()) == (0, 2, 0)
    assert s.bind() is None
    s.apply(ev.Dropped(2, "filter"))
    assert admit_all(s) == [4]
    accept(s, 4)
    assert s.bind() == ev.Bound(0, (3, 4), last=True)
    s.apply(s.bind())
    assert (s.next_rollout, s.bound[0]) == (1, [0, 1, 3, 4])
    train_and_install(s, 0)
    assert len(s.open) == 0


def test_parts_in_arrival_order_are_what_ended_first():
    s = scheduler(batch=4, staleness=0, parts=2, arrival_order=True)
    admit_all(s)
    accept(s, 3, 1)
    assert s.bind() == ev.Bound(0, (3, 1), last=False)
    s.apply(s.bind())
    accept(s, 2, 0)
    assert s.bind() == ev.Bound(0, (2, 0), last=True)


def test_the_free_seats_of_a_half_bound_rollout_are_kept_for_groups_at_their_deadline():
    # staleness 1: groups 0-3 have the deadline 1, 4-7 (admitted at version 1) the deadline 2
    s = scheduler(batch=2, staleness=1, parts=2, arrival_order=True)
    assert admit_all(s) == [0, 1, 2, 3]
    accept(s, 0, 1)
    s.apply(s.bind())
    s.apply(s.bind())
    train_and_install(s, 0)
    assert admit_all(s) == [4, 5]
    accept(s, 4, 5)
    # rollout 1 is the last for 2 and 3, and they fill it
    assert s.bind() is None
    accept(s, 3)
    assert s.bind() == ev.Bound(1, (3,), last=False)
    s.apply(s.bind())
    assert s.bind() is None
    accept(s, 2)
    assert s.bind() == ev.Bound(1, (2,), last=True)


def test_a_rollout_takes_no_more_groups_than_it_has_seats():
    s = scheduler(batch=2, staleness=1, parts=2)
    accept(s, *admit_all(s))
    s.apply(s.bind())
    with pytest.raises(InternalError, match="rollout 0 has 1 seats left for 2 groups"):
        s.apply(ev.Bound(0, (1, 2), last=True))


def test_impossible_moves_are_internal_errors():
    s = scheduler()
    admit_all(s)
    with pytest.raises(InternalError, match="group 0 is admitted, expected accepted"):
        s.apply(ev.Bound(0, (0,), last=True))
    with pytest.raises(InternalError, match="never published"):
        s.apply(ev.Installed("e0", 1))
    with pytest.raises(InternalError, match="version 1 was published after 0"):
        s.apply(ev.Published(1))


def random_run(
    seed: int, *, staleness: int, batch: int, engines: int, rollouts: int = 6, drop_rate: float = 0.1, **options
):
    """One random interleaving of everything that may happen; returns (scheduler, journal, bound ages)."""
    rng, names = random.Random(seed), [f"e{i}" for i in range(engines)]
    s = Scheduler(GateSettings(batch, staleness, rollouts, **options))
    journal: list[ev.Event] = []

    def do(event):
        s.apply(event)
        journal.append(event)

    for name in names:
        do(ev.EngineJoined(name, 0))
    admitted_ever, trained = set(), []
    for _ in range(100000):
        if s.finished:
            break
        moves = []
        if s.admissible():
            moves.append("admit")
        if any(g.state.value == "admitted" for g in s.open.values()):
            moves += ["accept", "accept"]
        if s.bind() is not None:
            moves.append("bind")
        if s.next_rollout > s.stepped:
            moves.append("step")
        if s.published < s.stepped:
            moves.append("publish")
        if any(v < s.published for v in s.engines.values()):
            moves.append("install")
        assert moves, "deadlock: nothing can happen"
        move = rng.choice(moves)
        if move == "admit":
            event = s.admit(0, s.next_group)
            admitted_ever.add(event.group)
            do(event)
        elif move == "accept":
            group = rng.choice([g for g in s.open.values() if g.state.value == "admitted"])
            if rng.random() < drop_rate:
                do(ev.Dropped(group.group, "filter"))
            else:
                # tokens are sampled between admission and now, by engines that only get newer
                do(ev.Accepted(group.group, group.version, max(s.engines.values())))
        elif move == "bind":
            event = s.bind()
            do(event)
            trained += event.groups
        elif move == "step":
            do(ev.Stepped(s.stepped, "d"))
        elif move == "publish":
            do(ev.Published(s.stepped))
        else:
            name = rng.choice([n for n, v in s.engines.items() if v < s.published])
            do(ev.Installed(name, s.published))
    return s, journal, admitted_ever, trained


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize(
    ("batch", "engines", "options"),
    [
        (1, 1, {}),
        (2, 1, {}),
        (3, 2, {}),
        (4, 1, {"parts": 2}),
        (4, 2, {"parts": 2, "arrival_order": True}),
        (3, 1, {"parts": 3, "arrival_order": True}),
    ],
)
def test_no_interleaving_trains_a_token_too_old_or_loses_or_doubles_a_group(staleness, batch, engines, options):
    for seed in range(150):
        s, _, admitted, trained = random_run(seed, staleness=staleness, batch=batch, engines=engines, **options)
        assert s.finished
        assert s.stale_groups_trained == 0
        assert max(s.ages) <= staleness
        assert len(trained) == len(set(trained)) == 6 * batch
        # every admitted group is trained, dropped for a reason, or (at the end of the run) still open
        assert admitted == set(trained) | (admitted - set(trained))
        assert len(admitted) == len(trained) + s.drops.total() + s._unbound()


@pytest.mark.parametrize("staleness", [0, 1])
def test_parts_by_id_joined_are_the_rollouts_that_deterministic_mode_binds_as_a_whole(staleness):
    for seed in range(60):
        whole, parts = (
            random_run(seed, staleness=staleness, batch=4, engines=1, drop_rate=0.0, **options)[1]
            for options in ({"deterministic": True}, {"parts": 4})
        )
        joined: dict[int, list[int]] = {}
        for event in (e for e in parts if isinstance(e, ev.Bound)):
            joined.setdefault(event.rollout_id, []).extend(event.groups)
            assert event.last == (len(joined[event.rollout_id]) == 4)
        assert joined == {e.rollout_id: list(e.groups) for e in whole if isinstance(e, ev.Bound)}


def test_loosening_the_gate_by_one_group_is_found_by_the_same_exploration():
    class Loose(GateSettings):
        @property
        def capacity(self):
            return super().capacity + 1

    def thrown_away(settings: GateSettings) -> int:
        """Groups that grew too old although every rollout waits for those at their deadline."""
        found = 0
        for seed in range(200):
            rng = random.Random(seed)
            s = Scheduler(settings)
            s.apply(ev.EngineJoined("e0", 0))
            for _ in range(500):
                if s.finished:
                    break
                if drops := s.unusable() if s.next_rollout < 6 else []:
                    found += len(drops)
                    for event in drops:
                        s.apply(event)
                elif s.admissible():
                    s.apply(s.admit(0, s.next_group))
                elif (ready := [g for g in s.open.values() if g.state.value == "admitted"]) and rng.random() < 0.7:
                    g = rng.choice(ready)
                    s.apply(ev.Accepted(g.group, g.version, g.version))
                elif s.bind() is not None:
                    s.apply(s.bind())
                elif s.next_rollout > s.stepped:
                    train_and_install(s, s.stepped)
        return found

    assert thrown_away(GateSettings(2, 1, 6)) == 0
    assert thrown_away(Loose(2, 1, 6)) > 0


def test_replaying_the_journal_rebuilds_the_state():
    s, journal, _, _ = random_run(7, staleness=1, batch=3, engines=2)
    again = Scheduler(s.settings)
    for event in journal:
        again.apply(event)
    assert again == s


def test_a_resume_undoes_what_came_after_the_checkpoint():
    s = scheduler(batch=2, staleness=1)
    accept(s, *admit_all(s))
    s.apply(s.bind())
    train_and_install(s, 0)
    s.apply(s.bind())
    s.apply(ev.Resumed(rollout_id=0, next_group=9, readmit=(2,)))
    assert (s.stepped, s.next_rollout, s.published, s.next_group, s.open) == (1, 1, 1, 9, {})
    s.apply(ev.EngineJoined("e0", 1))
    s.apply(s.admit_again(2, 0, 2))
    with pytest.raises(InternalError, match="cannot be admitted again"):
        s.admit_again(2, 0, 2)
    assert admit_all(s) == [9, 10, 11]


def test_a_restored_group_is_finished_and_keeps_its_version():
    s = scheduler(batch=2, staleness=1)
    s.apply(ev.Resumed(rollout_id=2, next_group=9, readmit=(6, 7, 8)))
    s.apply(ev.Restored(6, 0, 1, 2, 2, 2, "f", 0, 1, "d"))
    s.apply(ev.Restored(7, 0, 2, 3, 3, 3, "f", 1, 1, "e"))
    assert s.bind() == ev.Bound(3, (6, 7), last=True)  # before any engine has joined
    with pytest.raises(InternalError, match="group 5 is not one that the checkpoint left open"):
        s.apply(ev.Restored(5, 0, 0, 3, 3, 3, "f", 2, 1, "g"))
    s.apply(ev.EngineJoined("e0", 3))
    assert s.admissible() == 2  # of (1 + 1) * 2 slots two are taken by restored groups
    s.apply(s.bind())
    assert s.ages == {1: 1, 0: 1}  # group 6 was sampled by version 2


# ---------------------------------------------------------------------- deterministic mode


def test_deterministic_a_rollout_waits_for_every_smaller_id():
    s = scheduler(batch=2, staleness=1, deterministic=True)
    admit_all(s)
    accept(s, 1, 2)
    assert s.bind() is None  # 0 may still be accepted, and then it belongs to rollout 0
    s.apply(ev.Dropped(0, "filter"))
    assert s.bind().groups == (1, 2)


def test_deterministic_the_serving_version_is_exhausted_once_its_last_rollout_is_bound():
    s = scheduler(batch=2, staleness=1, deterministic=True)
    admit_all(s)
    accept(s, 0, 1)
    s.apply(s.bind())
    assert not s.exhausted  # rollout 1 may be sampled at version 0, too
    accept(s, 2, 3)
    s.apply(s.bind())
    assert s.exhausted and s.admissible() == 0
    train_and_install(s, 0)
    assert not s.exhausted and s.admissible() == 2


def test_deterministic_surplus_is_dropped_by_id_when_its_version_is_exhausted():
    s = scheduler(batch=2, staleness=0, surplus=2, deterministic=True)
    assert admit_all(s) == [0, 1, 2, 3]
    accept(s, 0, 1)
    assert s.unusable() == []
    s.apply(s.bind())
    assert s.unusable() == [ev.Dropped(2, "surplus"), ev.Dropped(3, "surplus")]
