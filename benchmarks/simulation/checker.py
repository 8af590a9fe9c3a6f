# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What must hold after any schedule, found from the evidence alone: journal, trace files, trained rows, tables.

Nothing of the scheduler is used: ages, open groups and digests are counted again here, in the plainest way.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.simulation.plan import Plan
from benchmarks.simulation.world import World
from relax.schedule import events as ev

EVERY_STEP = (
    "rollout/reward/mean",
    "train/policy_loss",
    "train/grad_norm",
    "perf/step_s",
    "rollout/sampled_tokens",
)


def violations(world: World, *, finished: bool = True, before: Sequence[World] = ()) -> list[str]:
    """Every broken promise as a sentence; empty when all hold. A resumed run goes on where those `before` stopped."""
    blocks = trace_blocks(world)
    found = [*life_cycle(world.journal.events), *rollouts(world, finished), *order_of_events(world.journal.events)]
    found += [*gate(world.plan, world.journal.events), *ages(world, blocks), *digests(world, blocks, before)]
    found += [
        *trained_rows(world, blocks),
        *log_probs(world, blocks, before),
        *metrics(world, finished),
        *pinned(world),
    ]
    return found


# ---------------------------------------------------------------------- reading


def trace_blocks(world: World) -> dict[int, tuple[str, dict[str, np.ndarray]]]:
    """{group: (digest of the bytes, columns)}, read by the format's description alone."""
    out = {}
    for event in world.journal.events:
        if isinstance(event, ev.Completed | ev.Restored):
            data = (world.folder / "trace" / event.file).read_bytes()[event.offset : event.offset + event.length]
            out[event.group] = (hashlib.blake2b(data, digest_size=16).hexdigest(), safetensors(data))
    return out


def safetensors(data: bytes) -> dict[str, np.ndarray]:
    (size,) = struct.unpack_from("<Q", data)
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    dtypes = {"F64": "f8", "F32": "f4", "I64": "i8", "I32": "i4", "U8": "u1"}
    columns = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            columns[name] = np.frombuffer(body[start:end], dtypes[entry["dtype"]]).reshape(entry["shape"])
    return columns


def of_kind(events: list[ev.Event], kind: Any) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def bound_groups(events: list[ev.Event]) -> dict[int, list[int]]:
    """{rollout: its groups}, which may have been bound in parts."""
    out: dict[int, list[int]] = {}
    for event in of_kind(events, ev.Bound):
        out.setdefault(event.rollout_id, []).extend(event.groups)
    return out


# ---------------------------------------------------------------------- promises


def life_cycle(events: list[ev.Event]) -> list[str]:
    """Each admitted group ends once: trained, or dropped for a reason, or still open at the end."""
    found, state, reasons = [], {}, Counter()
    for event in events:
        if isinstance(event, ev.Admitted):
            if event.group in state:
                found.append(f"group {event.group} was admitted twice")
            state[event.group] = "admitted"
        elif isinstance(event, ev.Restored):
            if event.group in state:
                found.append(f"group {event.group} was restored while {state[event.group]}")
            state[event.group] = "accepted"
        elif isinstance(event, ev.Accepted):
            if state.get(event.group) != "admitted":
                found.append(f"group {event.group} was accepted while {state.get(event.group)}")
            state[event.group] = "accepted"
        elif isinstance(event, ev.Dropped):
            if state.get(event.group) not in ("admitted", "accepted"):
                found.append(f"group {event.group} was dropped while {state.get(event.group)}")
            state[event.group] = "dropped"
            reasons[event.reason] += 1
            if not event.reason:
                found.append(f"group {event.group} was dropped without a reason")
        elif isinstance(event, ev.Bound):
            for group in event.groups:
                if state.get(group) != "accepted":
                    found.append(f"group {group} was bound while {state.get(group)}")
                state[group] = "bound"
    return found


def rollouts(world: World, finished: bool) -> list[str]:
    """Each rollout has exactly its number of groups, in order, and prompts come in the order of the data set."""
    plan, events, found = world.plan, world.journal.events, []
    bound = bound_groups(events)
    ended = [event.rollout_id for event in of_kind(events, ev.Bound) if event.last]
    if finished and ended != list(range(plan.rollouts)):
        found.append(f"rollouts were bound in the order {ended}, of {plan.rollouts}")
    for number in ended:
        if len(set(bound[number])) != plan.batch:
            found.append(f"rollout {number} has {len(set(bound[number]))} groups, not {plan.batch}")
    trained = [event.rollout_id for event in of_kind(events, ev.Stepped)]
    start = first_rollout(events)
    if trained != list(range(start, start + len(trained))) or (finished and len(trained) != plan.rollouts):
        found.append(f"rollouts were trained in the order {trained}")
    return found


def first_rollout(events: list[ev.Event]) -> int:
    return max((event.rollout_id + 1 for event in of_kind(events, ev.Resumed)), default=0)


def order_of_events(events: list[ev.Event]) -> list[str]:
    """Traced before accepted; bound, taken, trained, published, installed in this order."""
    found, traced, bound, taken, stepped, published = [], set(), set(), set(), 0, -1
    for event in events:
        if isinstance(event, ev.Completed | ev.Restored):
            traced.add(event.group)
        elif isinstance(event, ev.Accepted) and event.group not in traced:
            found.append(f"group {event.group} was accepted before it was in the trace")
        elif isinstance(event, ev.Bound):
            bound.add(event.rollout_id)
        elif isinstance(event, ev.Taken):
            taken.add(event.rollout_id)
            if event.rollout_id not in bound:
                found.append(f"rollout {event.rollout_id} was taken before it was bound")
        elif isinstance(event, ev.Stepped):
            if event.rollout_id not in taken:
                found.append(f"rollout {event.rollout_id} was trained before it was taken")
            stepped = event.rollout_id + 1
        elif isinstance(event, ev.Published):
            if event.version > stepped:
                found.append(f"version {event.version} was published after {stepped} trained rollouts")
            published = event.version
        elif isinstance(event, ev.Installed | ev.EngineJoined) and event.version > published:
            found.append(f"{event.engine} got version {event.version} before it was published")
        elif isinstance(event, ev.Resumed):
            stepped = event.rollout_id + 1
            bound, taken = set(range(stepped)), set(range(stepped))
    return found


def gate(plan: Plan, events: list[ev.Event]) -> list[str]:
    """Open groups stay within (staleness + 1) rollouts plus the surplus; none is admitted too late to be trained."""
    found, engines, open_groups, next_rollout = [], {}, {}, 0
    limit = (plan.staleness + 1) * plan.batch + plan.surplus
    for event in events:
        if isinstance(event, ev.Admitted):
            open_groups[event.group] = None
            if len(open_groups) > limit:
                found.append(f"{len(open_groups)} groups are open at the admission of {event.group}, limit {limit}")
            if min(engines.values()) + plan.staleness < next_rollout:
                found.append(f"group {event.group} was admitted too late for every rollout to come")
        elif isinstance(event, ev.Restored):
            open_groups[event.group] = None
            if len(open_groups) > limit:
                found.append(f"{len(open_groups)} groups are open once {event.group} is restored, limit {limit}")
        elif isinstance(event, ev.Dropped):
            del open_groups[event.group]
        elif isinstance(event, ev.Bound):
            next_rollout = event.rollout_id + event.last
            open_groups.update({group: event.rollout_id for group in event.groups})
        elif isinstance(event, ev.EngineJoined | ev.Installed):
            engines[event.engine] = event.version
        elif isinstance(event, ev.EngineLeft):
            engines.pop(event.engine, None)
        elif isinstance(event, ev.Resumed):
            open_groups, next_rollout = {}, event.rollout_id + 1
            engines = {}
        if engines:
            oldest = min(engines.values())
            open_groups = {g: r for g, r in open_groups.items() if r is None or r >= oldest}
    return found


def ages(world: World, blocks: dict[int, tuple[str, dict[str, np.ndarray]]]) -> list[str]:
    """No trained token is older than allowed, and the journal's oldest and newest are those of the tokens."""
    found = []
    for event in of_kind(world.journal.events, ev.Bound):
        for group in event.groups:
            versions = blocks[group][1]["weight_version"]
            sampled = versions[versions >= 0]
            age = event.rollout_id - int(sampled.min(initial=event.rollout_id))
            if age > world.plan.staleness:
                found.append(f"a token of group {group} is {age} rollouts old, too old for rollout {event.rollout_id}")
    for event in of_kind(world.journal.events, ev.Accepted | ev.Restored):
        versions = blocks[event.group][1]["weight_version"]
        if (event.oldest, event.newest) != (int(versions[versions >= 0].min()), int(versions.max())):
            found.append(f"group {event.group}: versions {event.oldest} to {event.newest} are not those of its tokens")
    published = 0
    admitted: dict[int, int] = {}
    for event in world.journal.events:
        if isinstance(event, ev.Published):
            published = event.version
        elif isinstance(event, ev.Admitted):
            admitted[event.group] = event.version
        elif isinstance(event, ev.Accepted):
            if event.newest > published:
                found.append(f"group {event.group} has tokens of version {event.newest} before it was published")
            if event.oldest < admitted[event.group]:
                found.append(f"group {event.group} has tokens of an engine that missed version {event.oldest + 1}")
        elif isinstance(event, ev.Dropped) and event.reason == "stale" and world.plan.stale_policy == "wait":
            found.append(f"group {event.group} was thrown away as stale, and policy wait throws nothing away")
    return found


def digests(
    world: World, blocks: dict[int, tuple[str, dict[str, np.ndarray]]], before: Sequence[World] = ()
) -> list[str]:
    """The journal's digests are those of the bytes in the trace, and the chain of trained groups follows from them."""
    found = [
        f"group {event.group}: the trace has other bytes than the journal says"
        for event in of_kind(world.journal.events, ev.Completed | ev.Restored)
        if blocks[event.group][0] != event.digest
    ]
    bound = bound_groups(world.journal.events)
    earlier = {e.rollout_id: e.digest for old in before for e in of_kind(old.journal.events, ev.Stepped)}
    chain = earlier.get(first_rollout(world.journal.events) - 1, "")
    for event in of_kind(world.journal.events, ev.Stepped):
        text = chain + "".join(f"|{group}:{blocks[group][0]}" for group in sorted(bound[event.rollout_id]))
        chain = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        if chain != event.digest:
            found.append(f"rollout {event.rollout_id}: the chained digest does not follow from the trace")
    return found


def trained_rows(world: World, blocks: dict[int, tuple[str, dict[str, np.ndarray]]]) -> list[str]:
    """The backend got every sample of every bound group once, with the tokens of the trace."""
    given = Counter((uid[0], tokens) for step in world.backend.trained for uid, tokens, _ in step)
    expected: Counter[tuple[int, tuple[int, ...]]] = Counter()
    begun: Counter[tuple[int, tuple[int, ...]]] = Counter()  # the run ended while this was trained
    events = world.journal.events
    stepped = {event.rollout_id for event in of_kind(events, ev.Stepped)}
    taken = {event.rollout_id for event in of_kind(events, ev.Taken)}
    for event in of_kind(events, ev.Bound):
        rows = expected if event.rollout_id in stepped else begun
        for group in event.groups if event.rollout_id in taken else ():
            columns = blocks[group][1]
            offsets = columns["token_offsets"]
            for start, end in itertools.pairwise(offsets):
                rows[(group, tuple(columns["tokens"][start:end].tolist()))] += 1
    if not expected - given and not given - expected - begun:
        return []
    return [f"the backend was given {(given - expected - begun) or 'less'}; missing are {expected - given}"]


def log_probs(
    world: World, blocks: dict[int, tuple[str, dict[str, np.ndarray]]], before: Sequence[World] = ()
) -> list[str]:
    """Each token's log-prob is that of the table of the version that it claims."""
    found = []
    tables = {version: t for one in (*before, world) for version, t in one.publisher.tables.items()}
    for group, (_, columns) in blocks.items():
        ends = columns["response_len"].cumsum()
        for place, end in enumerate(ends):
            start = end - columns["response_len"][place]
            tokens = columns["tokens"][columns["token_offsets"][place] : columns["token_offsets"][place + 1]]
            for offset in range(start, end):
                last, token = tokens[len(tokens) - (end - offset) - 1], tokens[len(tokens) - (end - offset)]
                version = int(columns["weight_version"][offset])
                if version not in tables:
                    found.append(f"group {group}: token {offset} names version {version}, which was never published")
                    continue
                row = tables[version][last]
                right = row[token] - np.log(np.exp(row).sum())
                if abs(right - columns["rollout_logprobs"][offset]) > 1e-5:
                    found.append(f"group {group}: token {offset} was not sampled by the version that it names")
    return found


def metrics(world: World, finished: bool) -> list[str]:
    """Every step wrote its numbers, once."""
    rows = [(step, values) for step, values in world.sink.rows if "perf/step_s" in values]
    found = []
    if finished and [step for step, _ in rows] != list(range(world.plan.rollouts)):
        found.append(f"steps in the metrics are {[step for step, _ in rows]}")
    for step, values in rows:
        missing = [name for name in EVERY_STEP if name not in values]
        if missing:
            found.append(f"step {step} has no {missing}")
    trained = sum(values["rollout/trained_groups"] for _, values in rows)
    if trained != world.plan.batch * len(rows):
        found.append(f"the metrics count {trained} trained groups")
    if world.cut_off:  # what was counted since the last step is lost with the process
        return found
    drops = Counter(event.reason for event in of_kind(world.journal.events, ev.Dropped))
    counted: Counter[str] = Counter()
    for _, values in rows:
        for name, value in values.items():
            if name.startswith("rollout/dropped_groups/"):
                counted[name.rpartition("/")[2]] += int(value)
    late = [event for event in after_last_step(world.journal.events) if isinstance(event, ev.Dropped)]
    if counted - drops or drops - counted - Counter(event.reason for event in late):
        found.append(f"the metrics count drops {counted}, the journal has {drops}, {len(late)} after the last step")
    return found


def after_last_step(events: list[ev.Event]) -> list[ev.Event]:
    """What was decided once the last rollout's numbers may have been written."""
    last = max((place for place, event in enumerate(events) if isinstance(event, ev.Stepped)), default=0)
    return events[last:]


def pinned(world: World) -> list[str]:
    """All tokens of an evaluation come from one version."""
    found = []
    for rollout_id, samples in world.evaluations:
        versions = {version for sample in samples for version in sample.weight_versions}
        if len(versions) > 1:
            found.append(f"evaluation {rollout_id} mixes versions {sorted(versions)}")
    return found


def check(world: World) -> None:
    found = violations(world)
    assert not found, f"{world.plan}\n" + "\n".join(found)
