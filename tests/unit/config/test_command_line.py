# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Words that are no flags, spellings that are near, and flags of features that this version lacks."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from relax.config.command_line import SECTION_OF, known_flags, read_command_line
from relax.config.external.tables import options, table
from relax.config.flags import option_name
from relax.config.sections import SECTIONS
from relax.config.support import LATER_FLAGS, later_feature
from relax.utils.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("--rollout-batch", "did you mean --rollout-batch-size?"),  # D11
        ("--rollout-batch=32", "did you mean --rollout-batch-size?"),
        ("--golbal-batch-size", "did you mean --global-batch-size?"),  # D12
        ("--rollout_batch_size", "it is spelled --rollout-batch-size"),
        ("-lr", "it is spelled --lr"),
        ("--tensor-parallel-size", "did you mean --tensor-model-parallel-size?"),
        ("--sglang-mem-fraction", "did you mean --sglang-mem-fraction-static?"),
        ("--router-polcy", "did you mean --router-policy?"),
        ("--zzzzqqqq", "--help lists all flags"),
    ],
)
def test_an_unknown_flag_is_an_error_with_the_nearest_name(word: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_command_line([word, "3"])
    assert str(caught.value).startswith(f"unknown flag {word.split('=')[0]}")
    assert text in str(caught.value)


@pytest.mark.parametrize("word", ["--num-rollouts", "--num_rollout"])
def test_rounds_and_engines_are_told_apart(word: str) -> None:  # C2
    with pytest.raises(ConfigError) as caught:
        read_command_line([word, "3"])
    text = str(caught.value)
    assert "--num-rollout N is the number of rounds" in text
    assert "--num_rollouts N is the number of inference engines" in text


@pytest.mark.parametrize(
    ("word", "feature"),
    [
        ("--use-agentic-rollout", "agentic rollout"),
        ("--notify-urls", "alerts"),
        ("--no-use-pytorch-profiler", "profiling"),
        ("--teacher-sglang-tp-size", "SGLang flags of the teacher's engines alone"),
    ],
)
def test_a_known_flag_of_a_missing_feature_is_refused_by_that_feature(word: str, feature: str) -> None:
    with pytest.raises(ConfigError, match="is known but not available in this version") as caught:
        read_command_line([word])
    assert feature in str(caught.value)


def test_a_value_without_a_flag_is_an_error() -> None:
    with pytest.raises(ConfigError, match="unexpected 'true' after --colocate"):
        read_command_line(["--colocate", "true"])


def test_a_value_may_look_like_a_flag_when_it_is_joined() -> None:
    assert read_command_line(["--system-prompt=--be brief"]).values["system_prompt"] == "--be brief"


def test_a_repeated_flag_takes_the_last_value_and_is_noted() -> None:  # C42
    given = read_command_line(["--megatron-to-hf-mode", "bridge", "--lr", "1", "--lr", "2"])
    assert given.values["lr"] == 2.0
    assert given.notes == ["--lr is given 2 times: the last one counts"]


def test_values_remember_where_they_came_from() -> None:
    assert read_command_line(["--lr", "1"]).origins == {"lr": "flag"}


def test_each_flag_is_written_once() -> None:
    names = [f.name for section in SECTIONS.values() for f in fields(section)]  # type: ignore[arg-type]
    assert len(names) == len(set(names))
    spellings = known_flags()
    assert len(spellings) == len(set(spellings))


def test_a_flag_is_available_or_not_but_not_both() -> None:
    assert not {option_name(name).removeprefix("--") for name in SECTION_OF} & set(LATER_FLAGS)
    assert [name for name in SECTION_OF if later_feature(option_name(name))] == []


def test_every_section_and_flag_is_documented() -> None:
    for section in SECTIONS.values():
        assert section.__doc__
        for f in fields(section):  # type: ignore[arg-type]
            assert f.metadata["help"].endswith("."), f.name


def test_our_flags_with_an_external_prefix_do_not_hide_external_ones() -> None:
    ours = {option_name(name) for name in SECTION_OF}
    assert not ours & set(options())
    assert "python" not in table("sglang")
    assert "server-concurrency" not in table("sglang")


class TestCustomConfig:
    """Keys of --custom-config-path reach hooks and nothing else (C35, G9)."""

    def read(self, tmp_path, text: str, *argv: str):
        file = tmp_path / "hooks.yaml"
        file.write_text(text)
        return read_command_line(["--custom-config-path", str(file), *argv])

    def test_keys_are_kept_frozen(self, tmp_path) -> None:
        given = self.read(tmp_path, "tool: {name: zoom, sizes: [1, 2]}\n")
        assert given.custom == {"tool": {"name": "zoom", "sizes": (1, 2)}}

    def test_a_flag_that_only_hooks_read_may_come_from_the_file(self, tmp_path) -> None:
        given = self.read(tmp_path, "max_turns: 4\n")
        assert (given.values["max_turns"], given.origins["max_turns"]) == (4, "file")

    def test_the_command_line_wins_and_says_so(self, tmp_path) -> None:
        given = self.read(tmp_path, "max_turns: 4\n", "--max-turns", "7")
        assert given.values["max_turns"] == 7
        assert "max_turns" in given.notes[0]

    def test_a_key_cannot_hide_an_external_flag_that_is_given(self, tmp_path) -> None:
        assert self.read(tmp_path, "split: train\n").custom == {"split": "train"}
        with pytest.raises(ConfigError, match="num_layers is given as --num-layers too: keep one"):
            self.read(tmp_path, "num_layers: 4\n", "--num-layers", "4")

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("rollout_batch_size: 4\n", "give it as --rollout-batch-size on the command line"),
            ("run_dir: /x\n", "is set by the run itself"),
            ("a-b: 1\n", "cannot be an attribute of args"),
            ("- 1\n", "must hold `key: value` lines"),
            ("a: [\n", "is not valid YAML"),
        ],
    )
    def test_a_misplaced_key_is_an_error(self, tmp_path, text: str, problem: str) -> None:
        with pytest.raises(ConfigError) as caught:
            self.read(tmp_path, text)
        assert problem in str(caught.value)

    def test_a_missing_file_is_named_with_the_nearest(self, tmp_path) -> None:
        (tmp_path / "hooks.yaml").write_text("")
        with pytest.raises(ConfigError, match=r"hook\.yaml is not a YAML file; .* has 'hooks\.yaml'"):
            read_command_line(["--custom-config-path", str(tmp_path / "hook.yaml")])


def test_the_set_of_flags_is_a_visible_edit() -> None:
    """A flag that is added, renamed or dropped changes `flags.txt` too, so that no one meets it by surprise."""
    listed = (Path(__file__).with_name("flags.txt")).read_text().split()
    assert listed == sorted(option_name(name) for name in SECTION_OF)
