# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# ruff: noqa: RUF001 (DeepSeek writes its tokens with full-width bars)
import copy

import pytest

from relax.engine.sft.dataset.chat_template import _CHAT_TEMPLATE_PATCHERS, render_to_text, render_with_loss_mask
from relax.engine.sft.dataset.chat_template_patch import patched_template
from relax.engine.sft.dataset.deepseek_chat_template_patch import try_patch_deepseek_chat_template
from tests.unit.engine.sft.dataset import templates
from tests.unit.engine.sft.dataset.rendering import assistant, sample, tokenizer, trained_text, user

THINKS = (user("a"), assistant("<think>\nwhy\n</think>\n\nb"))


def patched(*messages, template=templates.DEEPSEEK, **kwargs):
    result = try_patch_deepseek_chat_template(sample(*messages), template, kwargs)
    assert result is not None
    return result


@pytest.mark.parametrize(
    "template", [None, templates.CHATML, templates.QWEN3_5, templates.DEEPSEEK.replace(templates.DEEPSEEK_GATE, "")]
)
def test_other_families_and_templates_without_the_cut_are_not_touched(template):
    assert try_patch_deepseek_chat_template(sample(*THINKS), template, {}) is None


def test_the_cut_gets_a_gate_once():
    once = patched(*THINKS)
    assert once.changed
    assert once.patch_name == "deepseek_thinking"
    assert once.template.count("not (preserve_thinking is defined and preserve_thinking is true)") == 1
    again = patched(*THINKS, template=once.template)
    assert (again.template, again.changed) == (once.template, False)


@pytest.mark.parametrize(
    "template",
    [
        templates.DEEPSEEK + templates.DEEPSEEK_GATE,
        templates.DEEPSEEK.replace("[-1] %}{% endif %}", "[1] %}{% endif %}"),
    ],
    ids=["twice", "written otherwise"],
)
def test_drift_fails_fast(template):
    with pytest.raises(RuntimeError, match="looks like DeepSeek-R1's"):
        patched(*THINKS, template=template)


def test_automatic_keeps_thoughts_where_one_is_trained():
    assert patched(*THINKS).kwargs == {"preserve_thinking": True}
    assert patched(user("a"), assistant("b")).kwargs == {}
    assert patched(user("a"), {**THINKS[1], "learn": False}, user("c"), assistant("d")).kwargs == {}


def test_booleans_are_obeyed_other_values_refused_and_the_mapping_stays():
    given = {"preserve_thinking": False, "x": 1}
    before = copy.deepcopy(given)
    assert patched(*THINKS, **given).kwargs == {"preserve_thinking": False, "x": 1}
    assert given == before
    with pytest.raises(ValueError, match="true, false or null"):
        patched(*THINKS, preserve_thinking="false")


def test_both_paths_show_and_train_the_thought_and_the_tokenizer_stays():
    by = tokenizer(templates.DEEPSEEK)
    text = render_to_text(sample(*THINKS), by)
    masked = render_with_loss_mask(sample(*THINKS), by)
    assert text == "<s><｜User｜>a<｜Assistant｜><think>\nwhy\n</think>\n\nb<｜end▁of▁sentence｜>"
    assert by(text, add_special_tokens=False)["input_ids"] == masked.token_ids.tolist()
    assert trained_text(masked, by) == "why\n</think>\n\nb<｜end▁of▁sentence｜>"
    assert by.chat_template == templates.DEEPSEEK


def test_no_overlap_with_qwen():
    _, kwargs = patched_template(sample(*THINKS), templates.DEEPSEEK, {}, _CHAT_TEMPLATE_PATCHERS)
    assert set(kwargs) == {"chat_template", "preserve_thinking"}
