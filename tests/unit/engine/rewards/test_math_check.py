# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import pytest

from relax.engine.rewards.math_check import quick_verdict
from relax.engine.rewards.symbolic import equal_answers

PAIRS = [  # answer, gold, equal
    ("1/2", "0.5", True),
    ("0.5", r"\frac12", True),
    ("1/2", r"\frac12", True),
    (r"\dfrac{3}{4}", "0.75", True),
    ("1,000", "1000", True),
    ("1{,}000", "1000", True),
    ("1000.0", "1000", True),
    ("033", "33", True),
    ("-5", "5", False),
    ("6", "5", False),
    ("(1,2)", "(2,1)", False),
    ("(1,2)", "(1, 2)", True),
    (r"\left(1,2\right)", "(1,2)", True),
    ("[1,2]", "(1,2)", False),
    (r"\{1,2\}", r"\{2,1\}", True),
    (r"\{1,2\}", r"\{1,3\}", False),
    (r"50\%", "50", True),
    (r"50\%", "0.5", True),
    (r"50\%", "5", False),
    ("10%", r"10\%", True),
    ("x=3", "3", True),
    ("3", "x=3", True),
    ("x=4", "3", False),
    ("", "5", False),
    (" ", "5", False),
    (r"5\text{ cm}", "5", True),
    (r"5\,\mathrm{cm}", "5", True),
    (r"90^\circ", "90", True),
    (r"\$5", "5", True),
    ("$7$", "7", True),
    ("7.", "7", True),
    (r"\text{7}", "7", True),
    (r"2\sqrt{3}", r"\sqrt{12}", True),
    (r"\sqrt{2}", "2", False),
    ("x^2+2x+1", "(x+1)^2", True),
    ("2^{10}", "1024", True),
    (r"(-\infty, 2]", r"(-\infty,2]", True),
    ("0.333", r"\frac{1}{3}", False),
    ("1/0", "5", False),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("answer", "gold", "equal"), PAIRS)
def test_pairs_V3(answer, gold, equal):
    assert equal_answers(answer, gold) is equal


@pytest.mark.parametrize(
    ("answer", "gold"), [("1,000", "1000"), ("3", "4"), ("1/2", "0.5"), (r"\pi", r"\pi "), ("", "x")]
)
def test_plain_numbers_and_equal_texts_need_no_mathematics(answer, gold):
    assert quick_verdict(answer, gold) is not None


def test_what_needs_mathematics_is_left_open():
    assert quick_verdict(r"\frac12", "0.5") is None


HOSTILE = [
    "__import__('os').system('touch {path}')",
    r"\text{{__import__('os').system('touch {path}')}}",
    "exec(\"open('{path}','w')\")",
    "[].__class__.__base__.__subclasses__()",
    "1+__import__('pathlib').Path('{path}').touch()",
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("text", HOSTILE)
def test_model_output_is_never_executed_V4(text, tmp_path):
    path = tmp_path / "pwned"
    for answer, gold in ((text.format(path=path), "5"), ("5+x", text.format(path=path))):
        assert equal_answers(answer, gold) is False
    assert not path.exists()
