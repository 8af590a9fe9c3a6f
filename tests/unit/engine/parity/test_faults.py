# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Faults between the native engine and the FSDP backend, on a tiny Qwen3-Omni. All of them: `benchmarks.faults`."""

from __future__ import annotations

import pytest

from benchmarks.faults import CLEAN, FAULTS, check, make_folders

QUICK = {
    "top-p, raw log-probs",
    "bf16 engine",
    "a version skipped",
    "placeholders not suppressed",
    "shifted log-probs",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return make_folders(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, id=f.name, marks=() if f.name in QUICK else pytest.mark.slow) for f in FAULTS],
)
def test_P7_a_planted_fault_is_named(fault, folders):
    found = check(fault, folders)
    assert found.verdict is not None
    assert found.verdict.cause == fault.cause


@pytest.mark.parametrize("fault", [f for f in CLEAN if f.name in ("text", "images")], ids=lambda f: f.name)
def test_P7_a_clean_run_names_nothing(fault, folders):
    found = check(fault, folders)
    assert found.verdict is None
    assert found.difference.max == 0.0  # the exact forward: equal bits
    assert found.difference.count > 0
