# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The planted faults: there are many, each changes the source, and those left out still exist."""

from __future__ import annotations

import ast
from collections import Counter

from benchmarks.mutants import FILES, FIRST, TESTS, chosen
from benchmarks.mutation.equivalent import EQUIVALENT, why_equivalent
from benchmarks.mutation.operators import mutants_of
from benchmarks.mutation.plain import calls, parameter_sets
from tests.unit.algorithms import test_spec


def test_every_file_has_faults_that_parse_and_differ():
    found = chosen(None)
    assert len(found) >= 150
    assert set(Counter(mutant.path for mutant, _ in found)) == {f"relax/algorithms/{name}.py" for name in FILES}
    for mutant, source in found:
        changed = mutant.apply(source)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), mutant.name


def test_what_is_left_out_as_equivalent_is_still_there():
    lines = sum(len(reasons) for by_line in EQUIVALENT.values() for reasons in by_line.values())
    assert sum(why_equivalent(mutant, source) is not None for mutant, source in chosen(None)) == lines


def test_every_kind_of_fault_is_planted():
    source = (
        "def f(a, b, mask):\n"
        "    raise ValueError(f'{a - b}')\n"
        "    x = a.detach() * -b if a > 0 and not mask else a / (b - 1)\n"
        "    return where(mask, x.clamp(min=0.5), minimum(a, b), strict=True)\n"
    )
    after = {mutant.after for mutant in mutants_of("f.py", source)}
    assert {
        "a", "(b)", "a < 0", "a >= 0", "(a > 0 or not mask)", "(mask)", "((a) * (b - 1))", "((b) + (1))", "2",
        "x.clamp(max=0.5)", "maximum(a, b)", "1.5",
    } <= after  # fmt: skip
    assert not any("ValueError" in text or "strict=False" in text for text in after)


def test_the_plain_runner_knows_parameters_and_the_tests_that_it_runs_exist():
    assert {**FIRST, "all": TESTS}.keys() - {"all"} <= set(FILES)

    def with_marks(a, b):
        raise AssertionError

    class Mark:
        def __init__(self, *args):
            self.name, self.args = "parametrize", args

    with_marks.pytestmark = [Mark("a", [1, 2]), Mark(("b",), [(3,)])]
    assert list(parameter_sets(with_marks)) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
    assert len(list(calls(test_spec))) > 10
