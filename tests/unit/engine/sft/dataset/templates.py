# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# ruff: noqa: RUF001, E501 (DeepSeek writes its tokens with full-width bars; templates are as they are written)
"""Chat templates with what matters for loss masks in the published ones, written for these tests.

QWEN2_5   a default system prompt, tool answers in one user turn, JSON tool calls
QWEN3     thoughts behind the last ordinary user message only, and an empty one for a last answer without
QWEN3_5   the same gate, an empty thought for every answer behind it, a generation prompt that opens the thought
QWEN3_6   QWEN3_5 with the native `preserve_thinking` gate
QWEN3_8   the native gate whose default is to preserve
LLAMA3    a call hides the text beside it; `ipython` turns for tool answers
MISTRAL   no header for answers, roles must alternate, the system text in the last user turn
DEEPSEEK  R1: thoughts cut from every answer, no header behind a tool's answer
"""

from __future__ import annotations

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

QWEN2_5 = r"""
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content }}
{%- else %}
    {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
{%- endif %}
{%- if tools %}{{- '\n\n# Tools\n' }}{%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}{%- endif %}
{{- '<|im_end|>\n' }}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

_QWEN_TURNS = r"""
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == 'user' and message.content is string and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
NO_QUERY
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'user' or message.role == 'system' %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        GATE
            SHELL
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or not loop.first %}{{- '\n' }}{%- endif %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    GENERATION
{%- endif %}
"""

LEGACY_GATE = "{%- if loop.index0 > ns.last_query_index %}"
NATIVE_GATE = (
    "{%- if (preserve_thinking is defined and preserve_thinking is true) or (loop.index0 > ns.last_query_index) %}"
)
QWEN3_8_GATE = (
    "{%- if preserve_thinking is undefined or preserve_thinking is true or loop.index0 > ns.last_query_index %}"
)

_SHELL = r"{{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}"
_SHELL_IF_LAST = (
    "{%- if loop.last or (not loop.last and reasoning_content) %}" + _SHELL + "{%- else %}"
    r"{{- '<|im_start|>' + message.role + '\n' + content }}{%- endif %}"
)
_EMPTY = (
    r"{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
)
_OPENED = (
    r"{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}"
    r"{%- else %}{{- '<think>\n' }}{%- endif %}"
)
_NO_QUERY = "{%- if ns.multi_step_tool %}{{- raise_exception('No user query found in messages.') }}{%- endif %}"


def _qwen(gate: str, shell: str, generation: str, no_query: str = "") -> str:
    parts = {"GATE": gate, "SHELL": shell, "GENERATION": generation, "NO_QUERY": no_query}
    text = _QWEN_TURNS
    for name, value in parts.items():
        text = text.replace(name, value)
    return text


QWEN3 = _qwen(LEGACY_GATE, _SHELL_IF_LAST, _EMPTY)
QWEN3_5 = _qwen(LEGACY_GATE, _SHELL, _OPENED, _NO_QUERY)
QWEN3_6 = _qwen(NATIVE_GATE, _SHELL, _OPENED, _NO_QUERY)
QWEN3_8 = _qwen(QWEN3_8_GATE, _SHELL, _OPENED, _NO_QUERY)

LLAMA3 = r"""
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + message.content | tojson + '<|eot_id|>' }}
    {%- elif message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"""

MISTRAL = r"""
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- set turns = messages[1:] if system else messages %}
{%- set users = turns | selectattr('role', 'equalto', 'user') | list %}
{{- bos_token }}
{%- for message in turns %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (system + '\n\n' if system and message == users[-1] else '') + message.content + '[/INST]' }}
    {%- else %}
        {{- ' ' + message.content | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

# With the system text in the last user turn, a longer dialogue is no continuation of a shorter one.
DEEPSEEK_GATE = "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
DEEPSEEK = (
    "{% set ns = namespace(is_tool=false) %}{{ bos_token }}"
    "{%- for message in messages %}"
    "{%- if message.role == 'system' %}{{ message.content }}{%- endif %}"
    "{%- if message.role == 'user' %}{%- set ns.is_tool = false -%}{{ '<｜User｜>' + message.content }}{%- endif %}"
    "{%- if message.role == 'assistant' and message.tool_calls %}{%- set ns.is_tool = false -%}"
    "{{ '<｜Assistant｜>' }}{%- for call in message.tool_calls %}"
    "{{ '<｜tool▁call▁begin｜>' + call.function.name + '\n' + call.function.arguments | tojson + '<｜tool▁call▁end｜>' }}"
    "{%- endfor %}{{ '<｜end▁of▁sentence｜>' }}{%- endif %}"
    "{%- if message.role == 'assistant' and not message.tool_calls %}"
    "{%- if ns.is_tool %}{{ '<｜tool▁outputs▁end｜>' + message.content + '<｜end▁of▁sentence｜>' }}"
    "{%- set ns.is_tool = false -%}{%- else %}{% set content = message.content %}"
    + DEEPSEEK_GATE
    + "{{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{%- endif %}{%- endif %}"
    "{%- if message.role == 'tool' %}"
    "{%- if not ns.is_tool %}{{ '<｜tool▁outputs▁begin｜>' }}{%- endif %}{%- set ns.is_tool = true -%}"
    "{{ '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}{%- endif %}"
    "{%- endfor -%}{% if ns.is_tool %}{{ '<｜tool▁outputs▁end｜>' }}{% endif %}"
    "{% if add_generation_prompt and not ns.is_tool %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"
)

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<s>",
    "</s>",
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
)
