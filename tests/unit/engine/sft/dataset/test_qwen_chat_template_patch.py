# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The seven groups of tests that every chat template patch needs, for Qwen's history of thoughts."""

import copy
from pathlib import Path

import pytest

import relax
from relax.engine.sft.dataset import chat_template_patch
from relax.engine.sft.dataset.chat_template import _CHAT_TEMPLATE_PATCHERS, render_to_text, render_with_loss_mask
from relax.engine.sft.dataset.chat_template_patch import TemplatePatchResult, patched_template
from relax.engine.sft.dataset.qwen_chat_template_patch import try_patch_qwen_chat_template
from tests.unit.engine.sft.dataset import templates
from tests.unit.engine.sft.dataset.rendering import assistant, sample, tokenizer, tool, trained_text, user

THOUGHT = "<think>\nadd them\n</think>\n\n"
# A thought that is trained, before the last ordinary user message.
HISTORY = (user("1+1?"), assistant(THOUGHT + "2"), user("And?"), assistant("<think>\nno\n</think>\n\nthat is all"))
# The same, not trained.
UNLEARNED = (HISTORY[0], {**HISTORY[1], "learn": False}, *HISTORY[2:])


def result_of(*messages, template=templates.QWEN3_5, **kwargs) -> TemplatePatchResult:
    result = try_patch_qwen_chat_template(sample(*messages), template, kwargs)
    assert result is not None
    return result


class TestUnrelatedTemplates:
    @pytest.mark.parametrize("template", [None, "", "hello", templates.CHATML, templates.QWEN2_5, templates.LLAMA3])
    def test_are_not_touched(self, template):
        assert try_patch_qwen_chat_template(sample(*HISTORY), template, {"preserve_thinking": "x"}) is None

    def test_go_through_the_dispatcher_as_they_came(self):
        kwargs = {"preserve_thinking": "any", "enable_thinking": False}
        assert patched_template(sample(*HISTORY), templates.LLAMA3, kwargs, _CHAT_TEMPLATE_PATCHERS) == (
            templates.LLAMA3,
            kwargs,
        )


class TestLegacyAndNative:
    def test_the_old_gate_of_qwen3_5_becomes_that_of_qwen3_6(self):
        result = result_of(*HISTORY)
        assert result.changed
        assert result.patch_name == "qwen_history_thinking"
        assert result.template == templates.QWEN3_6

    def test_qwen3_has_the_same_gate(self):
        result = result_of(*HISTORY, template=templates.QWEN3)
        assert result.changed
        assert result.template == templates.QWEN3.replace(templates.LEGACY_GATE, templates.NATIVE_GATE)

    @pytest.mark.parametrize("template", [templates.QWEN3_6, templates.QWEN3_8])
    def test_a_native_gate_stays(self, template):
        result = result_of(*HISTORY, template=template)
        assert not result.changed
        assert result.template == template

    def test_patching_the_patched_changes_nothing(self):
        once = result_of(*HISTORY)
        again = result_of(*HISTORY, template=once.template, **once.kwargs)
        assert (again.template, again.kwargs, again.changed) == (once.template, once.kwargs, False)

    def test_the_changed_template_is_among_the_arguments_and_a_native_one_is_not(self):
        _, patched = patched_template(sample(*HISTORY), templates.QWEN3_5, {}, _CHAT_TEMPLATE_PATCHERS)
        assert patched == {"chat_template": templates.QWEN3_6, "preserve_thinking": True}
        _, native = patched_template(sample(*HISTORY), templates.QWEN3_6, {}, _CHAT_TEMPLATE_PATCHERS)
        assert native == {"preserve_thinking": True}


class TestDriftFailsFast:
    def test_a_gate_that_is_written_otherwise(self):
        drifted = templates.QWEN3_5.replace(templates.LEGACY_GATE, "{%- if loop.index > ns.last_query_index %}")
        with pytest.raises(
            RuntimeError, match=r"train.jsonl:3: .*looks like Qwen's.*loop.index > ns.last_query_index"
        ):
            result_of(*HISTORY, template=drifted)

    def test_a_gate_that_stands_twice(self):
        twice = templates.QWEN3_5 + templates.LEGACY_GATE + "{%- endif %}"
        with pytest.raises(RuntimeError, match="once"):
            result_of(*HISTORY, template=twice)

    def test_an_old_and_a_native_gate_together(self):
        both = templates.QWEN3_5 + templates.NATIVE_GATE + "{%- endif %}"
        with pytest.raises(RuntimeError, match="history gate"):
            result_of(*HISTORY, template=both)

    def test_an_old_gate_beside_another_use_of_the_argument(self):
        conflict = "{%- set keep = preserve_thinking %}" + templates.QWEN3_5
        with pytest.raises(RuntimeError, match="beside another use of preserve_thinking"):
            result_of(*HISTORY, template=conflict)

    def test_a_gate_behind_a_name_of_its_own(self):
        named = "{%- set shown = loop.index0 > ns.last_query_index %}{%- if shown %}"
        with pytest.raises(RuntimeError, match=r"found \{%- set shown = loop.index0"):
            result_of(*HISTORY, template=templates.QWEN3_5.replace(templates.LEGACY_GATE, named))

    def test_a_template_that_shows_every_thought_is_not_touched(self):
        always = templates.QWEN3_5.replace(templates.LEGACY_GATE, "{%- if true %}")
        assert try_patch_qwen_chat_template(sample(*HISTORY), always, {}) is None


class TestArgumentsAndPolicy:
    @pytest.mark.parametrize("given", [{}, {"preserve_thinking": None}])
    def test_automatic_is_true_for_a_trained_thought_of_history(self, given):
        assert result_of(*HISTORY, **given).kwargs == {"preserve_thinking": True}

    @pytest.mark.parametrize("given", [{}, {"preserve_thinking": None}])
    @pytest.mark.parametrize(
        "messages",
        [
            UNLEARNED,
            (user("a"), assistant("b"), user("c"), assistant(THOUGHT + "d")),  # only the last turn thinks
            (user("a"), assistant(THOUGHT, "add"), tool("2"), assistant("d")),  # one user: no history
            (user("a"), assistant(THOUGHT, "add"), user("<tool_response>\n2\n</tool_response>"), assistant("d")),
            (user("a"), assistant("b"), user("c </think>"), assistant("d")),  # the user's words are no thought
        ],
        ids=["unlearned", "last turn", "one query", "wrapped tool answer", "user"],
    )
    def test_automatic_leaves_the_templates_own_way(self, messages, given):
        assert result_of(*messages, **given).kwargs == {}

    def test_a_wrapped_tool_answer_is_no_boundary_but_the_next_user_is(self):
        wrapped = user("<tool_response>\n2\n</tool_response>")
        messages = (user("a"), assistant(THOUGHT, "add"), wrapped, assistant("d"), user("e"), assistant("f"))
        assert result_of(*messages).kwargs == {"preserve_thinking": True}

    def test_an_explicit_learn_true_counts_as_the_default_does(self):
        learned = (HISTORY[0], {**HISTORY[1], "learn": True}, *HISTORY[2:])
        assert result_of(*learned).kwargs == {"preserve_thinking": True}

    @pytest.mark.parametrize("value", [True, False])
    @pytest.mark.parametrize("messages", [HISTORY, UNLEARNED])
    def test_a_boolean_is_obeyed(self, messages, value):
        assert result_of(*messages, preserve_thinking=value).kwargs == {"preserve_thinking": value}

    @pytest.mark.parametrize("value", ["false", "true", 0, 1, [], {}])
    def test_any_other_value_is_an_error(self, value):
        with pytest.raises(ValueError, match="must be true, false or null"):
            result_of(*HISTORY, preserve_thinking=value)

    def test_other_arguments_stay_and_the_given_mapping_is_not_changed(self):
        given = {"preserve_thinking": None, "enable_thinking": False}
        before = copy.deepcopy(given)
        assert result_of(*HISTORY, **given).kwargs == {"preserve_thinking": True, "enable_thinking": False}
        assert given == before

    def test_a_rows_null_overrides_the_runs_false(self):
        row = sample(*HISTORY, metadata={"apply_chat_template_kwargs": {"preserve_thinking": None}})
        by, run = tokenizer(templates.QWEN3_5), {"preserve_thinking": False}
        assert "add them" not in render_to_text(sample(*HISTORY), by, chat_template_kwargs=run)
        assert "add them" in render_to_text(row, by, chat_template_kwargs=run)

    def test_a_rows_value_wins_over_the_runs(self):
        row = sample(*HISTORY, metadata={"apply_chat_template_kwargs": {"preserve_thinking": False}})
        by = tokenizer(templates.QWEN3_5)
        assert "add them" not in render_to_text(row, by, chat_template_kwargs={"preserve_thinking": True})

    def test_kept_thoughts_of_unlearned_messages_are_shown_and_not_trained(self):
        by, keep = tokenizer(templates.QWEN3_5), {"preserve_thinking": True}
        assert "add them" in render_to_text(sample(*UNLEARNED), by, chat_template_kwargs=keep)
        masked = render_with_loss_mask(sample(*UNLEARNED), by, chat_template_kwargs=keep)
        assert trained_text(masked, by) == "no\n</think>\n\nthat is all<|im_end|>"

    def test_false_leaves_the_thought_of_the_present_turn(self):
        text = render_to_text(
            sample(*HISTORY), tokenizer(templates.QWEN3_5), chat_template_kwargs={"preserve_thinking": False}
        )
        assert "<think>\nno\n</think>" in text


class TestBothPathsAgree:
    @pytest.mark.parametrize("template", [templates.QWEN3, templates.QWEN3_5, templates.QWEN3_6, templates.QWEN3_8])
    @pytest.mark.parametrize("kwargs", [{}, {"preserve_thinking": False}, {"preserve_thinking": True}])
    def test_tokens_are_those_of_the_text(self, template, kwargs):
        by = tokenizer(template)
        text = render_to_text(sample(*HISTORY), by, chat_template_kwargs=kwargs)
        masked = render_with_loss_mask(sample(*HISTORY), by, chat_template_kwargs=kwargs)
        assert by(text, add_special_tokens=False)["input_ids"] == masked.token_ids.tolist()
        assert ("add them" in text) == (kwargs.get("preserve_thinking") is not False)
        assert ("add them" in trained_text(masked, by)) == ("add them" in text)

    def test_old_and_native_templates_give_the_same_text(self):
        assert render_to_text(sample(*HISTORY), tokenizer(templates.QWEN3_5)) == render_to_text(
            sample(*HISTORY), tokenizer(templates.QWEN3_6)
        )


class TestNothingIsChanged:
    def test_the_tokenizers_template_stays(self):
        by = tokenizer(templates.QWEN3_5)
        render_to_text(sample(*HISTORY), by)
        render_with_loss_mask(sample(*HISTORY), by)
        assert by.chat_template == templates.QWEN3_5

    def test_the_sample_stays(self):
        messages = copy.deepcopy(HISTORY)
        row = sample(*messages, metadata={"apply_chat_template_kwargs": {"preserve_thinking": None}})
        render_with_loss_mask(row, tokenizer(templates.QWEN3_5))
        assert row.messages == HISTORY
        assert row.metadata == {"apply_chat_template_kwargs": {"preserve_thinking": None}}


class TestExclusion:
    @pytest.mark.parametrize(
        "template",
        [
            getattr(templates, name)
            for name in dir(templates)
            if name.isupper() and name != "SPECIAL" and name[0] != "_"
        ],
    )
    def test_no_template_is_recognised_twice(self, template):
        found = [patcher(sample(*HISTORY), template, {}) for patcher in _CHAT_TEMPLATE_PATCHERS]
        assert sum(result is not None for result in found) <= 1

    def test_two_patches_that_recognise_one_template_are_an_error(self):
        def other(sample, template, kwargs):
            return TemplatePatchResult(template, kwargs, "foo_history_compatibility", changed=False)

        for order in ((other, try_patch_qwen_chat_template), (try_patch_qwen_chat_template, other)):
            with pytest.raises(RuntimeError, match="foo_history_compatibility"):
                patched_template(sample(*HISTORY), templates.QWEN3_5, {}, order)


@pytest.mark.parametrize(("template", "state"), [(templates.QWEN3_5, "patched"), (templates.QWEN3_6, "native")])
def test_the_log_tells_the_branch_and_the_final_value_once(caplog, template, state):
    chat_template_patch._tell.cache_clear()
    with caplog.at_level("INFO"):
        for _ in range(3):
            render_to_text(sample(*HISTORY), tokenizer(template))
    lines = [record.message for record in caplog.records if "source=" in record.message]
    assert lines == [f"sft chat template source=qwen_history_thinking ({state}) preserve_thinking=True"]


def test_nothing_but_the_data_of_supervised_training_repairs_templates():
    package = Path(relax.__path__[0])
    inside = package / "engine/sft/dataset"
    others = [path for path in package.rglob("*.py") if inside not in path.parents]
    assert [path.name for path in others if "chat_template_patch" in path.read_text()] == []
