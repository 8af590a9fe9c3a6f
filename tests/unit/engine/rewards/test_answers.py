# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import pytest

from relax.engine.rewards.answers import boxed, choice_letter, final_text, label_text, stated_answer


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{5}", "5"),
        (r"first \boxed{1}, then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed 5.", "5"),
        (r"\fbox{7}", "7"),
        (r"\boxed{}", ""),
        (r"\boxed{\frac{1}{2}", ""),  # cut inside the box
        ("no box", None),
    ],
)
def test_last_box_with_nested_braces(text, content):
    assert boxed(text) == content


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<think>\boxed{1}</think> \boxed{2}<|im_end|>", "2"),
        ("long\ntext <answer> 4 </answer>", "4"),
        ("Some work.\nThe answer is 12.", "12"),
        ("Work\nAnswer: \\boxed{$3$}", "$3$"),
        ("42<|im_end|>", "42"),
        ("a first line\nand a second", None),
        ("", None),
        ("\\boxed{9} " + "x" * 400, "9"),  # an answer far before the end is found
    ],
)
def test_stated_answer(text, answer):
    assert stated_answer(text) == answer


def test_final_text_drops_thinking_and_end_tokens_only():
    assert final_text("<think>a</think>\n b <|im_end|><|endoftext|>\n") == "b"
    assert final_text("a <|x|> b") == "a <|x|> b"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("B. One", "B"),
        ("b)", "B"),
        (r"\text{B}", "B"),
        (r"\textbf{(C)}", "C"),
        ("**D**", "D"),
        ("B because of it", "B"),
        ("A cat", None),
        ("Because", None),
        ("", None),
    ],
)
def test_choice_letter_V6(text, letter):
    assert choice_letter(text) == letter


@pytest.mark.parametrize(
    ("label", "text"), [(34, "34"), (34.0, "34"), (0.5, "0.5"), (" a ", "a"), (None, ""), (True, "True")]
)
def test_labels_of_any_type_become_text(label, text):
    assert label_text(label) == text
