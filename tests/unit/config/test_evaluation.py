# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Evaluation data sets from pairs and from YAML."""

from __future__ import annotations

import pytest

from relax.config.run import RunConfig, default_config
from relax.utils.errors import ConfigError

YAML = """
eval:
  defaults: {n_samples_per_eval_prompt: 4, top_p: 0.7}
  datasets:
    - {name: aime, path: /data/aime.jsonl, rm_type: deepscaler}
    - name: tools
      path: /data/tools.jsonl
      n_samples_per_eval_prompt: 1
      custom_generate_function_path: examples.deepeyes.rollout.generate
      metadata_overrides: {judge: strict}
"""


def from_file(tmp_path, text: str) -> RunConfig:
    file = tmp_path / "eval.yaml"
    file.write_text(text)
    return default_config(eval_interval=1, eval_config=str(file), eval_max_response_len=99)


def test_pairs_of_a_name_and_a_path() -> None:
    config = default_config(eval_interval=5, eval_prompt_data=["aime", "a.jsonl", "gsm", "b.jsonl"])
    assert [(d.name, d.path) for d in config.eval_datasets] == [("aime", "a.jsonl"), ("gsm", "b.jsonl")]


def test_a_single_path_is_named_after_its_file() -> None:
    config = default_config(eval_interval=5, eval_prompt_data=["/x/aime-2024.jsonl@[0:8]"])
    assert [(d.name, d.path) for d in config.eval_datasets] == [("aime-2024", "/x/aime-2024.jsonl@[0:8]")]


def test_a_data_set_takes_flags_then_defaults_then_its_own_settings(tmp_path) -> None:
    aime, tools = from_file(tmp_path, YAML).eval_datasets
    assert (aime.top_p, aime.n_samples_per_eval_prompt, aime.max_response_len, aime.temperature) == (0.7, 4, 99, 1.0)
    assert (aime.rm_type, tools.rm_type) == ("deepscaler", "math")
    assert (tools.n_samples_per_eval_prompt, tools.metadata_overrides) == (1, {"judge": "strict"})
    assert tools.custom_generate_function_path == "examples.deepeyes.rollout.generate"
    assert aime.custom_generate_function_path is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("eval: {dataset: []}", "unknown key 'dataset', did you mean 'datasets'?"),
        ("eval: {datasets: []}", "must list data sets under eval: datasets:"),
        ("eval: {datasets: [{name: a}]}", "data set 0 needs name and path"),
        (
            "eval: {datasets: [{name: a, path: b, temprature: 1}]}",
            "unknown key 'temprature', did you mean 'temperature'?",
        ),
        ("eval: {datasets: [{name: a, path: b, top_p: high}]}", "data set a: top_p must be a number, got 'high'"),
        ("eval: {datasets: [{name: a, path: b, top_p: 2}]}", "data set a: top_p 2 is out of range"),
        ("eval: {datasets: [{name: a, path: b}, {name: a, path: c}]}", "a is there twice"),
        ("eval: {defaults: {lr: 1}, datasets: [{name: a, path: b}]}", "defaults: unknown key 'lr'"),
        ("datasets: 3", "must list data sets"),
    ],
)
def test_a_wrong_file_is_an_error_that_says_where(tmp_path, text: str, problem: str) -> None:  # G9
    with pytest.raises(ConfigError) as caught:
        from_file(tmp_path, text)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"eval_prompt_data": ["a", "b", "c"]}, "takes pairs of a name and a path, got 3 words: a b c"),
        ({"eval_prompt_data": ["a", "b"], "eval_config": "c.yaml"}, "are both given: keep one"),
        (
            {"eval_config": "/nowhere/c.yaml"},
            "--eval-config /nowhere/c.yaml is not a YAML file; /nowhere does not exist",
        ),
    ],
)
def test_wrong_flags_are_errors(overrides: dict, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        default_config(eval_interval=1, **overrides)
    assert problem in str(caught.value)
