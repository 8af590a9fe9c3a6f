# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Events and their words on disk."""

from __future__ import annotations

import dataclasses
import json

import pytest

from relax.schedule import events as ev

KINDS = sorted(ev.EVENTS)


def example(kind: str) -> ev.Event:
    """An event of the kind with values of the right types."""
    values = {"int": 3, "str": "x", "float": 1.5, "bool": True, "tuple[int, ...]": (1, 2), "tuple[float, ...]": (0.5,)}
    values |= {"Mapping[str, tuple[int, int]]": {"x": (4, 9)}}
    values |= {"tuple[str, ...]": ("3.0", "3.1"), "Mapping[str, str]": {"x": "0badcafe"}}
    values |= {"tuple[Mapping[str, Any], ...]": ({"divisor": 2.0, "sums": {"x": 0.1}},)}
    cls = ev.EVENTS[kind]
    return cls(**{field.name: values[field.type] for field in dataclasses.fields(cls)})


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_survives_json(kind: str):
    event = example(kind)
    text = json.dumps(event.to_json())
    assert json.loads(text)["kind"] == kind
    assert ev.from_json(json.loads(text)) == event


def test_every_class_is_known_by_its_kind():
    classes = {c for c in vars(ev).values() if isinstance(c, type) and issubclass(c, ev.Event) and c is not ev.Event}
    assert set(ev.EVENTS.values()) == classes


def test_observations_are_told_from_decisions():
    assert {kind for kind, event in ev.EVENTS.items() if not event.decision} == {
        "completed",
        "critic_trained",
        "rewarded",
        "timing",
        "trained",
        "weights",
    }


def test_a_sum_that_is_no_number_is_text_that_every_json_reader_takes():
    event = ev.Trained(3, (), {}, ({"divisor": 1.0, "sums": {"ratio": float("inf")}},))
    assert '"ratio": "inf"' in json.dumps(event.to_json(), allow_nan=False)


def test_an_unknown_kind_is_none():
    assert ev.from_json({"kind": "from_the_future"}) is None
