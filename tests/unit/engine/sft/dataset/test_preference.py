# Copyright (c) 2026 Relax Authors. All Rights Reserved.
from pathlib import Path

import pytest

from relax.data.datasets import RawRow
from relax.engine.sft.dataset.options import SftDataOptions
from relax.engine.sft.dataset.rows import SampleReader
from relax.utils.errors import DataError

SHAREGPT = {"from": "role", "value": "content", "human": "user", "gpt": "assistant"}
U, A, B = ({"role": role, "content": text} for role, text in (("user", "q"), ("assistant", "a"), ("assistant", "b")))


def pair(row, **options):
    reader = SampleReader(
        SftDataOptions(files="x", model="m", **{"input_key": "prompt", "training_mode": "preference", **options})
    )
    return reader.pair(RawRow(row, "train.jsonl:1", Path(".")))


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, {}),
        ({"prompt": [U], "chosen": [A], "rejected": [B]}, {}),
        ({"prompt": [U], "chosen": A, "rejected": B}, {}),
        ({"chosen": [U, A], "rejected": [U, B]}, {}),
        ({"prompt": "q", "prompt_id": "7", "chosen": [U, A], "rejected": [U, B]}, {}),
        (
            {
                "conversations": [{"from": "human", "value": "q"}],
                "chosen": {"from": "gpt", "value": "a"},
                "rejected": {"from": "gpt", "value": "b"},
            },
            {"input_key": "conversations", "conversation_key_map": SHAREGPT},
        ),
    ],
    ids=["TRL text", "TRL messages", "one message", "TRL implicit prompt", "UltraFeedback", "LLaMA-Factory"],
)
def test_every_layout_gives_the_same_pair(row, options):
    chosen, rejected = pair(row, **options)
    assert [(m["role"], m["content"]) for m in chosen.messages] == [("user", "q"), ("assistant", "a")]
    assert [(m["role"], m["content"]) for m in rejected.messages] == [("user", "q"), ("assistant", "b")]
    assert chosen.learned == rejected.learned == (1,)


def test_answers_of_the_prompt_are_not_learned():
    chosen, rejected = pair({"prompt": [U, A, U], "chosen": "a", "rejected": "b"})
    assert chosen.learned == rejected.learned == (3,)


def test_an_implicit_prompt_ends_at_a_whole_message_T11():
    # Both answers start with the same word: it belongs to the answers.
    same = ({"role": "assistant", "content": f"The {word}"} for word in ("cat", "dog"))
    chosen, rejected = pair(dict(zip(("chosen", "rejected"), ([U, answer] for answer in same), strict=True)))
    assert chosen.messages[1]["content"] == "The cat"
    assert (chosen.learned, rejected.learned) == ((1,), (1,))


def test_an_empty_rejected_answer_is_an_answer_D14():
    _, rejected = pair({"prompt": "q", "chosen": "a", "rejected": ""})
    assert rejected.messages[1]["content"] == ""


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"chosen": "a", "rejected": "b"}, "SFT row missing prompt key 'prompt'.*chosen is text"),
        ({"prompt": "q", "chosen": "a"}, "SFT row missing preference key 'rejected'"),
        ({"chosen": [U, A], "rejected": [U, A]}, "chosen has no assistant message behind the prompt"),
        ({"chosen": [U, A], "rejected": [B]}, "start with different messages"),
        ({"prompt": "q", "chosen": [U], "rejected": "b"}, "chosen has no assistant message behind the prompt"),
    ],
)
def test_rows_without_a_pair_are_errors(row, message):
    with pytest.raises(DataError, match=f"train.jsonl:1: .*{message}"):
        pair(row)
