# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The engine of this folder as the teacher at --opd-teacher-url, against the same weights in the training backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax.backends.engine_process import EngineProcess
from tests.builders import build_tiny_model_folder, write_jsonl
from tests.service.training_run import Finished, Inputs, inline

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
IDS = ("--opd-token-selection", "teacher_topk", "--opd-log-prob-top-k", 8, "--opd-loss-coef", 1.0)


@pytest.fixture
def run(tmp_path: Path):
    """One rollout; its seed draws no last id of the vocabulary, which SGLang reports as 0."""
    prompts = write_jsonl(tmp_path / "prompts.jsonl", [{"input": f"What is {a} plus 5?", "label": "7"} for a in "12"])
    inputs = Inputs(build_tiny_model_folder(tmp_path / "student", "qwen3_omni_moe", seed=7), prompts)

    def go(name: str, *words: object, ok: bool = True, **changed: object) -> Finished:
        own = {"custom_rm_path": None, "rm_type": "dummy", "num_rollout": 1, "rollout_seed": 3, **changed}
        done = inline([*inputs.flags(tmp_path / name, **own), "--colocate", "--use-opd", *words])
        return done.ok() if ok else done

    return go


@pytest.mark.parametrize("words", [(), IDS], ids=["sampled", "teacher_topk"])
def test_it_says_what_the_training_backend_says_of_the_same_weights(run, engine: EngineProcess, model_folder, words):
    """But for the ids of media, which an engine counts: with random weights a hundredth of the mass or so."""
    there = run("there", *words, opd_teacher_url=engine.url)
    here = run("here", *words, opd_teacher_load=model_folder.parent / "thinker")
    assert there.metrics("train/opd_kl") == pytest.approx(here.metrics("train/opd_kl"), rel=0.05)


def test_only_an_engine_with_ids_for_each_position_is_asked_for_the_students(run, engine: EngineProcess, engine_name):
    words = ("--opd-token-selection", "union", "--opd-log-prob-top-k", 4)
    done = run("union", *words, ok=False, opd_teacher_url=engine.url)
    assert done.code == {"native": 0, "sglang": 2}[engine_name]
    if engine_name == "sglang":
        assert f"the teacher at {engine.url} (--opd-teacher-url) takes one token_ids_logprob" in done.err
