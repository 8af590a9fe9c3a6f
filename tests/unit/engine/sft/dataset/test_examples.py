# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest

from relax.data.datasets import open_dataset
from relax.engine.sft.dataset.examples import (
    PreferenceExample,
    Refused,
    SftDataOptions,
    SftExample,
    SftExamples,
    open_examples,
    to_sequences,
)
from relax.utils.errors import ConfigError, DataError, MediaError, UserCodeError
from tests.builders import tiny_tokenizer, tiny_vl_processor, write_jsonl
from tests.unit.engine.sft.dataset import templates
from tests.unit.engine.sft.dataset.rendering import tokenizer

ROWS = [{"q": f"What is {n} plus {n}?", "a": f"It is {2 * n}."} for n in range(6)]
PROMPT = "<|im_start|>user\nWhat is 3 plus 3?<|im_end|>\n<|im_start|>assistant\n"
ANSWER = "It is 6.<|im_end|>"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def vision_model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("vision")
    tiny_vl_processor().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("data") / "train.jsonl", ROWS)


def options(model: Path, files: Path, **changed) -> SftDataOptions:
    return SftDataOptions(**{"files": str(files), "model": str(model), "input_key": "q", "label_key": "a", **changed})


def say(ids) -> str:
    return tiny_tokenizer().decode(list(ids), skip_special_tokens=False)


class TestText:
    def test_tokens_and_mask_of_a_row(self, model, rows):
        examples = SftExamples(options(model, rows))
        assert len(examples) == 6
        example = examples.example(3)
        assert isinstance(example, SftExample)
        assert say(example.tokens) == PROMPT + ANSWER + "\n"
        assert say(example.tokens[example.loss_mask == 1]) == ANSWER
        assert (example.tokens.dtype, example.loss_mask.dtype, example.row) == (np.int32, np.uint8, 3)

    def test_an_example_depends_on_its_row_alone(self, model, rows):
        forward, backward = (
            SftExamples(options(model, rows)),
            SftExamples(pickle.loads(pickle.dumps(options(model, rows)))),
        )
        first = [forward.example(row).tokens.tolist() for row in range(6)]
        again = [backward.example(row).tokens.tolist() for row in reversed(range(6))]
        assert first == again[::-1]

    def test_the_digest_is_that_of_the_files(self, model, rows):
        assert SftExamples(options(model, rows)).digest == open_dataset(str(rows)).digest

    def test_a_list_of_files_with_a_slice(self, model, rows):
        examples = SftExamples(options(model, f"['{rows}@[4:]','{rows}@[0:1]']"))
        assert [say(examples.example(row).tokens).count(f"What is {n} ") for row, n in enumerate((4, 5, 0))] == [
            1,
            1,
            1,
        ]

    def test_a_sequence_starts_its_response_at_the_first_trained_token(self, model, rows):
        example = SftExamples(options(model, rows)).example(3)
        (sequence,) = to_sequences(example, group=11)
        assert sequence.uid == (11, 0)
        assert say(sequence.tokens[: sequence.prompt_len]) == PROMPT
        assert say(sequence.tokens[sequence.prompt_len :][sequence.loss_mask == 1]) == ANSWER
        assert len(sequence.loss_mask) == sequence.response_len

    def test_a_response_at_the_first_token_starts_at_the_second(self):
        tokens = np.arange(4, dtype=np.int32)
        (sequence,) = to_sequences(SftExample(tokens, np.asarray([0, 1, 1, 0], np.uint8), 0), group=0)
        assert (sequence.prompt_len, sequence.loss_mask.tolist()) == (1, [1, 1, 0])

    def test_a_row_without_a_learned_answer_is_an_error(self, model, tmp_path):
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "learn": False}]
        file = write_jsonl(tmp_path / "x.jsonl", [{"q": messages}])
        with pytest.raises(DataError, match=r"x.jsonl:1: no assistant message of the row is learned"):
            SftExamples(options(model, file, label_key=None)).example(0)


class TestOversize:
    """The row has 3 user and header parts; its length is measured, and the rule is exact around it."""

    @pytest.fixture
    def length(self, model, rows) -> int:
        return len(SftExamples(options(model, rows)).example(3).tokens)

    @pytest.mark.parametrize("strategy", ["keep", "skip", "truncate_left", "truncate_right"])
    def test_up_to_the_limit_nothing_happens_D16(self, model, rows, length, strategy):
        for limit in (length, length + 1):
            example = SftExamples(options(model, rows, max_tokens=limit, oversize_strategy=strategy)).example(3)
            assert len(example.tokens) == length

    def test_keep_leaves_it_whole(self, model, rows, length):
        assert len(SftExamples(options(model, rows, max_tokens=length - 1)).example(3).tokens) == length

    def test_skip_refuses_and_says_why(self, model, rows, length):
        skips = options(model, rows, max_tokens=length - 1, oversize_strategy="skip")
        refused = SftExamples(skips).example(3)
        assert refused == Refused(
            "oversize",
            3,
            str(rows),
            f"{rows}:4: {length} tokens, --max-tokens-per-gpu x --context-parallel-size is {length - 1}",
        )
        assert skips.may_refuse
        assert not options(model, rows).may_refuse

    def test_left_keeps_the_end_and_right_the_start(self, model, rows, length):
        whole = SftExamples(options(model, rows)).example(3)
        for strategy, kept in (("truncate_left", slice(2, None)), ("truncate_right", slice(None, -2))):
            cut = SftExamples(options(model, rows, max_tokens=length - 2, oversize_strategy=strategy)).example(3)
            assert cut.tokens.tolist() == whole.tokens[kept].tolist()
            assert cut.loss_mask.tolist() == [0, *whole.loss_mask[kept][1:].tolist()]

    def test_a_cut_that_leaves_nothing_to_train_is_refused(self, model, rows):
        cut = SftExamples(options(model, rows, max_tokens=4, oversize_strategy="truncate_right")).example(3)
        assert isinstance(cut, Refused)
        assert cut.reason == "nothing_to_train"

    def test_the_first_token_is_never_trained_even_after_a_cut(self, model, rows):
        # The last 3 tokens are all of the answer and of the white space behind it.
        cut = SftExamples(options(model, rows, max_tokens=3, oversize_strategy="truncate_left")).example(3)
        assert cut.loss_mask.tolist() == [0, 1, 0]

    def test_a_custom_function_decides(self, model, rows, length):
        def made(name, limit):
            path = f"{__name__}.{name}"
            custom = {"oversize_strategy": "custom", "oversize_custom_function_path": path, "max_tokens": limit}
            return SftExamples(options(model, rows, **custom))

        assert len(made("last_five", length - 1).example(3).tokens) == 5
        assert made("nothing", length - 1).example(3).reason == "oversize"
        assert len(made("nothing", length).example(3).tokens) == length
        with pytest.raises(UserCodeError, match=rf"unchanged.*returned {length} tokens, {length - 1} are allowed"):
            made("unchanged", length - 1).example(3)
        with pytest.raises(UserCodeError, match=r"must return an SftExample"):
            made("a_list", length - 1).example(3)

    def test_custom_needs_its_function(self, model, rows):
        with pytest.raises(ConfigError, match=r"go together"):
            options(model, rows, oversize_strategy="custom")


def last_five(example, max_tokens):
    return dataclasses.replace(example, tokens=example.tokens[-5:], loss_mask=example.loss_mask[-5:])


def nothing(example, max_tokens):
    return None


def unchanged(example, max_tokens):
    return example


def a_list(example, max_tokens):
    return []


class TestImages:
    @pytest.fixture
    def picture(self, tmp_path) -> Path:
        from PIL import Image

        pixels = np.arange(32 * 64 * 3, dtype=np.uint8).reshape(32, 64, 3)
        Image.fromarray(pixels).save(tmp_path / "a.png")
        return tmp_path / "a.png"

    def turns(self, text: str) -> list[dict]:
        return [{"from": "human", "value": text}, {"from": "gpt", "value": "A digit."}]

    def made(self, vision_model, tmp_path, row, **changed) -> SftExamples:
        file = write_jsonl(tmp_path / "train.jsonl", [row])
        sharegpt = {"from": "role", "value": "content", "human": "user", "gpt": "assistant"}
        keys = {"input_key": "conversations", "label_key": None, "conversation_key_map": sharegpt}
        return SftExamples(options(vision_model, file, multimodal_keys={"image": "images"}, **keys, **changed))

    def test_the_placeholder_becomes_as_many_tokens_as_the_image_has(self, vision_model, tmp_path, picture):
        row = {"conversations": self.turns("Which digit?<image>"), "images": ["a.png"]}
        example = self.made(vision_model, tmp_path, row).example(0)
        # 32 x 64 pixels in patches of 8, merged 2 x 2: 2 x 4 tokens.
        pad = tiny_tokenizer().convert_tokens_to_ids("<|image_pad|>")
        assert (example.tokens == pad).sum() == 8
        assert [(item.kind, item.num_tokens) for item in example.media] == [("image", 8)]
        assert say(example.tokens) == (
            "<|im_start|>user\nWhich digit?<|vision_start|>" + 8 * "<|image_pad|>" + "<|vision_end|><|im_end|>\n"
            "<|im_start|>assistant\nA digit.<|im_end|>\n"
        )
        assert say(example.tokens[example.loss_mask == 1]) == "A digit.<|im_end|>"

    def test_an_image_in_the_answer_is_shown_and_not_trained(self, vision_model, tmp_path, picture):
        turns = [{"from": "human", "value": "Draw."}, {"from": "gpt", "value": "Here:<image>"}]
        example = self.made(vision_model, tmp_path, {"conversations": turns, "images": ["a.png"]}).example(0)
        assert say(example.tokens[example.loss_mask == 1]) == "Here:<|vision_start|><|vision_end|><|im_end|>"

    @pytest.mark.parametrize(
        ("text", "images", "message"),
        [
            ("<image><image>", ["a.png"], "the text has 2 <image> placeholders, the row has 1 image entries"),
            ("no place", ["a.png"], "the text has 0 <image> placeholders, the row has 1 image entries"),
            ("<image>", ["missing.png"], "missing.png"),
        ],
    )
    def test_an_invalid_image_is_an_error_or_skipped(self, vision_model, tmp_path, picture, text, images, message):
        row = {"conversations": self.turns(text), "images": images}
        with pytest.raises(MediaError, match=message):
            self.made(vision_model, tmp_path, row).example(0)
        refused = self.made(vision_model, tmp_path, row, invalid_multimodal_strategy="skip").example(0)
        assert isinstance(refused, Refused)
        assert refused.reason == "invalid_multimodal"
        assert message in refused.detail

    def test_skip_does_not_hide_other_errors(self, vision_model, tmp_path, picture):
        made = self.made(vision_model, tmp_path, {"images": ["a.png"]}, invalid_multimodal_strategy="skip")
        with pytest.raises(DataError, match=r"SFT row missing prompt key"):
            made.example(0)

    def test_a_cut_takes_a_whole_image(self, vision_model, tmp_path, picture):
        row = {"conversations": self.turns("<image>Which digit?"), "images": ["a.png"]}
        whole = self.made(vision_model, tmp_path, row).example(0)
        pad = tiny_tokenizer().convert_tokens_to_ids("<|image_pad|>")
        behind = len(whole.tokens) - int(np.flatnonzero(whole.tokens == pad)[-1]) - 1
        for limit, media in ((behind, 0), (behind + 7, 0), (behind + 8, 1)):
            cut = self.made(vision_model, tmp_path, row, max_tokens=limit, oversize_strategy="truncate_left").example(
                0
            )
            assert len(cut.media) == media
            assert (cut.tokens == pad).sum() == 8 * media


class TestClassification:
    def test_the_last_token_carries_the_class(self, model, tmp_path):
        file = write_jsonl(tmp_path / "x.jsonl", [{"messages": [{"role": "user", "content": "good"}], "label": 1}])
        seq_cls = {"task_type": "seq_cls", "num_labels": 2, "input_key": "messages", "label_key": "label"}
        example = SftExamples(options(model, file, **seq_cls)).example(0)
        assert example.label == 1
        assert say(example.tokens) == "<|im_start|>user\ngood<|im_end|>\n"
        assert example.loss_mask.tolist() == [0] * (len(example.tokens) - 1) + [1]
        cut = SftExamples(options(model, file, **seq_cls, max_tokens=3, oversize_strategy="truncate_right")).example(0)
        assert cut.loss_mask.tolist() == [0, 0, 1]


class TestContinuedPreTraining:
    def test_a_document_is_trained_whole_and_closed_once(self, model, tmp_path):
        file = write_jsonl(tmp_path / "x.jsonl", [{"text": "The answer"}])
        cpt = {"training_mode": "cpt", "input_key": "text", "label_key": None}
        raw = SftExamples(options(model, file, **cpt)).example(0)
        assert say(raw.tokens) == "The answer<|im_end|>"
        assert raw.loss_mask.tolist() == [0] + [1] * (len(raw.tokens) - 1)
        qwen = SftExamples(options(model, file, **cpt, cpt_template="qwen3_5")).example(0)
        assert say(qwen.tokens) == "The answer<|endoftext|>"

    def test_an_end_that_the_document_has_is_not_doubled(self, model, tmp_path):
        file = write_jsonl(tmp_path / "x.jsonl", [{"text": "The answer<|im_end|>"}])
        example = SftExamples(options(model, file, training_mode="cpt", input_key="text", label_key=None)).example(0)
        assert say(example.tokens) == "The answer<|im_end|>"


class TestPreferences:
    def test_a_pair_gives_two_sequences_of_one_group(self, model, tmp_path):
        file = write_jsonl(tmp_path / "x.jsonl", [{"prompt": "q", "chosen": "good", "rejected": ""}])
        pairs = options(model, file, training_mode="preference", input_key="prompt", label_key=None)
        example = SftExamples(pairs).example(0)
        assert isinstance(example, PreferenceExample)
        chosen, rejected = to_sequences(example, group=5)
        assert (chosen.uid, rejected.uid) == ((5, 0), (5, 1))
        trained = [say(s.tokens[s.prompt_len :][s.loss_mask == 1]) for s in (chosen, rejected)]
        assert trained == ["good<|im_end|>", "<|im_end|>"]
        assert say(chosen.tokens[: chosen.prompt_len]) == say(rejected.tokens[: rejected.prompt_len])


class Shouting(SftExamples):
    """A user's class: every message in capitals."""

    def sample(self, raw):
        sample = super().sample(raw)
        loud = tuple({**message, "content": message["content"].upper()} for message in sample.messages)
        return dataclasses.replace(sample, messages=loud)


class Empty:
    def __init__(self, options):
        pass


def test_a_custom_class_gives_the_examples(model, rows):
    made = open_examples(options(model, rows), f"{__name__}.Shouting")
    assert say(made.example(3).tokens) == (
        "<|im_start|>user\nWHAT IS 3 PLUS 3?<|im_end|>\n<|im_start|>assistant\nIT IS 6.<|im_end|>\n"
    )
    assert type(open_examples(options(model, rows))) is SftExamples
    with pytest.raises(ConfigError, match=r"--custom-dataset-class-path=.*has no __len__, digest, example"):
        open_examples(options(model, rows), f"{__name__}.Empty")


def test_a_model_without_a_template_needs_one(tmp_path, rows):
    tokenizer(None).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"has no chat template; give one with --chat-template FILE"):
        SftExamples(options(tmp_path, rows)).example(0)
    example = SftExamples(options(tmp_path, rows, chat_template=templates.LLAMA3)).example(0)
    assert example.loss_mask.sum() > 0
