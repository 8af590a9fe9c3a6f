# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The DeepEyes example: calls and boxes, the environment, the reward. Right values are computed by hand."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from PIL import Image

from examples.deepeyes.reward_deepeyes import reward_func
from examples.deepeyes.rollout import ImageEnv, generate
from examples.deepeyes.tools import ToolCall, ToolError, box, find_call, use
from relax.config.view import HookArgs
from relax.engine.rewards.custom import CustomReward
from relax.engine.rollout.hooks import load_hook
from relax.utils.types import Sample

ZOOM = (
    '<tool_call>{"name": "image_zoom_in_tool", "arguments": {"bbox_2d": [10, 20, 60, 70], "label": "cup"}}</tool_call>'
)


def picture() -> Image.Image:
    """100 x 80 pixels; the colour tells the place."""
    image = Image.new("RGB", (100, 80))
    image.putdata([(x, y, 0) for y in range(80) for x in range(100)])
    return image


# ------------------------------------------------------------------ calls


def test_the_last_call_of_an_answer_counts() -> None:
    first = ZOOM.replace("10, 20", "0, 0")
    call = find_call(f"<think>two</think>{first} or rather\n{ZOOM}")
    assert call == ToolCall("image_zoom_in_tool", {"bbox_2d": [10, 20, 60, 70], "label": "cup"})
    assert find_call("no call at all") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<tool_call>{", "not closed"),
        ("<tool_call>zoom!</tool_call>", "not JSON"),
        ("<tool_call>[1]</tool_call>", "a tool call is"),
        ('<tool_call>{"name": "rm", "arguments": {}}</tool_call>', "image_zoom_in_tool, image_rotate_tool"),
        ('<tool_call>{"name": "image_zoom_in_tool"}</tool_call>', "a tool call is"),
    ],
)
def test_a_call_of_another_form_is_an_error_that_the_model_reads(text: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        find_call(text)


@pytest.mark.parametrize(
    ("corners", "scale", "expected"),
    [
        ([10, 20, 60, 70], None, (10, 20, 60, 70)),
        ([10.6, 20.2, 59.1, 69.5], None, (10, 20, 60, 70)),  # outward to whole pixels
        ([-5, -5, 200, 200], None, (0, 0, 100, 80)),  # cut to the image
        ([100, 250, 600, 875], 1000, (10, 20, 60, 70)),  # thousandths of 100 and of 80 pixels
        ([50, 40, 52, 42], None, (37, 27, 65, 55)),  # 2 pixels become 28: 13 to the left, 13 to the right
        ([0, 0, 4, 80], None, (0, 0, 28, 80)),  # widened inside the image
        ([98, 78, 100, 80], None, (72, 52, 100, 80)),
    ],
)
def test_a_box_becomes_whole_pixels_of_the_image(corners: Any, scale: Any, expected: Any) -> None:
    assert box([float(c) for c in corners], (100, 80), scale) == expected


def test_a_box_in_an_image_smaller_than_the_least_side_is_all_of_it() -> None:
    assert box([2.0, 2.0, 4.0, 4.0], (10, 12), None) == (0, 0, 10, 12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "bbox_2d must be 4 numbers, got None"),
        ({"bbox_2d": [1, 2, 3]}, "must be 4 numbers"),
        ({"bbox_2d": [1, 2, 3, "4"]}, "must be 4 numbers"),
        ({"bbox_2d": [1, 2, 3, float("nan")]}, "must be 4 numbers"),
        ({"bbox_2d": [60, 20, 10, 70]}, "x from 60 to 10 holds nothing"),
        ({"bbox_2d": [10, 90, 60, 95]}, "y from 90 to 95 holds nothing of an image with 80 pixels"),
    ],
)
def test_a_box_that_holds_nothing_is_an_error(arguments: Any, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        use(ToolCall("image_zoom_in_tool", arguments), picture())


def test_zoom_cuts_the_box_out_and_rotate_turns_all_of_it() -> None:
    part = use(ToolCall("image_zoom_in_tool", {"bbox_2d": [10, 20, 60, 70]}), picture())
    assert part.size == (50, 50)
    assert part.getpixel((0, 0)) == (10, 20, 0)
    assert part.getpixel((49, 49)) == (59, 69, 0)
    turned = use(ToolCall("image_rotate_tool", {"angle": 90}), picture())  # against the clock: right edge on top
    assert turned.size == (80, 100)
    assert turned.getpixel((0, 0)) == (99, 0, 0)
    with pytest.raises(ToolError, match="angle must be 1 numbers"):
        use(ToolCall("image_rotate_tool", {}), picture())


# ------------------------------------------------------------------ environment


def test_the_environment_answers_calls_and_counts_them() -> None:
    env = ImageEnv(Sample(multimodal_inputs={"image": [picture()]}), HookArgs({}))
    message, images = env.step(f"<think>look</think>{ZOOM}")
    assert [image.size for image in images] == [(50, 50)]
    assert [part["type"] for part in message["content"]] == ["text", "image", "text"]
    message, images = env.step("<tool_call>{</tool_call>")
    assert images == []
    assert message["content"][0]["text"].startswith("<tool_response>Error: the tool call is not JSON")
    assert (env.calls, env.errors) == (1, 1)
    assert env.step(f"<answer>cup</answer>{ZOOM}") == (None, [])  # an answer ends it
    assert env.step("hm") == (None, [])
    assert (env.calls, env.errors) == (1, 1)


def test_boxes_may_be_parts_of_the_image_by_an_own_key() -> None:
    env = ImageEnv(Sample(multimodal_inputs={"image": [picture()]}), HookArgs({"deepeyes_box_scale": 1000}))
    _, images = env.step(ZOOM.replace("10, 20, 60, 70", "100, 250, 600, 875"))
    assert images[0].getpixel((0, 0)) == (10, 20, 0)


def test_a_call_without_an_image_is_an_error_that_the_model_reads() -> None:
    env = ImageEnv(Sample(), HookArgs({}))
    message, _ = env.step(ZOOM)
    assert "Error: there is no image." in message["content"][0]["text"]


# ------------------------------------------------------------------ reward


def scored(response: str, label: Any = "cup", calls: int = 0, errors: int = 0, prompt: str = "?") -> dict[str, float]:
    sample = Sample(prompt=prompt, response=response, label=label)
    sample.metadata["deepeyes"] = {"turns": 1, "tool_calls": calls, "tool_errors": errors}
    return reward_func(None, sample)


@pytest.mark.parametrize(
    ("response", "calls", "errors", "score"),
    [
        ("<think>a</think><answer>cup</answer>", 0, 0, 0.8),
        ("<think>a</think><answer>Cup.</answer>", 1, 0, 2.0),  # 0.8 + 1.2
        ("<think>a</think><answer>dog</answer>", 1, 0, 0.0),  # a tool without a right answer earns nothing
        ("<think>a</think><answer>cup</answer>", 1, 1, 1.8),  # 0.8 - 0.2 + 1.2
        ("<think>a<answer>cup</answer>", 0, 0, 0.6),  # thinking is not closed: 0.8 - 0.2
        ("<think>a</think>cup", 0, 0, -0.2),
        ("<answer>cup</answer><answer>cup</answer>", 0, 0, 0.6),
        ("<tool_call>{<answer>cup</answer>", 0, 0, 0.6),
        ("<answer>" + "cup " * 300 + "</answer>", 1, 0, -0.2),  # 1,200 characters
        ("<think><answer>cup</answer></think>", 0, 0, -0.2),  # the answer is only thought
    ],
)
def test_the_score_is_accuracy_format_and_a_bonus_for_tools_that_helped(
    response: str, calls: int, errors: int, score: float
) -> None:
    assert scored(response, calls=calls, errors=errors)["score"] == pytest.approx(score, abs=1e-12)


def test_a_template_that_opens_the_thinking_needs_one_more_end() -> None:
    assert scored("a</think><answer>cup</answer>", prompt="x<think>\n")["format"] == 0.0
    assert scored("a</think><answer>cup</answer>")["format"] == -1.0


@pytest.mark.parametrize(
    ("answer", "label", "right"),
    [
        ("B", "<answer>B</answer>", True),
        ("(B) a cup", "B", True),
        ("A", "B", False),
        ("1,000", 1000.0, True),
        ("0.5", "1/2", True),
        ("Red Cup!", ["mug", "red cup"], True),
        ("mugs", ["mug", "red cup"], False),
        ("", "", False),
    ],
)
def test_answers_agree_as_texts_letters_or_numbers(answer: str, label: Any, right: bool) -> None:
    assert scored(f"<answer>{answer}</answer>", label)["accuracy"] == float(right)


class Judge(BaseHTTPRequestHandler):
    """Says what the question's last word is."""

    seen: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
        text = body["messages"][1]["content"].split("\n")[0].split()[-1]
        reply = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_judge_is_asked_only_where_the_rules_find_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    Judge.seen = []
    server = HTTPServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("DEEPEYES_JUDGE_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    monkeypatch.setenv("DEEPEYES_JUDGE_API_KEY", "secret")
    try:
        assert scored("<answer>cup</answer>", prompt="0")["accuracy"] == 1.0
        assert Judge.seen == []
        assert scored("<answer>a mug</answer>", prompt="1", calls=1)["score"] == pytest.approx(2.0)
        assert scored("<answer>a dog</answer>", prompt="0")["score"] == 0.0
        with pytest.raises(ValueError, match="neither 1 nor 0: 'maybe'"):
            scored("<answer>a dog</answer>", prompt="maybe")
    finally:
        server.shutdown()
        server.server_close()
    assert [(call["path"], call["key"], call["model"]) for call in Judge.seen] == [
        ("/v1/chat/completions", "Bearer secret", "gpt-4o")
    ] * 3
    assert "Right answer: cup\nGiven answer: a mug" in Judge.seen[0]["messages"][1]["content"]


# ------------------------------------------------------------------ names


async def test_the_documented_paths_load_as_reward_and_generate_function() -> None:
    assert load_hook("examples.deepeyes.rollout.generate").function is generate
    reward = CustomReward("examples.deepeyes.reward_deepeyes.reward_func", HookArgs({}), group=False)
    sample = Sample(prompt="?", response="<think>a</think><answer>cup</answer>", label="cup")
    assert await reward.one(sample) == {"score": 0.8, "accuracy": 1.0, "format": 0.0, "tool": 0.0}
