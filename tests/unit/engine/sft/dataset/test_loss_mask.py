# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# ruff: noqa: RUF001 (DeepSeek writes its tokens with full-width bars)
"""Renders and masks, written by hand for each template: what stands between « and » is trained."""

import numpy as np
import pytest

from relax.engine.sft.dataset.chat_template import ChatRenderer, render_to_text, render_with_loss_mask
from relax.engine.sft.dataset.spans import MaskError
from relax.utils.errors import DataError
from tests.unit.engine.sft.dataset import templates
from tests.unit.engine.sft.dataset.rendering import (
    assistant,
    marked,
    sample,
    system,
    tokenizer,
    tool,
    trained_text,
    user,
)

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class TestPrefixStableTemplates:
    def test_chatml_trains_every_answer_with_its_end_and_not_the_newline_behind_it_T8(self):
        dialogue = sample(system("Be brief."), user("Hi"), assistant("Hello"), user("2+2?"), assistant("4"))
        assert marked(dialogue, templates.CHATML) == (
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n«Hello<|im_end|>»\n"
            "<|im_start|>user\n2+2?<|im_end|>\n"
            "<|im_start|>assistant\n«4<|im_end|>»\n"
        )

    def test_an_unlearned_message_is_context(self):
        dialogue = sample(user("a"), assistant("b", learn=False), user("c"), assistant("d", learn=True))
        assert marked(dialogue, templates.CHATML) == (
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n«d<|im_end|>»\n"
        )

    def test_an_empty_answer_trains_the_end(self):
        assert marked(sample(user("a"), assistant("")), templates.CHATML) == (
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«<|im_end|>»\n"
        )

    def test_two_answers_in_a_row_are_two_turns(self):
        assert marked(sample(user("a"), assistant("b"), assistant("c")), templates.CHATML) == (
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«b<|im_end|>»\n"
            "<|im_start|>assistant\n«c<|im_end|>»\n"
        )

    def test_a_dialogue_that_ends_with_a_user_keeps_it_as_context(self):
        assert marked(sample(user("a"), assistant("b"), user("c")), templates.CHATML) == (
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«b<|im_end|>»\n<|im_start|>user\nc<|im_end|>\n"
        )

    def test_qwen2_5_with_tools_and_two_tool_answers_in_a_row_T7(self):
        dialogue = sample(
            user("1+1 and 2+2?"),
            assistant("", "add", "add"),
            tool("2"),
            tool("4"),
            assistant("2 and 4"),
            tools=(TOOL,),
        )
        assert marked(dialogue, templates.QWEN2_5) == (
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.\n\n# Tools\n"
            '{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}\n<|im_end|>\n'
            "<|im_start|>user\n1+1 and 2+2?<|im_end|>\n"
            "<|im_start|>assistant\n"
            '«<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>\n'
            '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call><|im_end|>»\n'
            "<|im_start|>user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n4\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n«2 and 4<|im_end|>»\n"
        )

    def test_llama3_call_and_ipython_turn(self):
        dialogue = sample(
            system(" Be brief. "), user("1+1?"), assistant("", "add"), tool("2"), assistant(" It is 2. ")
        )
        assert marked(dialogue, templates.LLAMA3) == (
            "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\n1+1?<|eot_id|>"
            '<|start_header_id|>assistant<|end_header_id|>\n\n«{"name": "add", "parameters": {"x": 1}}<|eot_id|>»'
            '<|start_header_id|>ipython<|end_header_id|>\n\n"2"<|eot_id|>'
            "<|start_header_id|>assistant<|end_header_id|>\n\n«It is 2.<|eot_id|>»"
        )

    def test_mistral_without_header_and_without_generation_prompt(self):
        dialogue = sample(user("a"), assistant("b"), user("c"), assistant("d"))
        assert marked(dialogue, templates.MISTRAL) == "<s>[INST] a[/INST]« b</s>»[INST] c[/INST]« d</s>»"

    def test_deepseek_answer_behind_a_tool_has_no_header(self):
        dialogue = sample(
            user("1+1?"), assistant("", "add"), tool("2"), tool("3"), assistant("2"), user("b"), assistant("c")
        )
        assert marked(dialogue, templates.DEEPSEEK) == (
            "<s><｜User｜>1+1?<｜Assistant｜>«<｜tool▁call▁begin｜>add\n"
            '{"x": 1}<｜tool▁call▁end｜><｜end▁of▁sentence｜>»'
            "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>2<｜tool▁output▁end｜><｜tool▁output▁begin｜>3<｜tool▁output▁end｜>"
            "<｜tool▁outputs▁end｜>«2<｜end▁of▁sentence｜>»"
            "<｜User｜>b<｜Assistant｜>«c<｜end▁of▁sentence｜>»"
        )


class TestTemplatesThatChangeHistory:
    def test_qwen3_single_turn_without_a_thought_trains_the_empty_one(self):
        # The generation prompt is `<|im_start|>assistant\n`, so the model writes the empty thought itself.
        assert marked(sample(user("a"), assistant("b")), templates.QWEN3) == (
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«<think>\n\n</think>\n\nb<|im_end|>»\n"
        )

    def test_qwen3_without_thinking_gives_the_empty_thought_T23(self):
        # With enable_thinking=false the generation prompt holds it.
        assert marked(
            sample(user("a"), assistant("b")), templates.QWEN3, chat_template_kwargs={"enable_thinking": False}
        ) == ("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n«b<|im_end|>»\n")

    def test_qwen3_history_answers_have_no_thought(self):
        dialogue = sample(user("a"), assistant("b"), user("c"), assistant("d", reasoning_content="why"))
        assert marked(dialogue, templates.QWEN3) == (
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«b<|im_end|>»\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n«<think>\nwhy\n</think>\n\nd<|im_end|>»\n"
        )

    def test_qwen3_tool_steps_behind_the_last_user(self):
        # Only the last answer gets an empty thought: the call before it was its own last message once.
        dialogue = sample(user("1+1?"), assistant("Let me add.", "add"), tool("2"), assistant("2"))
        assert marked(dialogue, templates.QWEN3) == (
            "<|im_start|>user\n1+1?<|im_end|>\n"
            "<|im_start|>assistant\n«Let me add.\n"
            '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call><|im_end|>»\n'
            "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n«<think>\n\n</think>\n\n2<|im_end|>»\n"
        )

    def test_qwen3_5_opens_the_thought_for_the_model_T2(self):
        # The generation prompt ends with `<think>\n`: what it holds is not trained, the rest of the thought is.
        assert marked(sample(user("a"), assistant("<think>\nwhy\n</think>\n\nb")), templates.QWEN3_5) == (
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n«why\n</think>\n\nb<|im_end|>»\n"
        )

    def test_qwen3_5_history_answers_start_behind_the_bare_header(self):
        dialogue = sample(user("a"), assistant("b"), user("c"), assistant("d"))
        assert marked(dialogue, templates.QWEN3_5) == (
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«b<|im_end|>»\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>\n«\n</think>\n\nd<|im_end|>»\n"
        )

    def test_qwen3_5_history_call_that_starts_like_the_opened_thought(self):
        # `<tool_call>` and `<think>` share their first characters; the trained part starts at the header's end.
        dialogue = sample(user("a"), assistant("", "add"), tool("2"), assistant("b"), user("c"), assistant("d"))
        assert marked(dialogue, templates.QWEN3_5) == (
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
            '«<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call><|im_end|>»\n'
            "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n«b<|im_end|>»\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>\n«\n</think>\n\nd<|im_end|>»\n"
        )

    def test_qwen3_5_keeps_a_trained_thought_of_history_by_itself(self):
        dialogue = sample(
            user("1+1?"),
            assistant("<think>\nadd them\n</think>\n\n", "add"),
            tool("2"),
            assistant("<think>\nsaid\n</think>\n\n2"),
            user("c"),
            assistant("<think>\nend\n</think>\n\nd"),
        )
        assert marked(dialogue, templates.QWEN3_5) == (
            "<|im_start|>user\n1+1?<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n«add them\n</think>\n\n"
            '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call><|im_end|>»\n'
            "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n<think>\n«said\n</think>\n\n2<|im_end|>»\n"
            "<|im_start|>user\nc<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n«end\n</think>\n\nd<|im_end|>»\n"
        )

    def test_qwen3_5_compressed_thought_is_absent_and_its_answer_trained(self):
        dialogue = sample(user("a"), assistant("<think>\nwhy\n</think>\n\nb"), user("c"), assistant("d"))
        assert marked(dialogue, templates.QWEN3_5, chat_template_kwargs={"preserve_thinking": False}) == (
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n«b<|im_end|>»\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>\n«\n</think>\n\nd<|im_end|>»\n"
        )

    def test_mistral_moves_the_system_text_to_the_last_user_turn(self):
        # The render of the first turn alone holds the system text in that turn: no prefix of the whole.
        dialogue = sample(system("S"), user("a"), assistant("b"), user("c"), assistant("d"))
        assert marked(dialogue, templates.MISTRAL) == "<s>[INST] a[/INST]« b</s>»[INST] S\n\nc[/INST]« d</s>»"

    def test_deepseek_r1_trains_the_thought_that_the_template_cuts(self):
        assert marked(sample(user("a"), assistant("<think>\nwhy\n</think>\n\nb")), templates.DEEPSEEK) == (
            "<s><｜User｜>a<｜Assistant｜><think>\n«why\n</think>\n\nb<｜end▁of▁sentence｜>»"
        )

    def test_deepseek_r1_answer_without_a_thought_starts_behind_the_bare_header(self):
        assert marked(sample(user("a"), assistant("b")), templates.DEEPSEEK) == (
            "<s><｜User｜>a<｜Assistant｜>«b<｜end▁of▁sentence｜>»"
        )


class TestOtherHabits:
    def test_what_a_template_adds_at_the_end_of_a_dialogue_is_not_trained(self):
        # Phi-3's adds the end of the text where no generation prompt is asked for; its turns have an end of their own.
        phi3 = (
            "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
        )
        assert marked(sample(user("a"), assistant("b"), user("c"), assistant("d")), phi3) == (
            "<|user|>\na<|end|>\n<|assistant|>\n«b<|end|>»\n<|user|>\nc<|end|>\n<|assistant|>\n«d<|end|>»\n</s>"
        )

    def test_a_template_that_reads_typed_parts_only_gets_them(self):
        parts = (
            "{% for m in messages %}{{ m.role + ':' }}{% for p in m.content %}{{ p.text }}{% endfor %}{{ '</s>' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
        )
        assert marked(sample(user("a"), assistant("b")), parts) == "user:a</s>assistant:«b</s>»"

    def test_a_template_that_wants_arguments_as_json_text_gets_it(self):
        json_text = templates.DEEPSEEK.replace("call.function.arguments | tojson", "call.function.arguments")
        dialogue = sample(user("a"), assistant("", "add"), tool("2"), assistant("b"))
        assert marked(dialogue, json_text) == marked(dialogue, templates.DEEPSEEK)

    def test_turns_that_nothing_closes_end_with_their_text(self):
        # GLM's turns end where the next role begins. History without its thought is no prefix.
        glm = (
            "{% for m in messages %}{{ '<|' + m.role + '|>\n' }}{% if m.role == 'assistant' %}"
            "{{ '<think>' + ((m.reasoning_content or '') if loop.last else '') + '</think>\n' }}{% endif %}"
            "{{ m.content }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
        )
        dialogue = sample(
            user("a"), assistant("b", reasoning_content="w"), user("c"), assistant("d", reasoning_content="why")
        )
        assert marked(dialogue, glm) == (
            "<|user|>\na<|assistant|>«\n<think></think>\nb»<|user|>\nc<|assistant|>«\n<think>why</think>\nd»"
        )

    def test_a_thought_behind_a_prompt_that_gives_an_empty_one(self):
        # The generation prompt without thinking closes the thought; a row that thinks shares only its opening with it.
        dialogue = sample(user("a"), assistant("<think>\nwhy\n</think>\n\nb"))
        assert marked(dialogue, templates.QWEN3_5, chat_template_kwargs={"enable_thinking": False}) == (
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n«why\n</think>\n\nb<|im_end|>»\n"
        )


class TestRefusals:
    def test_a_template_that_hides_the_reasoning_of_the_answer_is_an_error(self):
        with pytest.raises(DataError, match=r"train.jsonl:3: .* does not show the reasoning of message 1"):
            marked(sample(user("a"), assistant("b", reasoning_content="why")), templates.CHATML)

    def test_a_template_that_hides_the_answer_is_an_error(self):
        hides = "{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_end|>' }}{% endfor %}"
        with pytest.raises(DataError, match=r"does not show the text of message 1"):
            marked(sample(user("a"), assistant("b")), hides)

    def test_a_template_that_hides_calls_is_an_error(self):
        with pytest.raises(DataError, match=r"does not show the tool call 'add' of message 1"):
            marked(sample(user("a"), assistant("b", "add")), templates.CHATML)

    def test_a_template_that_counts_turns_from_the_end_and_says_everything_twice_cannot_be_masked(self):
        # The count changes with every further turn, so there are no prefixes; a text that stands twice tells no place.
        counts = (
            "{% for m in messages %}{{ '[' ~ (messages | length - loop.index) ~ m.role ~ ']' ~ m.content }}"
            "{{ m.content }}{% endfor %}"
        )
        with pytest.raises(MaskError, match=r"train.jsonl:3: .*message 1.*set learn to false"):
            marked(sample(user("a"), assistant("b")), counts)

    def test_the_turn_end_inside_a_call_cannot_be_told(self):
        call = assistant("", "add")
        call["tool_calls"][0]["function"]["arguments"] = {"x": "<|im_end|>"}
        dialogue = sample(user("a"), call, tool("2"), assistant("b"), user("c"), assistant("d"))
        with pytest.raises(MaskError, match=r"hold '<|im_end|>'"):
            marked(dialogue, templates.QWEN3_5)

    def test_a_failing_template_names_the_row(self):
        with pytest.raises(DataError, match=r"train.jsonl:3: the chat template fails on this row: .*alternate"):
            marked(sample(user("a"), user("b"), assistant("c")), templates.MISTRAL)


class TestTokens:
    def test_tokens_are_those_of_the_whole_text_and_the_mask_is_that_of_its_characters(self):
        by = tokenizer(templates.QWEN3_5)
        dialogue = sample(user("a"), assistant("b"), user("c"), assistant("<think>\nwhy\n</think>\n\nd"))
        masked = render_with_loss_mask(dialogue, by)
        text = render_to_text(dialogue, by)
        assert masked.token_ids.tolist() == by(text, add_special_tokens=False)["input_ids"]
        assert masked.token_ids.dtype == np.int32
        assert masked.loss_mask.dtype == np.uint8
        assert trained_text(masked, by) == "b<|im_end|>why\n</think>\n\nd<|im_end|>"

    def test_a_token_across_the_start_is_not_trained(self):
        # Header and answer give three newlines, which the tokenizer cuts into two and one. The pair holds the
        # header's, so no model samples it.
        by = tokenizer(templates.CHATML)
        masked = render_with_loss_mask(sample(user("a"), assistant("\n\nb")), by)
        assert "\n\n" in [by.decode([token]) for token in masked.token_ids.tolist()]
        assert trained_text(masked, by) == "\nb<|im_end|>"

    def test_end_token_that_is_also_the_pad_token_is_trained_T10(self):
        by = tokenizer(templates.CHATML, eos="<|im_end|>")
        by.pad_token = "<|im_end|>"
        masked = render_with_loss_mask(sample(user("a"), assistant("b")), by)
        assert masked.loss_mask[masked.token_ids == by.eos_token_id].tolist() == [0, 1]  # the user's, the answer's

    def test_bos_stands_once_T8(self):
        by = tokenizer(templates.LLAMA3)
        masked = render_with_loss_mask(sample(user("a"), assistant("b")), by)
        assert masked.token_ids.tolist().count(by.bos_token_id) == 1

    def test_characters_of_several_tokens_are_trained_whole(self):
        by = tokenizer(templates.CHATML)
        masked = render_with_loss_mask(sample(user("é"), assistant("数é😀")), by)
        assert trained_text(masked, by) == "数é😀<|im_end|>"

    def test_rendering_twice_gives_the_same(self):
        by = tokenizer(templates.QWEN3_5)
        renderer = ChatRenderer(by)
        dialogue = sample(user("a"), assistant("b"), user("c"), assistant("d"))
        first, again = renderer.masked(dialogue), renderer.masked(dialogue)
        assert first.token_ids.tolist() == again.token_ids.tolist()
        assert first.loss_mask.tolist() == again.loss_mask.tolist()


def test_the_template_of_the_row_wins_over_the_runs_and_the_models(caplog):
    by = tokenizer(templates.CHATML)
    own = "{% for m in messages %}{{ 'own ' + m.content + '</s>' }}{% endfor %}"
    of_run = own.replace("own", "run")
    dialogue = [user("a"), assistant("b")]
    with caplog.at_level("INFO"):
        assert render_to_text(sample(*dialogue), by).startswith("<|im_start|>")
        assert render_to_text(sample(*dialogue), by, chat_template=of_run) == "run a</s>run b</s>"
        in_kwargs = {"chat_template": of_run.replace("run", "kwargs")}
        assert render_to_text(sample(*dialogue), by, chat_template=of_run, chat_template_kwargs=in_kwargs) == (
            "kwargs a</s>kwargs b</s>"
        )
        row = sample(*dialogue, metadata={"apply_chat_template_kwargs": {"chat_template": own}})
        assert render_to_text(row, by, chat_template_kwargs=in_kwargs) == "own a</s>own b</s>"
    origins = [record.message.partition("origin=")[2] for record in caplog.records if "origin=" in record.message]
    assert origins == ["the model folder", "--chat-template", "--apply-chat-template-kwargs", "the row's metadata"]


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}", "does not teach when to stop"),
        ("{% set date_string = date_string or strftime_now('%d') %}" + templates.CHATML, "writes today's date"),
    ],
    ids=["no end", "date"],
)
def test_what_a_template_does_to_training_is_told_once(template, line, caplog):
    renderer = ChatRenderer(tokenizer(template))
    with caplog.at_level("WARNING"):
        for _ in range(3):
            renderer.rendered(sample(user("a"), assistant("b")))
    assert [line in record.message for record in caplog.records] == [True]


def test_a_given_date_is_no_warning(caplog):
    dated = "{% set date_string = date_string or strftime_now('%d') %}" + templates.CHATML
    with caplog.at_level("WARNING"):
        marked(sample(user("a"), assistant("b")), dated, chat_template_kwargs={"date_string": "26 Jul 2024"})
    assert caplog.records == []
