# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The Prometheus page, read by Prometheus's own parser."""

from __future__ import annotations

import math

from prometheus_client.parser import text_string_to_metric_families

from relax.utils.metrics import TABLE
from relax.utils.prometheus import family_of, page


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_names_become_families_and_placeholders_labels():
    values = {
        "rollout/reward/mean": 0.25,
        "rollout/gsm8k/reward/mean": 0.5,
        "rollout/dropped_groups": 3.0,
        "rollout/dropped_groups/stale": 2.0,
        "rollout/dropped_groups/filter": 1.0,
        "perf/wait_s/actor": 1.5,
        "eval/gsm8k/pass@4": 1.0,
        "train/loss": -1e-9,
    }
    assert parsed(page(values, {"relax_step": ("newest", 7)})) == {
        ("relax_rollout_reward_mean", ()): 0.25,
        ("relax_rollout_reward_mean_by_dataset", (("dataset", "gsm8k"),)): 0.5,
        ("relax_rollout_dropped_groups", ()): 3.0,
        ("relax_rollout_dropped_groups_by_reason", (("reason", "stale"),)): 2.0,
        ("relax_rollout_dropped_groups_by_reason", (("reason", "filter"),)): 1.0,
        ("relax_perf_wait_s", (("role", "actor"),)): 1.5,
        ("relax_eval_pass_at", (("dataset", "gsm8k"), ("k", "4"))): 1.0,
        ("relax_train_loss", ()): -1e-9,
        ("relax_step", ()): 7.0,
    }


def test_numbers_and_labels_that_need_care():
    odd = 'a"b\\c\nd'
    found = parsed(page({"train/loss": float("nan"), "train/grad_norm": float("inf"), f"custom/{odd}": 1.0}, {}))
    assert math.isnan(found["relax_train_loss", ()])
    assert found["relax_train_grad_norm", ()] == math.inf
    assert found["relax_custom", (("name", odd),)] == 1.0


def test_every_declared_metric_has_a_family_of_its_own():
    assert len({family_of(spec) for spec in TABLE}) == len(TABLE)


def test_the_page_explains_each_family_once_with_its_unit():
    families = list(
        text_string_to_metric_families(page({"perf/step_s": 2.0, "perf/wait_s/a": 1.0, "perf/wait_s/b": 1.0}, {}))
    )
    assert [(f.name, f.type, len(f.samples)) for f in families] == [
        ("relax_perf_step_s", "gauge", 1),
        ("relax_perf_wait_s", "gauge", 2),
    ]
    assert families[0].documentation == "wall time from one optimizer step's end to the next one's (s)"
