# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What `--custom-reward-post-process-path` may return; anything else names the function and its group."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import numpy as np
import pytest

from relax.engine.rewards.post_process import load_post_process
from relax.utils.errors import ConfigError, UserCodeError
from relax.utils.types import Sample

SAMPLES = [Sample(group_index=7, index=index, reward=float(index)) for index in range(2)]


@pytest.fixture
def load(monkeypatch):
    """load(answer) -> the loaded function that returns `answer`."""

    def go(answer):
        module = ModuleType("post_hooks")
        module.post = lambda args, samples: answer(args, samples) if callable(answer) else answer
        monkeypatch.setitem(sys.modules, "post_hooks", module)
        return load_post_process("post_hooks.post", "ARGS")

    return go


def test_arrays_and_nan_are_taken(load):
    raw, rewards = load((np.asarray([1.0, 2.0], np.float32), [True, math.nan]))(SAMPLES)
    assert raw == [1.0, 2.0]
    assert rewards[0] == 1.0
    assert math.isnan(rewards[1])


def test_it_gets_args_and_the_group(load):
    raw, rewards = load(lambda args, samples: ([s.reward for s in samples], [len(args)] * len(samples)))(SAMPLES)
    assert (raw, rewards) == ([0.0, 1.0], [4.0, 4.0])


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ([1.0, 2.0, 3.0], "returned list; return"),
        (None, "returned NoneType; return"),
        (([1.0], [1.0, 2.0]), "returned 1 values for 2 samples"),
        (([1.0, 2.0], 3.0), "returned float for 2 samples"),
        (([1.0, 2.0], [1.0, "x"]), "'x', which is no number"),
    ],
)
def test_anything_else_names_function_and_group(load, answer, text):
    with pytest.raises(UserCodeError, match=r"post_hooks\.post \(sample group 7") as error:
        load(answer)(SAMPLES)
    assert text in str(error.value)


def test_its_own_error_is_the_cause(load):
    with pytest.raises(UserCodeError, match="ZeroDivisionError") as error:
        load(lambda args, samples: 1 / 0)(SAMPLES)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_a_function_of_other_arguments_is_refused(monkeypatch):
    module = ModuleType("post_hooks")
    module.post = lambda samples: samples
    monkeypatch.setitem(sys.modules, "post_hooks", module)
    with pytest.raises(ConfigError, match="--custom-reward-post-process-path"):
        load_post_process("post_hooks.post", None)
