# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Functions named by flags are looked for without running their modules."""

import sys

import pytest

from relax.entrypoints.hooks import problem_of
from relax.utils.errors import ConfigError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_module_is_read_and_not_run(folder):
    (folder / "quiet_hooks.py").write_text("raise SystemExit\ndef reward(args, sample): ...\n")
    assert problem_of("quiet_hooks.reward", "--custom-rm-path") is None
    assert "quiet_hooks" not in sys.modules


@pytest.mark.parametrize(
    "line",
    [
        "async def reward(a, b): ...",
        "class reward: ...",
        "from elsewhere import other as reward",
        "import reward.inner",
        "reward = print",
        "x, (reward, y) = 1, (2, 3)",
        "if x:\n    pass\nelse:\n    reward = 1",
        "try:\n    import reward\nexcept ImportError:\n    pass",
        "try:\n    pass\nexcept ImportError:\n    def reward(): ...",
        "from elsewhere import *",
        "def __getattr__(name): ...",
    ],
)
def test_every_way_to_define_a_name_is_known(folder, line):
    (folder / "many_hooks.py").write_text(line + "\n")
    assert problem_of("many_hooks.reward", "--custom-tis-function-path") is None


def test_a_name_inside_a_function_is_not_the_modules(folder):
    (folder / "inner_hooks.py").write_text("def outer():\n    def reward(): ...\n")
    assert "has no 'reward'; it has outer" in problem_of("inner_hooks.reward", "--custom-rm-path")


def test_a_misspelt_name_is_corrected(folder):
    (folder / "near_hooks.py").write_text("def reward_function(): ...\n")
    assert "did you mean reward_function?" in problem_of("near_hooks.reward_funktion", "--custom-rm-path")


def test_the_missing_part_of_a_path_is_named(folder):
    (folder / "some_package").mkdir()
    assert "no module 'some_package.inner'" in problem_of("some_package.inner.f", "--custom-rm-path")
    assert "no module 'no_such_package'" in problem_of("no_such_package.inner.f", "--custom-rm-path")


def test_a_module_that_does_not_parse_names_its_line(folder):
    (folder / "broken_hooks.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(ConfigError, match=r"broken_hooks\.py:2"):
        problem_of("broken_hooks.f", "--custom-rm-path")
