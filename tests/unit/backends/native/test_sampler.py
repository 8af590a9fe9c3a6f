# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Sampling by hand-worked numbers, and its independence of the batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from relax.backends.native.sampler import SamplingBatch, sample, truncate_row
from relax.utils.rng import uniforms


def settings(count, *, temperature=1.0, top_k=-1, top_p=1.0, seeds=None, places=None, banned=()):
    full = lambda value, dtype: np.full(count, value, dtype)  # noqa: E731
    return SamplingBatch(
        np.arange(count, dtype=np.uint64) if seeds is None else np.asarray(seeds, np.uint64),
        np.zeros(count, np.int64) if places is None else np.asarray(places, np.int64),
        full(temperature, np.float32),
        full(top_k, np.int64),
        full(top_p, np.float64),
        list(banned),
    )


def rows(logits, count):
    return torch.tensor([logits], dtype=torch.float32).repeat(count, 1)


def test_P1_log_prob_is_that_of_the_tempered_distribution():
    # logits [2, 1, 0] at T = 0.6: p0 = 1 / (1 + e^(-1/0.6) + e^(-2/0.6)) = 0.8166; at T = 1 it would be 0.6652
    ids, scores = sample(rows([2.0, 1.0, 0.0], 400), settings(400, temperature=0.6), None)
    expected = -math.log(1 + math.exp(-1 / 0.6) + math.exp(-2 / 0.6))
    assert math.exp(expected) == pytest.approx(0.8166, abs=5e-5)
    assert scores[ids == 0] == pytest.approx(expected, abs=1e-6)
    assert (ids == 0).mean() == pytest.approx(0.8166, abs=0.06)  # 400 draws: 3 sigma = 0.058


def test_P3_top_k_renormalises_over_what_is_left():
    # logits [2, 1, 0, -5], top-k 2: p0 = 1 / (1 + e^-1) = 0.7311
    ids, scores = sample(rows([2.0, 1.0, 0.0, -5.0], 300), settings(300, top_k=2), None)
    assert set(ids.tolist()) == {0, 1}
    assert scores[ids == 0] == pytest.approx(-math.log(1 + math.exp(-1)), abs=1e-6)
    assert scores[ids == 1] == pytest.approx(-math.log(1 + math.exp(1)), abs=1e-6)


def test_P3_top_p_keeps_the_smallest_set_that_reaches_the_mass():
    log_p = torch.log(torch.tensor([0.1, 0.5, 0.15, 0.25]))
    # sorted 0.5, 0.25, 0.15, 0.1; top_p 0.75 is reached by the first two exactly, 0.76 needs the third
    assert truncate_row(log_p, -1, 0.74).exp().tolist() == pytest.approx([0, 2 / 3, 0, 1 / 3], abs=1e-6)
    assert truncate_row(log_p, -1, 0.76).exp().tolist() == pytest.approx([0, 5 / 9, 1.5 / 9, 2.5 / 9], abs=1e-6)
    # top-k first: of {0.5, 0.25} the first holds 2/3, so 0.6 of what is left needs it alone
    assert truncate_row(log_p, 2, 0.6).exp().tolist() == pytest.approx([0, 1, 0, 0], abs=1e-6)
    # the likeliest token stays, however small top_p is
    assert truncate_row(log_p, -1, 1e-9).exp().tolist() == pytest.approx([0, 1, 0, 0], abs=1e-6)


def test_P4_greedy_takes_the_largest_and_scores_it_at_temperature_one():
    ids, scores = sample(rows([2.0, 1.0, 0.0], 3), settings(3, temperature=0.0, top_k=1), None)
    assert ids.tolist() == [0, 0, 0]
    assert scores == pytest.approx(-math.log(1 + math.exp(-1) + math.exp(-2)), abs=1e-6)


def test_the_token_is_the_inverse_of_the_running_sum_at_the_counted_random_number():
    probabilities = [0.1, 0.2, 0.3, 0.4]
    seeds, places = np.arange(50, dtype=np.uint64), np.arange(50) % 7
    ids, _ = sample(rows([math.log(p) for p in probabilities], 50), settings(50, seeds=seeds, places=places), None)
    u = uniforms(seeds, places.astype(np.uint64))
    expected = [next(i for i in range(4) if sum(probabilities[: i + 1]) > x) for x in u]
    assert ids.tolist() == expected


def test_suppressed_and_banned_ids_are_never_drawn_and_do_not_count_in_the_log_prob():
    logits = rows([5.0, 1.0, 0.0], 200)
    ids, scores = sample(logits.clone(), settings(200), torch.tensor([0]))
    assert set(ids.tolist()) == {1, 2}
    assert scores[ids == 1] == pytest.approx(-math.log(1 + math.exp(-1)), abs=1e-6)
    ids, _ = sample(logits.clone(), settings(200, banned=[(7, (0, 1))]), None)
    assert ids[7] == 2 and (np.delete(ids, 7) == 0).any()


def test_P12_a_row_does_not_depend_on_the_batch_around_it():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(33, 211, generator=generator) * 3
    kinds = [(1.0, -1, 1.0), (0.6, -1, 1.0), (0.0, -1, 1.0), (1.3, 5, 1.0), (0.8, -1, 0.7), (0.9, 9, 0.5)]
    chosen = [kinds[i % len(kinds)] for i in range(33)]
    batch = SamplingBatch(
        np.arange(33, dtype=np.uint64),
        np.arange(33),
        np.asarray([k[0] for k in chosen], np.float32),
        np.asarray([k[1] for k in chosen], np.int64),
        np.asarray([k[2] for k in chosen], np.float64),
        [],
    )
    ids, scores = sample(logits.clone(), batch, torch.tensor([3, 4]))
    for i in range(33):
        temperature, top_k, top_p = chosen[i]
        alone = settings(1, temperature=temperature, top_k=top_k, top_p=top_p, seeds=[i], places=[i])
        one_id, one_score = sample(logits[i : i + 1].clone(), alone, torch.tensor([3, 4]))
        assert (one_id[0], one_score[0]) == (ids[i], scores[i])
