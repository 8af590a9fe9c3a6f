# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What `relax conformance` asks of a server, asked of the engines that we start. A test is named after its check."""

from __future__ import annotations

import pytest

from relax.backends.conformance.check import Check, run_check
from relax.backends.conformance.context import Context
from relax.backends.conformance.suite import CHECKS


def test_names_are_unique_and_say_what_they_ask():
    assert len({check.name for check in CHECKS}) == len(CHECKS) >= 50
    assert all(check.says.endswith((".", ".)")) for check in CHECKS)


@pytest.mark.service
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_engine(check: Check, context: Context, engine_name: str):
    outcome = await run_check(check, context)
    if outcome.verdict == "not offered" and engine_name != "native":
        pytest.skip(f"{engine_name} says that it has none: {outcome.detail}")
    assert outcome.verdict == "honoured", outcome.detail
