# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Continuous batching against an oracle that generates one response at a time, without any batching."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relax.backends.native.batch import Prompt, Response
from relax.backends.native.input_scores import InputAsked
from relax.backends.native.protocol import RequestError, SamplingParams, version_spans
from relax.backends.native.scheduler import Scheduler, StopStrings
from relax.utils.rng import uniforms

from .fake_runner import FakeRunner, logits_of, sequence_hash

STOP = 7


def letters(ids, skip_special_tokens=True):
    return "".join(chr(ord("A") + token) for token in ids)


def make_scheduler(rows=400, max_running=8, context_length=200, headroom=32, runner=None):
    runner = runner or FakeRunner(rows)
    return Scheduler(runner, max_running, context_length, StopStrings(letters), headroom=headroom, version="0")


def make_response(rid, prompt, seed, max_new, stop_ids=(), **params):
    params = SamplingParams(max_new_tokens=max_new, sampling_seed=seed, **params)
    return Response(rid, rid, Prompt.of_text(prompt), params, seed, tuple(stop_ids))


def oracle(prompt, seed, max_new, stop_ids=(), weights=0):
    """Tokens and log-probs by the definition: softmax, running sum, first id above u."""
    cells, ids, scores = [(t, weights) for t in prompt], [], []
    while len(ids) < max_new:
        log_p = torch.log_softmax(logits_of(sequence_hash(cells), weights), -1)
        total = np.cumsum(log_p.exp().double().numpy())
        u = uniforms(np.asarray([seed], np.uint64), np.asarray([len(ids)]))[0]
        token = int(np.searchsorted(total, u * total[-1], side="right"))
        ids.append(token)
        scores.append(float(log_p[token]))
        if token in stop_ids:
            break
        cells.append((token, weights))
    return ids, scores


def run_until_idle(scheduler, limit=2000):
    done = []
    for _ in range(limit):
        if not scheduler.has_work:
            break
        scheduler.step()
        done += scheduler.take_finished()
    assert not scheduler.has_work, "responses were left behind"
    return {response.rid: response for response in done + scheduler.take_finished()}


def assert_as_alone(response, prompt, stop_ids=(), weights=0):
    ids, scores = oracle(prompt, response.seed, response.params.max_new_tokens, stop_ids, weights)
    assert response.token_ids.tolist() == ids
    assert response.log_probs.tolist() == scores


def assert_all_rows_free(scheduler):
    assert scheduler.used_rows == 0
    scheduler.prefixes.flush()
    assert scheduler.pool.num_free == scheduler.pool.num_rows


def test_a_response_is_the_same_alone_in_a_batch_and_joined_late():
    scheduler = make_scheduler()
    prompts = {f"r{i}": [10 + i % 3, 4, 5 + i % 2] for i in range(12)}
    for i, (rid, prompt) in enumerate(list(prompts.items())[:7]):
        scheduler.submit(make_response(rid, prompt, seed=i, max_new=5 + 3 * i, stop_ids=(STOP,)))
    done = {}
    for _ in range(4):
        scheduler.step()
        done |= {r.rid: r for r in scheduler.take_finished()}
    for i, (rid, prompt) in enumerate(list(prompts.items())[7:], start=7):
        scheduler.submit(make_response(rid, prompt, seed=i, max_new=20, stop_ids=(STOP,)))
    done |= run_until_idle(scheduler)
    assert set(done) == set(prompts)
    for rid, response in done.items():
        assert_as_alone(response, prompts[rid], (STOP,))
    assert_all_rows_free(scheduler)


def test_members_of_a_group_share_one_prefill_also_when_they_come_later():
    scheduler = make_scheduler()
    prompt = list(range(20))
    for i in range(4):
        scheduler.submit(make_response(f"r{i}", prompt, seed=i, max_new=6))
    scheduler.step()
    assert scheduler.runner.prefilled_tokens == 20
    assert scheduler.used_rows == 20 + 4  # one copy of the prompt and one token fed for each member
    scheduler.submit(make_response("late", prompt, seed=9, max_new=6))
    done = run_until_idle(scheduler)
    assert scheduler.runner.prefilled_tokens == 20
    assert [done[f"r{i}"].cached_tokens for i in range(4)] == [0, 20, 20, 20]
    assert done["late"].cached_tokens == 20
    scheduler.submit(make_response("after", prompt, seed=10, max_new=6))
    assert run_until_idle(scheduler)["after"].cached_tokens == 20  # idle rows are kept until they are needed
    assert_all_rows_free(scheduler)


def test_A14_each_token_carries_the_version_whose_forward_made_its_logits():
    scheduler = make_scheduler()
    scheduler.submit(make_response("r", [1, 2, 3], seed=5, max_new=9))
    for _ in range(3):
        scheduler.step()
    before = int(scheduler.batch.place[0])
    scheduler.runner.weights = 1
    scheduler.switch_version("1")
    response = run_until_idle(scheduler)["r"]
    spans = version_spans(response.version_starts, 9)
    assert spans == [{"version": "0", "start": 0, "end": before}, {"version": "1", "start": before, "end": 9}]
    # the old KV rows stay, the logits come from the new weights: recompute each token from exactly that
    cells = [(t, 0) for t in (1, 2, 3)]
    for place, token in enumerate(response.token_ids.tolist()):
        weights = 0 if place < before else 1
        if place == before:
            # the last old token is fed by the new weights
            cells[-1] = (cells[-1][0], 1)
        log_p = torch.log_softmax(logits_of(sequence_hash(cells), weights), -1)
        assert response.log_probs[place] == log_p[token].item()
        cells.append((token, weights))


def test_A24_retract_keeps_tokens_and_recomputes_the_rest_under_the_new_weights():
    for pause_after in range(1, 9):
        scheduler = make_scheduler()
        prompt, other = [3, 4, 5], [8, 8]
        scheduler.submit(make_response("r", prompt, seed=2, max_new=10))
        scheduler.submit(make_response("s", other, seed=3, max_new=10))
        for _ in range(pause_after):
            scheduler.step()
        scheduler.pause("retract")
        assert scheduler.batch.size == 0 and not scheduler.has_work
        assert scheduler.used_rows == 0
        kept = scheduler.waiting[0].token_ids.tolist()
        scheduler.runner.weights = 1
        scheduler.switch_version("1")
        scheduler.resume()
        response = run_until_idle(scheduler)["r"]
        assert kept == oracle(prompt, 2, 10)[0][: len(kept)]
        assert response.token_ids.tolist()[: len(kept)] == kept
        assert response.retractions == 1
        # after the switch every logit is a fresh prefill at the new version
        for place in range(len(kept), 10):
            cells = [(t, 1) for t in prompt + response.token_ids.tolist()[:place]]
            log_p = torch.log_softmax(logits_of(sequence_hash(cells), 1), -1)
            assert response.log_probs[place] == log_p[response.token_ids[place]].item()
        assert version_spans(response.version_starts, 10) == [
            {"version": "0", "start": 0, "end": len(kept)},
            {"version": "1", "start": len(kept), "end": 10},
        ]
        assert_all_rows_free(scheduler)


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_pause_without_an_update_changes_nothing(mode):
    scheduler = make_scheduler()
    scheduler.submit(make_response("r", [3, 4, 5], seed=2, max_new=10))
    scheduler.step()
    scheduler.pause(mode)
    assert not scheduler.has_work
    scheduler.resume()
    response = run_until_idle(scheduler)["r"]
    assert_as_alone(response, [3, 4, 5])
    assert version_spans(response.version_starts, 10) == [{"version": "0", "start": 0, "end": 10}]


def test_pause_abort_returns_partial_output():
    scheduler = make_scheduler(max_running=1)
    scheduler.submit(make_response("r", [3, 4, 5], seed=2, max_new=50))
    scheduler.submit(make_response("queued", [3, 4], seed=2, max_new=50))
    scheduler.step()
    scheduler.step()
    scheduler.pause("abort")
    done = {r.rid: r for r in scheduler.take_finished()}
    assert done["r"].finish["type"] == "abort"
    assert done["r"].token_ids.tolist() == oracle([3, 4, 5], 2, 3)[0]
    assert done["queued"].finish["type"] == "abort" and len(done["queued"].token_ids) == 0
    assert_all_rows_free(scheduler)


def test_abort_ends_one_request_and_no_other():
    scheduler = make_scheduler()
    for i in range(3):
        scheduler.submit(make_response(f"g1.{i}", [3, 4, i], seed=i, max_new=12))
    scheduler.step()
    assert scheduler.abort("g1.1") == 1
    assert scheduler.abort("g1") == 0  # a prefix of an id is not that id
    done = run_until_idle(scheduler)
    assert done["g1.1"].finish["type"] == "abort"
    for i in (0, 2):
        assert_as_alone(done[f"g1.{i}"], [3, 4, i])


def test_when_rows_run_out_the_youngest_wait_and_nobody_is_changed_or_starved():
    # 6 responses of 4 + 30 tokens want 204 rows; 60 are there
    scheduler = make_scheduler(rows=60, max_running=6)
    for i in range(6):
        scheduler.submit(make_response(f"r{i}", [i, 1, 2, 3], seed=i, max_new=30))
    order = []
    for _ in range(1000):
        if not scheduler.has_work:
            break
        scheduler.step()
        order += [r for r in scheduler.take_finished()]
    assert [r.rid for r in order] == [f"r{i}" for i in range(6)]  # equal lengths: arrival order
    for i, response in enumerate(order):
        assert_as_alone(response, [i, 1, 2, 3])
    assert_all_rows_free(scheduler)


def test_preempted_responses_recompute_the_same_bits():
    # all six are admitted at once, and want 3 + 2 * (20 + 27 + 34) rows
    scheduler = make_scheduler(rows=100, max_running=6, headroom=1)
    for i in range(6):
        scheduler.submit(make_response(f"r{i}", [9, 9, 9], seed=i, max_new=20 + 7 * (i % 3)))
    done = run_until_idle(scheduler)
    assert scheduler.counters.retractions > 0
    for i in range(6):
        assert_as_alone(done[f"r{i}"], [9, 9, 9])
    assert_all_rows_free(scheduler)


def test_a_request_that_can_never_fit_is_refused_by_name():
    scheduler = make_scheduler(rows=50)
    with pytest.raises(RequestError, match="max_new_tokens"):
        scheduler.submit(make_response("r", list(range(20)), seed=1, max_new=31))
    scheduler.submit(make_response("fits", list(range(20)), seed=1, max_new=30))
    assert len(run_until_idle(scheduler)["fits"].token_ids) == 30


def test_P10_every_way_to_stop_is_told_apart():
    prompt = [1, 2, 3]
    free = oracle(prompt, 4, 30)[0]
    third = next(i for i in range(2, 30) if free[i] not in free[:i])
    text = letters(free)[third - 1 : third + 1]
    cut = letters(free).find(text) + 2
    scheduler = make_scheduler()
    scheduler.submit(make_response("id", prompt, 4, 30, stop_ids=(free[third],)))
    scheduler.submit(make_response("string", prompt, 4, 30, stop=(text,)))
    scheduler.submit(make_response("length", prompt, 4, 5))
    done = run_until_idle(scheduler)
    assert done["id"].finish == {"type": "stop", "matched": free[third]}
    assert done["id"].token_ids.tolist() == free[: third + 1]
    assert done["string"].finish == {"type": "stop", "matched": text}
    assert done["string"].token_ids.tolist() == free[:cut]
    assert done["length"].finish == {"type": "length", "length": 5}


def test_min_new_tokens_bans_stop_ids_until_then():
    scheduler = make_scheduler()
    stops = tuple(range(0, 50, 2))
    scheduler.submit(make_response("r", [1, 2], 3, 40, stop_ids=stops, min_new_tokens=6))
    ids = run_until_idle(scheduler)["r"].token_ids.tolist()
    assert len(ids) >= 7
    assert not set(ids[:6]) & set(stops)


def test_zero_new_tokens_scores_the_prompt_only():
    scheduler = make_scheduler()
    prompt = [5, 6, 7, 8]
    response = make_response("r", prompt, 1, 0)
    response.asked = InputAsked(0)
    scheduler.submit(response)
    done = run_until_idle(scheduler)["r"]
    assert done.token_ids.tolist() == [] and done.finish == {"type": "length", "length": 0}
    expected = [
        torch.log_softmax(logits_of(sequence_hash([(t, 0) for t in prompt[:i]]), 0), -1)[prompt[i]].item()
        for i in range(1, 4)
    ]
    assert done.input_scores.own.tolist() == expected
    assert scheduler.runner.prefilled_tokens == 4, "the prompt is computed once"
    assert_all_rows_free(scheduler)


def test_flush_is_refused_while_requests_run():
    scheduler = make_scheduler()
    scheduler.submit(make_response("r", [3, 4], seed=2, max_new=5))
    scheduler.step()
    with pytest.raises(RequestError, match="running"):
        scheduler.flush()
    run_until_idle(scheduler)
    scheduler.flush()
    assert scheduler.pool.num_free == scheduler.pool.num_rows


def test_random_histories_leave_every_response_as_if_alone():
    for history in range(20):
        chance = np.random.default_rng(history)
        scheduler = make_scheduler(rows=int(chance.integers(70, 200)), max_running=int(chance.integers(1, 7)))
        prompts, done = {}, {}
        for i in range(15):
            prompt = chance.integers(8, 12, int(chance.integers(1, 5))).tolist()
            prompts[f"r{i}"] = prompt
            scheduler.submit(make_response(f"r{i}", prompt, i, int(chance.integers(1, 30)), stop_ids=(STOP,)))
            for _ in range(int(chance.integers(0, 4))):
                scheduler.step()
            if chance.random() < 0.3:
                scheduler.pause(str(chance.choice(["retract", "in_place"])))
                if chance.random() < 0.5 and not scheduler.batch.size:
                    scheduler.flush()
                scheduler.resume()
            done |= {r.rid: r for r in scheduler.take_finished()}
        done |= run_until_idle(scheduler)
        assert set(done) == set(prompts)
        for rid, response in done.items():
            assert_as_alone(response, prompts[rid], (STOP,))
        assert_all_rows_free(scheduler)
