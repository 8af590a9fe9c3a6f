# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The list of promises is whole, and every test that it names exists. Files are parsed and not imported."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from benchmarks.seed_commands import LINES, read_promises

ROOT = Path(__file__).parents[2]


@cache
def names_in(path: str) -> set[str]:
    """Tests of a file, those of a class as `Class::test`."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    body = ast.parse((ROOT / path).read_text("utf-8")).body
    found = {node.name for node in body if isinstance(node, functions)}
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    return found | {f"{c.name}::{node.name}" for c in classes for node in c.body if isinstance(node, functions)}


def test_every_line_is_there_once_and_in_order() -> None:
    assert [promise.line for promise in read_promises()] == list(range(1, LINES + 1))


def test_a_promise_is_shown_or_waits_for_a_named_subject() -> None:
    for promise in read_promises():
        assert promise.promise, promise
        assert bool(promise.shown_by) != bool(promise.waits_for), promise


def test_every_named_test_exists() -> None:
    missing = []
    for promise in read_promises():
        for proof in promise.shown_by:
            path, _, name = proof.partition("::")
            if proof.startswith("python -m benchmarks."):
                found = (ROOT / f"{proof.split()[2].replace('.', '/')}.py").exists()
            else:
                found = (ROOT / path).exists() and name.split("[")[0] in names_in(path)
            missing += [] if found else [(promise.line, proof)]
    assert missing == []
