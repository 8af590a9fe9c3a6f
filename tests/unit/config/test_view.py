# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`args` as hooks see it: every flag, run-time facts, own keys, and no silent default (E8)."""

from __future__ import annotations

import copy
import pickle

import pytest

from relax.config.command_line import SECTION_OF
from relax.config.run import default_config, parse_args
from relax.config.view import HookArgs


@pytest.fixture
def args() -> HookArgs:
    return default_config(max_turns=3, reward_key="score").flat()


def test_every_flag_is_there_by_its_underscore_name(args: HookArgs) -> None:
    config = default_config(max_turns=3, reward_key="score")
    for name in SECTION_OF:
        assert getattr(args, name) == config.value(name)
    assert args.max_turns == 3


def test_facts_are_added_to_a_new_view(args: HookArgs) -> None:
    running = args.with_facts(sglang_router_ip="127.0.0.1", sglang_router_port=3000, run_dir="/r")
    assert f"http://{running.sglang_router_ip}:{running.sglang_router_port}" == "http://127.0.0.1:3000"
    assert "sglang_router_ip" not in args


def test_a_fact_that_is_not_known_yet_says_when_it_is(args: HookArgs) -> None:
    with pytest.raises(AttributeError, match="known only while a run is going on"):
        args.sglang_router_ip  # noqa: B018


def test_an_unknown_name_raises_with_the_nearest_one(args: HookArgs) -> None:
    with pytest.raises(AttributeError, match=r"did you mean args\.max_turns\?"):
        args.max_turn  # noqa: B018
    with pytest.raises(AttributeError, match="--custom-config-path"):
        args.zzzzqqqq  # noqa: B018
    assert getattr(args, "own_setting", "fallback") == "fallback"


def test_nothing_can_be_assigned_or_deleted(args: HookArgs) -> None:
    with pytest.raises(AttributeError, match="cannot be set"):
        args.max_turns = 4
    with pytest.raises(AttributeError, match="cannot be set"):
        args.own = 4
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del args.max_turns


def test_the_view_pickles_and_copies(args: HookArgs) -> None:
    assert pickle.loads(pickle.dumps(args)) == args
    assert copy.deepcopy(args) == args
    assert copy.copy(args).max_turns == 3


def test_own_keys_and_megatron_flags_are_there(tmp_path) -> None:
    file = tmp_path / "hooks.yaml"
    file.write_text("judge: {url: x}\n")
    text = "--hf-checkpoint m --prompt-data p --num-rollout 1 --rollout-batch-size 4 --n-samples-per-prompt 2"
    text += f" --num-layers 2 --custom-config-path {file}"
    args = parse_args(text.split()).flat()
    assert args.judge == {"url": "x"}
    assert args.num_layers == 2
    assert "judge" in dir(args)
    with pytest.raises(TypeError, match="cannot be changed"):
        args.judge["url"] = "y"
