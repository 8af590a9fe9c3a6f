# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Requests to change the number of engines: what is taken, what is refused with which status, and how one goes on."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from relax.components.elastic import EngineRequests, Refused
from relax.components.messages import EngineOrder

URLS = {"engine-1": "http://h:1", "engine-2": "http://h:2", "engine-3": "http://h:3"}


def desk(*initial: str, **options) -> EngineRequests:
    ticks = iter(range(100, 200))
    return EngineRequests(initial or ("engine-1",), wall_time=lambda: float(next(ticks)), **options)


def order_of(requests: EngineRequests) -> EngineOrder | None:
    return asyncio.run(requests.next(0.01))


def test_the_target_is_absolute_and_what_is_reached_is_a_no_op():
    requests = desk()
    for wanted in (0, 1, 3):
        answer = requests.scale_out({"num_replicas": wanted}, tuple(URLS))
        assert (answer["request_id"], answer["status"]) == (None, "NOOP")
    assert order_of(requests) is None
    answer = requests.scale_out({"num_replicas": 5, "timeout_secs": 7.5}, tuple(URLS))
    assert (answer["status"], answer["message"]) == ("PENDING", "2 engines are to join")
    assert order_of(requests) == EngineOrder("scale_out", answer["request_id"], count=2, timeout_s=7.5)


def test_the_newest_leave_first_and_the_first_ones_stay():
    # engine-1 has died and come back, so it is the last in the fleet's order
    requests, urls = desk(), {name: URLS[name] for name in ("engine-2", "engine-3", "engine-1")}
    answer = requests.scale_in({"num_replicas": 1}, urls)
    assert order_of(requests) == EngineOrder("scale_in", answer["request_id"], ("engine-3", "engine-2"))
    for wanted, text in ((1, "the 2 engines that the run started with stay"), (0, "give num_replicas")):
        with pytest.raises(Refused, match=text) as caught:
            desk("engine-1", "engine-2").scale_in({"num_replicas": wanted}, urls)
        assert caught.value.status == 400
    assert desk().scale_in({"num_replicas": 3}, urls)["status"] == "NOOP"


def test_one_number_leads_up_or_down():
    requests = desk()
    answer = requests.scale_to(5, URLS)
    assert (answer["direction"], answer["status"], answer["message"]) == (
        "scale_out",
        "PENDING",
        "2 engines are to join",
    )
    assert order_of(requests) == EngineOrder("scale_out", answer["request_id"], count=2)
    requests.update(answer["request_id"], {"status": "ACTIVE"})
    assert (requests.scale_to(3, URLS)["status"], order_of(requests)) == ("NOOP", None)
    answer = requests.scale_to(1, URLS)
    assert (answer["direction"], answer["message"]) == ("scale_in", "engine-3, engine-2 are to leave")
    assert order_of(requests) == EngineOrder("scale_in", answer["request_id"], ("engine-3", "engine-2"))
    with pytest.raises(Refused, match="one at a time"):
        requests.scale_to(2, URLS)


def test_engines_without_a_place_are_refused_at_once_with_what_is_free():
    room = (1, "an engine takes 2 GPU, and 3 of the cluster are free")
    assert desk().scale_to(4, URLS, room)["status"] == "PENDING"
    assert desk().scale_to(1, URLS, (0, "nothing is free"))["status"] == "PENDING"  # fewer need no place
    requests = desk()
    with pytest.raises(Refused, match="3 engines serve and 13 more have no place: an engine takes 2 GPU") as caught:
        requests.scale_to(16, URLS, room)
    assert caught.value.status == 409
    assert "ask for at most 4" in str(caught.value)
    assert order_of(requests) is None
    with pytest.raises(Refused, match="--hybrid only"):
        desk(refused="engines come and go with --hybrid only").scale_to(16, URLS, room)


def test_who_leaves_may_be_named_by_url():
    requests = desk()
    answer = requests.scale_in({"engine_urls": ["http://h:2/"], "force": True, "timeout_secs": 5}, URLS)
    assert order_of(requests) == EngineOrder("scale_in", answer["request_id"], ("engine-2",), force=True, timeout_s=5)
    for url, status in (("http://h:9", 404), ("http://h:1", 400)):
        with pytest.raises(Refused) as caught:
            desk().scale_in({"engine_urls": [url]}, URLS)
        assert caught.value.status == status


def test_a_dry_run_names_who_would_leave_and_orders_nothing():
    requests = desk()
    assert requests.scale_in({"num_replicas": 2, "dry_run": True}, URLS)["selected_engines"] == ["engine-3"]
    assert order_of(requests) is None
    assert requests.all("scale_in", None, None) == []


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"num_replicas": True}, 400, "num_replicas must be an integer"),
        ({"num_replicas": -1}, 400, "num_replicas must be an integer >= 0"),
        ({"num_replicas": 9, "timeout_secs": 0}, 400, "timeout_secs must be null or > 0"),
        ({"model_name": "judge", "num_replicas": 9}, 404, "there is no model 'judge'"),
        ({"engine_urls": ["http://elsewhere"]}, 400, "engines that run elsewhere cannot join"),
    ],
)
def test_a_wrong_body_is_refused_with_its_status(body, status, text):
    with pytest.raises(Refused, match=text) as caught:
        desk().scale_out(body, tuple(URLS))
    assert caught.value.status == status
    assert pickle.loads(pickle.dumps(caught.value)).status == status  # it travels to the door


def test_one_operation_at_a_time_until_it_has_ended():
    requests = desk()
    first = requests.scale_out({"num_replicas": 4}, tuple(URLS))["request_id"]
    with pytest.raises(Refused, match=f"scale_out {first} is PENDING") as caught:
        requests.scale_in({"num_replicas": 2}, URLS)
    assert caught.value.status == 409
    requests.update(first, {"status": "CREATING"})
    requests.update(first, {"engine_ids": ["engine-4"], "engine_urls": ["http://h:4"], "weight_version": 3})
    requests.update(first, {"engine_ids": ["engine-5"], "status": "ACTIVE"})
    assert requests.one("scale_out", first) == {
        "request_id": first,
        "direction": "scale_out",
        "status": "ACTIVE",
        "model_name": "default",
        "num_replicas": 4,
        "created_at": 100.0,
        "updated_at": 103.0,
        "engine_ids": ["engine-4", "engine-5"],
        "engine_urls": ["http://h:4"],
        "failed_engines": [],
        "error_message": None,
        "weight_version": 3,
        "cleanup_required": False,
    }
    second = requests.scale_in({"num_replicas": 2}, URLS)["request_id"]
    assert [row["request_id"] for row in requests.all("scale_out", "default", "active")] == [first]
    assert requests.all("scale_in", None, "COMPLETED") == []
    assert [row["selected_engines"] for row in requests.all("scale_in", None, None)] == [["engine-3"]]
    for direction, name in (("scale_in", first), ("scale_out", second), ("scale_out", "x")):
        with pytest.raises(Refused, match="there is no scale_") as caught:
            requests.one(direction, name)
        assert caught.value.status == 404


def test_a_run_with_fixed_engines_refuses_every_change():
    requests = desk(refused="engines come and go with --fully-async or --hybrid only")
    for ask in (
        lambda: requests.scale_out({"num_replicas": 4}, tuple(URLS)),
        lambda: requests.scale_in({"num_replicas": 1}, URLS),
        requests.recover,
    ):
        with pytest.raises(Refused, match="--hybrid only"):
            ask()
