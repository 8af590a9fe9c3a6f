# Copyright (c) 2026 Relax Authors. All Rights Reserved.
from pathlib import Path

import pytest

from relax.data.datasets import RawRow
from relax.engine.sft.dataset.options import SftDataOptions
from relax.engine.sft.dataset.rows import SampleReader
from relax.utils.errors import ConfigError, DataError, MediaError

SHAREGPT = {"from": "role", "value": "content", "human": "user", "gpt": "assistant"}
WHERE = "/data/train.jsonl:7"


def reader(**options) -> SampleReader:
    return SampleReader(
        SftDataOptions(**{"files": "train.jsonl", "model": "model", "input_key": "messages", **options})
    )


def raw(**values) -> RawRow:
    return RawRow(values, WHERE, Path("/data"))


class TestPromptAndLabel:
    READER = reader(input_key="problem", label_key="generated_solution")

    def test_becomes_a_user_and_an_assistant_message(self):
        sample = self.READER.sample(
            raw(problem="Find x.", generated_solution="<think>\n1\n</think>\nx = 1", source="s")
        )
        assert sample.messages == (
            {"role": "user", "content": "Find x."},
            {"role": "assistant", "content": "<think>\n1\n</think>\nx = 1"},
        )
        assert sample.learned == (1,)
        assert (sample.file, sample.row, sample.where) == ("/data/train.jsonl", 7, WHERE)
        assert sample.metadata == {"source": "s"}

    def test_a_system_prompt_comes_first(self):
        with_system = reader(input_key="problem", label_key="answer", system_prompt="Be brief.")
        roles = [message["role"] for message in with_system.sample(raw(problem="a", answer="b")).messages]
        assert roles == ["system", "user", "assistant"]

    def test_a_missing_prompt_has_the_documented_text(self):
        with pytest.raises(DataError) as found:
            self.READER.sample(raw(problems="a", generated_solution="b"))
        assert str(found.value) == (
            f"{WHERE}: SFT row missing prompt key 'problem' (--input-key); the row's columns are "
            "['generated_solution', 'problems']; did you mean 'problems'?"
        )

    def test_a_missing_label_is_named(self):
        with pytest.raises(DataError, match=r"SFT row missing label key 'generated_solution'"):
            self.READER.sample(raw(problem="a"))

    @pytest.mark.parametrize("answer", [4, {"a": 1}, ["b"]])
    def test_a_label_that_is_no_text_is_an_error(self, answer):
        with pytest.raises(DataError, match=r"--label-key 'generated_solution' must hold the answer's text"):
            self.READER.sample(raw(problem="a", generated_solution=answer))

    def test_messages_beside_a_label_are_an_error_that_names_the_task(self):
        with pytest.raises(
            DataError, match=r"--label-key is set.*expects the prompt's text with --task-type causal_lm"
        ):
            self.READER.sample(raw(problem=[{"role": "user", "content": "a"}], generated_solution="b"))


class TestMessages:
    def test_text_without_a_label_key_has_the_documented_text(self):
        with pytest.raises(
            DataError, match=r"--label-key is not set, so --input-key 'messages' expects a messages list"
        ):
            reader().sample(raw(messages="Find x."))

    def test_sharegpt_fields_and_values_are_mapped(self):
        turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
        sample = reader(input_key="conversations", conversation_key_map=SHAREGPT).sample(raw(conversations=turns))
        assert sample.messages == ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
        assert turns[0] == {"from": "human", "value": "a"}  # the row stays

    def test_any_names_can_be_mapped(self):
        key_map = {"speaker": "role", "says": "content", "Kunde": "user", "Berater": "assistant", "train": "learn"}
        turns = [{"speaker": "Kunde", "says": "a"}, {"speaker": "Berater", "says": "b", "train": 0}]
        sample = reader(conversation_key_map=key_map).sample(raw(messages=turns))
        assert sample.messages == (
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "learn": False},
        )

    def test_unmapped_sharegpt_fields_are_an_error_with_the_flag(self):
        with pytest.raises(DataError, match=r"message 0 has no role; its fields are .*--conversation-key-map"):
            reader().sample(raw(messages=[{"from": "human", "value": "a"}]))

    def test_unknown_roles_are_an_error(self):
        with pytest.raises(DataError, match=r"message 1 has the role 'gpt'; known are .*--conversation-key-map"):
            reader().sample(raw(messages=[{"role": "user", "content": "a"}, {"role": "gpt", "content": "b"}]))

    def test_two_fields_for_one_are_an_error(self):
        with pytest.raises(DataError, match=r"message 0 has two fields for 'role'"):
            reader(conversation_key_map=SHAREGPT).sample(
                raw(messages=[{"role": "user", "from": "human", "value": "a"}])
            )

    @pytest.mark.parametrize(("learn", "message"), [("yes", "must be true or false"), (2, "must be true or false")])
    def test_learn_is_a_boolean(self, learn, message):
        with pytest.raises(DataError, match=message):
            reader().sample(raw(messages=[{"role": "assistant", "content": "a", "learn": learn}]))

    def test_only_assistants_learn(self):
        with pytest.raises(DataError, match=r"message 0 of role user has learn=true; only assistant messages"):
            reader().sample(raw(messages=[{"role": "user", "content": "a", "learn": True}]))
        row = raw(messages=[{"role": "user", "content": "a", "learn": None}, {"role": "assistant", "content": "b"}])
        assert reader().sample(row).learned == (1,)

    def test_tools_calls_and_reasoning_come_along(self):
        call = {"type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
        turns = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "why"},
            {"role": "tool", "content": "2", "tool_call_id": "1"},
            {"role": "assistant", "content": "b"},
        ]
        sample = reader().sample(raw(messages=turns, tools='[{"name": "add"}]', metadata={"id": 5}))
        assert sample.tools == ({"name": "add"},)
        assert sample.messages[1]["content"] == ""
        assert sample.messages[1]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
        assert sample.messages[1]["reasoning_content"] == "why"
        assert sample.learned == (1, 3)
        assert sample.metadata["id"] == 5

    def test_an_empty_list_is_an_error(self):
        with pytest.raises(DataError, match=r"empty list of messages"):
            reader().sample(raw(messages=[]))


class TestMedia:
    READER = reader(input_key="conversations", conversation_key_map=SHAREGPT, multimodal_keys={"image": "images"})

    def test_a_placeholder_at_the_end_takes_the_image(self):
        turns = [
            {"from": "human", "value": "Identify the object of this image.<image>"},
            {"from": "gpt", "value": "A round, pink Pokemon."},
        ]
        sample = self.READER.sample(raw(conversations=turns, images=["/path/to/pokemon.png"]))
        assert sample.messages[0]["content"] == [
            {"type": "text", "text": "Identify the object of this image."},
            {"type": "image"},
        ]
        assert sample.media == (("image", "/path/to/pokemon.png"),)

    @pytest.mark.parametrize(("images", "count"), [([], 0), (["a.png", "b.png"], 2)])
    def test_fewer_or_more_images_than_placeholders_are_an_error(self, images, count):
        turns = [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": "b"}]
        with pytest.raises(
            MediaError, match=rf"the text has 1 <image> placeholders, the row has {count} image entries"
        ):
            self.READER.sample(raw(conversations=turns, images=images))

    def test_without_media_keys_a_placeholder_is_text(self):
        sample = reader(input_key="q", label_key="a").sample(raw(q="what is <image>?", a="a tag"))
        assert sample.messages[0]["content"] == "what is <image>?"


class TestClassification:
    SINGLE = reader(task_type="seq_cls", label_key="label", num_labels=4)
    MULTI = reader(task_type="seq_cls", label_key="label", num_labels=28, problem_type="multi_label_classification")
    TEXT = ({"role": "user", "content": "This movie is excellent."},)

    def test_single_and_multi_labels(self):
        single = self.SINGLE.sample(raw(messages=list(self.TEXT), label=1))
        assert (single.messages, single.label) == (self.TEXT, 1)
        assert self.MULTI.sample(raw(messages=list(self.TEXT), label=[17, 4])).label == (4, 17)
        assert self.MULTI.sample(raw(messages=list(self.TEXT), label=[])).label == ()

    def test_text_is_a_user_message(self):
        assert self.SINGLE.sample(raw(messages="This movie is excellent.", label=0)).messages == self.TEXT

    @pytest.mark.parametrize("label", [True, "1", 1.0, [1], -1, 4])
    def test_wrong_single_labels_are_errors(self, label):
        with pytest.raises(DataError, match=r"train.jsonl:7: --label-key 'label'"):
            self.SINGLE.sample(raw(messages=list(self.TEXT), label=label))

    @pytest.mark.parametrize("label", [3, "3", ["3"], [True], [28], [1, 1]])
    def test_wrong_multi_labels_are_errors(self, label):
        with pytest.raises(DataError, match=r"train.jsonl:7: --label-key 'label'"):
            self.MULTI.sample(raw(messages=list(self.TEXT), label=label))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_labels": None}, "--num-labels of at least 2, got None"),
            ({"num_labels": 1}, "--num-labels of at least 2, got 1"),
            ({"label_key": None}, "needs --label-key"),
            ({"multimodal_keys": {"image": "images"}}, "classifies text only"),
            ({"training_mode": "cpt"}, "does not go with the training mode cpt"),
        ],
    )
    def test_what_does_not_go_with_it_is_refused(self, options, message):
        with pytest.raises(ConfigError, match=message):
            reader(**{"task_type": "seq_cls", "label_key": "label", "num_labels": 2, **options})


def test_documents_are_text_or_one_assistant_message():
    documents = reader(training_mode="cpt", input_key="text")
    assert documents.text(raw(text="Once.")) == "Once."
    assert documents.text(raw(text=[{"role": "assistant", "content": "Once."}])) == "Once."
    for wrong in ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], 3):
        with pytest.raises(DataError, match=r"expects text or a list of one assistant message"):
            documents.text(raw(text=wrong))


def shorter(prompt, row):
    return prompt.upper() + str(row["n"])


def test_a_custom_prompt_function_edits_the_prompt_and_not_the_answer():
    edits = reader(input_key="q", label_key="a", custom_prompt_path=f"{__name__}.shorter")
    messages = edits.sample(raw(q="hi", a="yes", n=3)).messages
    assert [message["content"] for message in messages] == ["HI3", "yes"]
