# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Rows to prompts as the flags say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relax.config.run import default_config
from relax.core.rollout_parts import Preparer
from relax.data.datasets import RawRow
from tests.builders import tiny_tokenizer


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
