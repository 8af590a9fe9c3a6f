# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rows to prompts as the flags say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relax.config.run import default_config
from relax.core.rollout_parts import Preparer
from relax.data.datasets import RawRow
from relax.utils.errors import ConfigError
from tests.builders import tiny_tokenizer, write_jsonl


class Marked:
    """A function of a user that cannot be pickled, and with it no builder that holds it."""

    def __call__(self, prompt: Any, row: Any) -> Any:
        return f"{prompt}!"

    def __reduce__(self) -> Any:
        raise AssertionError("a builder must not travel with each row")


marked = Marked()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def row(text: str = "Hi", **columns: Any) -> RawRow:
    return RawRow({"input": text, **columns}, "rows:1", Path("/"))


async def prepared(model: str, *rows: RawRow, **flags: Any) -> list[str]:
    preparer = Preparer(default_config(hf_checkpoint=model, **flags))
    try:
        return [str((await preparer.prepare(each)).prompt_text) for each in rows]
    finally:
        preparer.close()


async def test_C36_the_file_of_chat_template_comes_after_the_row_and_the_options(model: str, tmp_path: Path):
    (tmp_path / "mine.jinja").write_text("file {{ messages[0].content }}")
    flags = {"apply_chat_template": True, "chat_template": str(tmp_path / "mine.jinja")}
    own = row(metadata={"chat_template": "row {{ messages[0].content }}"})
    assert await prepared(model, row(), own, **flags) == ["file Hi", "row Hi"]
    options = {"chat_template": "option {{ messages[0].content }}"}
    assert await prepared(model, row(), own, **flags, apply_chat_template_kwargs=options) == ["option Hi", "row Hi"]
    assert (await prepared(model, row(), apply_chat_template=True))[0].startswith("<|im_start|>user\nHi")


async def test_processes_build_their_builders_once_and_rows_alone_travel(model: str, tmp_path: Path):
    held_out = write_jsonl(tmp_path / "held_out.jsonl", [{"question": "1 + 1"}])
    flags = {
        "hf_checkpoint": model,
        "custom_prompt_path": "tests.unit.core.test_rollout_parts.marked",
        "eval_interval": 1,
        "eval_prompt_data": ["held_out", str(held_out)],
        "eval_input_key": "question",
        "mm_processor_pool_size": 1,
    }
    config = default_config(**flags)
    preparer = Preparer(config)
    try:
        assert (await preparer.prepare(row("Hi"))).prompt_text == "Hi!"
        assert [s.prompt for s in await preparer.prepare_eval(config.eval_datasets[0])] == ["1 + 1!"]
    finally:
        preparer.close()


def test_what_cannot_be_built_is_told_before_a_process_is_started(model: str):
    with pytest.raises(ConfigError, match=r"--chat-template nowhere\.jinja cannot be read"):
        Preparer(default_config(hf_checkpoint=model, chat_template="nowhere.jinja", mm_processor_pool_size=1))
