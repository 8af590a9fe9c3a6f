# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Runs that a judge scores, in one process and behind doors."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from relax.entrypoints.replay import main as replay
from tests.builders import build_tiny_model_folder
from tests.service.test_ppo import same
from tests.service.training_run import HOOKS, Inputs, inline, start

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
SAMPLING = '{"max_response_len": 4, "temperature": 1.0}'


@pytest.fixture(scope="module")
def judge(tmp_path_factory) -> Path:
    return build_tiny_model_folder(tmp_path_factory.mktemp("judge") / "model", seed=3)


def flags(inputs: Inputs, save: Path, judge: Path, **changed: object) -> list[object]:
    own = {"custom_rm_path": HOOKS + "judged_length", "genrm_model_path": judge, "genrm_sampling_config": SAMPLING}
    return [*inputs.flags(save, **{**own, **changed})]


def test_a_run_is_scored_by_a_judge_of_its_own(inputs, judge, tmp_path, capsys):
    runs = [
        inline([*flags(inputs, tmp_path / name, judge, num_rollout=3), "--colocate"]).ok() for name in ("one", "two")
    ]
    rewards = runs[0].metrics("rollout/raw_reward/mean")
    assert len(rewards) == 3
    assert all(value > 0 for value in rewards)
    # a judge's answer follows from the request alone, so two runs agree
    assert rewards == runs[1].metrics("rollout/raw_reward/mean")
    assert same(runs[0].folder / "iter_0000002/model", runs[1].folder / "iter_0000002/model")
    capsys.readouterr()
    assert replay(["--run", str(runs[0].folder), "--step", "1"]) == 0
    assert "a judge model may have scored it" in capsys.readouterr().out


def test_the_built_in_reward_asks_it(inputs, judge, tmp_path):
    own = flags(inputs, tmp_path / "run", judge, custom_rm_path=None, rm_type="dapo-genrm", num_rollout=1)
    done = inline([*own, "--colocate"]).ok()
    assert {sample["reward"] for sample in done.samples(0)} <= {0.0, 1.0}
    assert len(done.samples(0)) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rm-type", "dapo-genrm"], "asks a judge: add --genrm-model-path"),
        (["--genrm-timeout-s", "3"], "--genrm-timeout-s has no effect without --genrm-model-path"),
        (["--genrm-model-path", "J", "--genrm-sampling-config", '{"temprature": 1}'], "did you mean 'temperature'?"),
        (["--genrm-instances", '{"maths": {}}'], "must be an object with a model_path"),
        (["--genrm-model-path", "nowhere"], "--genrm-model-path nowhere is not a Hugging Face model folder"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_anything_starts(inputs, judge, tmp_path, words, said):
    words = [str(judge) if word == "J" else word for word in words]
    custom = None if "--rm-type" in words else HOOKS + "token_reward"
    done = inline([*inputs.flags(tmp_path / "run", custom_rm_path=custom), "--colocate", *words])
    assert done.code == 2
    assert said in done.err


def call(method: str, url: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.service
def test_two_judges_behind_a_door_score_an_async_run(inputs, judge, tmp_path):
    instances = {
        key: {"model_path": str(judge), "sampling_config": {"max_response_len": 4}} for key in ("__default__", "style")
    }
    own = flags(
        inputs, tmp_path / "run", judge, genrm_model_path=None, genrm_sampling_config=None,
        genrm_instances=json.dumps(instances), num_rollout=1000,
    )  # fmt: skip
    ask = {"messages": [{"role": "user", "content": "Is this short?"}], "route_key": "style"}
    with start([*own, "--fully-async", "--use-rollout-logprobs", "--max-staleness", 1]) as running:
        running.wait_for_event("installed", 2)
        http = running.http + "/genrm"
        status, answer = call("POST", http + "/generate", ask)
        assert status == 200
        assert isinstance(answer["response"], str)
        assert call("POST", http + "/generate", ask)[1] == answer  # the seed follows from the request
        assert call("POST", http + "/generate", {**ask, "route_key": "maths"})[0] == 400
        assert call("POST", http + "/generate", {"messages": "?"})[0] == 422
        assert call("GET", http + "/health") == (
            200,
            {"__default__": {"genrm-engine-0": "healthy"}, "style": {"genrm-style-engine-0": "healthy"}},
        )
        status, metrics = call("GET", http + "/metrics")
        assert (status, metrics["num_engines"], metrics["ready_engines"]) == (200, 2, 2)
        assert metrics["answered"] >= 8
        assert call("POST", running.http + "/actor/stop_service")[0] == 200
        done = running.finish().ok()
        assert done.reason == "stopped_by_service"
        assert running.wait_gone() == []
