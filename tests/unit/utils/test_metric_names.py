# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Every metric that the code logs by a literal name is declared."""

import re
from pathlib import Path

from relax.algorithms.supervised.classification import MULTI_METRICS, SINGLE_METRICS
from relax.utils.metrics import TABLE, find_spec

ROOT = Path(__file__).parents[3] / "relax"
NAME = re.compile(r"""f?"((?:rollout|train|eval|perf)/[\w{}./@]+)\"""")


def test_every_literal_metric_name_in_the_package_is_declared():
    found = set()
    for folder in ("core", "components", "engine/sft"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(NAME.findall(path.read_text()))
    assert "rollout/reward/mean" in found
    # terms of losses and evaluations, declared one by one; a prefix
    several = {"train/{name}", "train/{known}", "eval/{found.dataset}/{name}", "eval/{result.name}"}
    for name in found - several:
        find_spec(re.sub(r"\{[^}]*\}", "x", name))


def test_every_term_of_the_policy_gradient_loss_is_declared():
    source = (ROOT / "algorithms" / "policy_gradient.py").read_text()
    terms = set(re.findall(r"""terms\["(\w+)"\]|"(\w+)": _(?:mean|weighted)\(""", source))
    names = {first or second for first, second in terms}
    assert {"policy_loss", "kl_ref", "tis"} <= names
    for name in names:
        find_spec(f"train/{name}")


def test_every_metric_of_a_classifiers_evaluation_is_declared():
    for name in {*SINGLE_METRICS, *MULTI_METRICS}:
        find_spec(f"eval/x/{name}")


def test_every_declared_metric_is_written_somewhere():
    """By its whole name, by what stands before a placeholder, or by its last part as a term, gauge or statistic."""
    sources = [p.read_text() for p in ROOT.rglob("*.py") if p.name != "metrics.py"]
    source = "\n".join(sources)
    for name in (spec.name for spec in TABLE if not spec.name.startswith("custom/")):
        fixed = name.split("{")[0]
        last = re.escape(fixed.rstrip("/").split("/")[:2][-1])
        assert fixed in source or re.search(rf"""["'/{{]{last}["'/(]""", source), name
