# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A student of the tiny model and a teacher of other weights: every form, by the product's own roles."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from relax.entrypoints.replay import main as replay
from tests.builders import build_tiny_model_folder
from tests.service.test_ppo import same
from tests.service.training_run import Finished, Inputs, inline

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
TOP = ("--opd-log-prob-top-k", 8)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    return build_tiny_model_folder(tmp_path_factory.mktemp("teacher") / "model", seed=7)


@pytest.fixture
def run(inputs: Inputs, tmp_path: Path):
    def go(*words: object, name: str = "run", ok: bool = True, **changed: object) -> Finished:
        own: dict[str, object] = {"custom_rm_path": None, "rm_type": "dummy", "num_rollout": 3, **changed}
        done = inline([*inputs.flags(tmp_path / name, **own), "--use-opd", *words])
        return done.ok() if ok else done

    return go


def test_the_student_moves_to_its_teacher(run, teacher):
    done = run(
        "--colocate", "--opd-only-reward", num_rollout=25, rollout_batch_size=8, n_samples_per_prompt=4, lr=4e-3,
        opd_teacher_load=teacher, rollout_max_response_len=8,
    )  # fmt: skip
    divergence = done.metrics("train/opd_kl")
    assert np.mean(divergence[-3:]) < 0.7 * np.mean(divergence[:3]), divergence


def test_an_engine_of_this_run_says_what_the_training_backend_says_to_the_bit(run, teacher):
    local = run("--colocate", name="local", opd_teacher_load=teacher)
    engine = run("--colocate", name="engine", teacher_hf_checkpoint=teacher)
    assert local.metrics("train/opd_kl") == engine.metrics("train/opd_kl")
    assert same(local.folder / "iter_0000002/model", engine.folder / "iter_0000002/model")


@pytest.mark.parametrize("selection", ["teacher_topk", "student_topk", "union"])
def test_an_engine_is_asked_for_ids_too_and_gives_the_same_weights(run, teacher, selection):
    words = ("--colocate", "--opd-only-reward", "--opd-loss-coef", 1.0, "--opd-token-selection", selection, *TOP)
    local = run(*words, name="local", opd_teacher_load=teacher)
    engine = run(*words, name="engine", teacher_hf_checkpoint=teacher)
    assert local.metrics("train/opd_kl") == engine.metrics("train/opd_kl")
    assert same(local.folder / "iter_0000002/model", engine.folder / "iter_0000002/model")


@pytest.mark.parametrize("selection", ["teacher_topk", "student_topk", "union"])
@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "jsd"])
def test_divergences_over_ids_shrink_as_a_loss(run, teacher, selection, kind):
    done = run(
        "--colocate", "--opd-only-reward", "--opd-loss-coef", 1.0, "--opd-token-selection", selection, *TOP,
        "--opd-kl-type", kind, opd_teacher_load=teacher, num_rollout=8, rollout_batch_size=4, lr=4e-3,
    )  # fmt: skip
    divergence = done.metrics("train/opd_kl")
    assert divergence[-1] < divergence[0], divergence
    assert all(value > 0 for value in done.metrics("train/opd_loss"))


def test_the_sampled_form_is_a_loss_too_and_works_without_staleness_or_with_it(run, teacher):
    words = ("--opd-only-reward", "--opd-loss-coef", 1.0, "--opd-kl-type", "low_var_kl", "--opd-is-clip", 5)
    done = run("--colocate", *words, opd_teacher_load=teacher, num_rollout=10, rollout_batch_size=8, lr=4e-3)
    assert done.metrics("train/opd_kl")[-1] < done.metrics("train/opd_kl")[0]
    stale = run(
        "--fully-async", "--use-rollout-logprobs", "--max-staleness", 1, *words, name="async", opd_teacher_load=teacher
    )
    assert len(stale.metrics("train/opd_loss")) == 3


def test_it_joins_a_reward(run, teacher):
    alone = run("--colocate", name="alone", rm_type="random", opd_teacher_load=teacher, opd_kl_coef=1e-12)
    both = run("--colocate", name="both", rm_type="random", opd_teacher_load=teacher)
    assert not same(alone.folder / "iter_0000002/model", both.folder / "iter_0000002/model")


def test_replay_asks_the_teacher_again(run, teacher, capsys):
    done = run("--colocate", *TOP, "--opd-token-selection", "union", opd_teacher_load=teacher, save_interval=1)
    assert replay(["--run", str(done.folder), "--step", "1-2"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out.splitlines()[-1].removeprefix("RESULT "))["identical"] is True
    assert "teacher_at_logprobs" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--use-opd needs a teacher: add --teacher-hf-checkpoint"),
        (["--opd-teacher-load", "T", "--opd-teacher-url", "http://x"], "name several teachers: keep one"),
        (["--opd-teacher-load", "T", "--opd-type", "sglang"], "is a teacher of --opd-type megatron"),
        (["--opd-teacher-load", "T", "--opd-kl-coef", "1", "--opd-loss-coef", "1"], "exactly one must be above 0"),
        (["--opd-teacher-load", "T", "--opd-kl-type", "jsd"], "needs more than the sampled token"),
        (["--opd-teacher-load", "T", "--opd-token-selection", "union"], "needs --opd-log-prob-top-k"),
        (["--opd-teacher-url", "127.0.0.1:30000"], "is no address: give http://HOST:PORT"),
        (["--teacher-hf-checkpoint", "T", "--multimodal-keys", '{"image":"image"}'], "is sent ids alone"),
        (["--opd-teacher-load", "T", "--rollout-temperature", "0.5", "--opd-is-clip", "2"], "--opd-is-clip bounds"),
        (["--teacher-hf-checkpoint", "T", "--rollout-temperature", "0.5"], "log-probs at temperature 1"),
        (["--opd-teacher-load", "nowhere"], "--opd-teacher-load nowhere is not a Hugging Face model folder"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_anything_starts(run, teacher, words, said):
    done = run("--colocate", *(str(teacher) if word == "T" else word for word in words), ok=False)
    assert done.code == 2
    assert said in done.err
