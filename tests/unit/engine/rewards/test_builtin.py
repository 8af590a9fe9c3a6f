# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import pytest

from relax.engine.rewards.builtin import built_in_reward
from relax.engine.rewards.symbolic import equal_answers
from relax.utils.types import Sample


async def equal_here(answer, gold):
    return equal_answers(answer, gold)


async def reward(name, response, label, index=0):
    return await built_in_reward(name, Sample(group_index=1, index=index, response=response, label=label), equal_here)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "response", "label", "expected"),
    [
        ("math", r"so \boxed{\frac12}<|im_end|>", "0.5", 1.0),
        ("math", r"\boxed{}", "5", 0.0),
        ("math", r"\boxed{4} or \boxed{5}", 5, 1.0),
        ("math", "3", 3, 1.0),
        ("math", "", 3, 0.0),
        ("math", "7", ["5", "7"], 1.0),
        ("math", r"\boxed{7}", r"The solution is \boxed{7}", 1.0),
        ("deepscaler", r"<think>x</think>\boxed{3}", "3", 1.0),
        ("deepscaler", r"\boxed{3}", "3", 0.0),
        ("gsm8k", "She has 3 + 4 = 7 apples.\n#### 7", "3+4=<<3+4=7>>7\n#### 7", 1.0),
        ("gsm8k", r"the total is \boxed{1,200}", "#### 1200", 1.0),
        ("gsm8k", "It costs $18.", "18", 1.0),
        ("gsm8k", "no number", "18", 0.0),
        ("multiple_choice", r"\boxed{B}", "B", 1.0),
        ("multiple_choice", r"\boxed{\text{B}}", "B", 1.0),
        ("multiple_choice", "(B)", "B", 1.0),
        ("multiple_choice", "B. One", "B. One", 1.0),
        ("multiple_choice", "Thinking.\n<answer>C</answer>", "C", 1.0),
        ("multiple_choice", "The answer is (D).", "D", 1.0),
        ("multiple_choice", "line\nline\nB", "B", 1.0),
        ("multiple_choice", r"\boxed{A}", "B", 0.0),
        ("multiple_choice", "", "B", 0.0),
        ("openr1mm", "<think>..</think><answer>2\\sqrt{3}</answer>", "<answer>\\sqrt{12}</answer>", 1.0),
        ("openr1mm", "<answer>a cat</answer>", "a cat", 1.0),
        ("openr1mm", "<answer></answer>", "5", 0.0),
        ("exact_match", " 12<|im_end|>", "12", 1.0),
        ("exact_match", "12.", "12", 0.0),
        ("boxed_exact_match", r"it is \boxed{12}", "12", 1.0),
        ("boxed_exact_match", "12", "12", 0.0),
        ("boxed_math", r"so \boxed{1/2}", "0.5", 1.0),
        # precision 2/2, recall 2/3 over words without articles: 2 * 2 / (2 + 3) = 0.8
        ("f1", "The red car", "a fast red car", 0.8),
        ("f1", "bus", "a fast red car", 0.0),
        ("dummy", "anything", "x", 0.0),
    ],
)
async def test_score(name, response, label, expected):
    assert await reward(name, response, label) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("response", "score", "pred"),
    [
        ("Work.\nAnswer: 34", 1.0, "34"),
        (r"Answer: \boxed{34}", 1.0, "34"),
        ("Answer: 33", 0.0, "33"),
        ("none", 0.0, ""),
    ],
)
async def test_dapo_reports_score_accuracy_and_prediction(response, score, pred):
    assert await reward("dapo", response, "34") == {"score": score, "acc": score == 1.0, "pred": pred}


async def test_random_depends_on_the_sample_only_and_takes_both_values():
    first = [await reward("random", "", "", index) for index in range(64)]
    assert first == [await reward("random", "other", "x", index) for index in range(64)]
    assert set(first) == {0.0, 1.0} and 16 < sum(first) < 48
