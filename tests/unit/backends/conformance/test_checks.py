# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Checks can fail: a server that lies in one thing is found by the check of that thing."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from relax.backends.conformance.check import run_check
from relax.backends.conformance.context import Context
from relax.backends.conformance.suite import CHECKS
from relax.backends.engine_client import AsgiEngineClient, EngineRefused
from relax.backends.native.build import EngineSettings, build_app
from tests.builders import build_tiny_model_folder

BY_NAME = {check.name: check for check in CHECKS}


class LyingClient(AsgiEngineClient):
    """The native engine, whose answers and refusals pass through `lies`: {path: function of (request, answer)}."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self.lies: dict[str, Callable[[Any, Any], Any]] = {}

    async def _send(self, method: str, path: str, payload: Any, *, repeat: bool) -> Any:
        lie = self.lies.get(path)
        try:
            answer = await super()._send(method, path, payload, repeat=repeat)
        except EngineRefused:
            if lie is None:
                raise
            return lie(payload, None)
        return lie(payload, answer) if lie else answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return build_tiny_model_folder(tmp_path_factory.mktemp("model"), "qwen3", seed=1)


@pytest.fixture
async def context(folder: Path, tmp_path: Path) -> AsyncIterator[Context]:
    client = LyingClient(build_app(EngineSettings(folder, max_total_tokens=4096)))
    yield Context(client, await client.info(), folder=folder, may_update=True, work=tmp_path)  # type: ignore[arg-type]
    await client.close()


def edited(**changes: Any) -> Callable[[Any, Any], Any]:
    """A lie about meta_info."""

    def lie(request: Any, answer: Any) -> Any:
        answer = copy.deepcopy(answer)
        for one in answer if isinstance(answer, list) else [answer]:
            for key, change in changes.items():
                one["meta_info"][key] = change(one["meta_info"].get(key)) if callable(change) else change
        return answer

    return lie


def shifted(entries: Any) -> Any:
    return [[value if value is None else value - 1e-3, *rest] for value, *rest in entries]


def accepted(request: Any, answer: Any) -> Any:
    return answer if answer is not None else {"text": "", "output_ids": [], "meta_info": {}}


def worsened(rows: Any) -> Any:
    return [row and [[entry[0] - 1e-3, *entry[1:]] for entry in row] for row in rows or ()]


def of_other_ids(rows: Any) -> Any:
    return [row and [[entry[0], entry[1] + 1, None] for entry in row] for row in rows or ()]


LIES = [
    ("the-likeliest-ids-of-prompt-tokens-are-returned", "/generate", edited(input_top_logprobs=worsened)),
    ("log-probs-at-given-ids-are-returned", "/generate", edited(input_token_ids_logprobs=worsened)),
    ("each-position-may-have-ids-of-its-own", "/generate", edited(input_token_ids_logprobs=of_other_ids)),
    ("log-probs-are-those-of-a-plain-forward", "/generate", edited(output_token_logprobs=shifted)),
    ("many-requests-at-once-keep-their-own-numbers", "/generate", edited(id="another")),
    ("the-length-limit-is-the-finish-reason", "/generate", edited(finish_reason={"type": "stop", "matched": 3})),
    ("the-request-id-is-echoed", "/generate", edited(id="another")),
    ("an-answer-has-ids-text-and-counts", "/generate", edited(prompt_tokens=lambda n: n + 1)),
    ("flush-forgets-prefilled-prompts", "/generate", edited(cached_tokens=5)),
    ("bad-sampling-parameters-are-refused", "/generate", accepted),
    ("an-unknown-sampling-parameter-is-refused", "/generate", accepted),
    ("an-unknown-route-is-not-found", "/no_such_route", lambda request, answer: {}),
    ("a-flush-under-running-requests-is-refused", "/flush_cache", lambda request, answer: "Cache flushed."),
    ("an-end-without-a-begin-is-refused", "/end_weight_update", lambda request, answer: {"success": True}),
    ("weights-come-from-a-folder", "/generate", edited(weight_version="default")),
    ("retracted-requests-go-on-under-the-new-weights", "/generate", edited(weight_versions=lambda s: s[:1])),
]


@pytest.mark.parametrize(("name", "path", "lie"), LIES, ids=[name for name, _, _ in LIES])
async def test_a_lie_is_found_by_its_check(context: Context, name: str, path: str, lie: Any):
    honest = await run_check(BY_NAME[name], context)
    assert honest.verdict == "honoured", honest.detail
    context.client.lies[path] = lie
    found = await run_check(BY_NAME[name], context)
    assert found.verdict == "fails" and found.detail


async def test_a_server_that_keeps_its_old_weights_is_found(context: Context):
    """It says success and names the new version; only the log-probs tell."""
    context.client.app.state.service._runner.install = lambda tensors: None
    found = await run_check(BY_NAME["weights-come-from-a-folder"], context)
    assert found.verdict == "fails" and "plain forward" in found.detail


async def test_what_was_not_given_is_not_asked_and_what_is_not_offered_is_not_failed(context: Context, tmp_path: Path):
    bare = Context(context.client, context.info, folder=None, may_update=False, work=tmp_path)
    for name, verdict in (
        ("log-probs-are-those-of-a-plain-forward", "not asked"),
        ("weights-come-from-a-folder", "not asked"),
        ("the-request-id-is-echoed", "honoured"),
    ):
        assert (await run_check(BY_NAME[name], bare)).verdict == verdict, name
    assert (await run_check(BY_NAME["an-image-is-seen"], context)).verdict == "not offered"


async def test_weights_that_a_check_changed_are_put_back(context: Context):
    before = await context.client.post("/weights_checker", {"action": "checksum"})
    assert (await run_check(BY_NAME["weights-come-as-tensors"], context)).verdict == "honoured"
    assert await context.client.post("/weights_checker", {"action": "checksum"}) == before
    assert (await context.client.info()).weight_version == context.info.weight_version
