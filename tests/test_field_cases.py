# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The page of field cases names tests that exist, and leaves out none of the cases that must be shown."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs/field-cases.md").read_text()
ROWS = re.findall(r"^\| ([A-Z]\d+(?:, [A-Z]\d+)*) \|.*\| ([^|]*) \|$", PAGE, re.MULTILINE)
REQUIRED = {
    *"L1 L4 L6 L8 L9 L10 L11 L12 L13 L17 L18 L19 L20 L21 L25 L26 L27".split(),  # noqa: SIM905
    *"G1 G3 G4 G5 G6 G7 G9 G10 G11 G12 G13 P1 P2 P3 P4 P6 P7 P8 P10 P11 P12".split(),  # noqa: SIM905
    *"T1 T5 T9 T13 T18 V1 V2 V3 V4 V5 V6 V9 M1 M3 M4 M5".split(),  # noqa: SIM905
    *"D1 D2 D3 D5 D7 D9 D10 D11 D12 U1 U2 U7 U8 U10 U11".split(),  # noqa: SIM905
    *(f"A{number}" for number in range(2, 31)),
    *(f"R{number}" for number in range(1, 13)),
}


def names_of(path: Path) -> set[str]:
    """Tests of a file, those of a class as `Class::test`."""
    tree = ast.parse(path.read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = {node.name for node in tree.body if isinstance(node, functions)}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return found | {f"{c.name}::{node.name}" for c in classes for node in c.body if isinstance(node, functions)}


def test_every_case_is_there_once():
    cases = [case for row, _ in ROWS for case in row.split(", ")]
    assert sorted(set(cases)) == sorted(cases)
    assert sorted(REQUIRED - set(cases)) == []


def test_every_named_test_exists():
    missing = []
    for case, shown_by in ROWS:
        tests = re.findall(r"`([^`]+\.py)::([^`]+)`", shown_by)
        assert tests, f"{case} is shown by nothing"
        for file, name in tests:
            path = TESTS.parent / file if file.startswith("tests/") else TESTS / "unit" / file
            if not path.exists() or name.split("[")[0] not in names_of(path):
                missing.append((case, file, name))
    assert not missing
