# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a worker keeps of the environment of its machine, and which interface its collectives take."""

from __future__ import annotations

import os

import pytest

from relax.distributed.ray.worker import LOOPBACK, Worker, interface_of
from relax.utils.errors import InfrastructureError


async def test_a_launchers_number_of_machines_is_no_number_of_training_ranks(monkeypatch: pytest.MonkeyPatch):
    """WORLD_SIZE=2 of two machines made one rank wait for a second one; what the run itself says stays."""
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "node-0", "RANK": "1", "OTHER": "kept"}.items():
        monkeypatch.setenv(name, value)
    Worker("actor-0", {"RANK": "0"}, (), None)
    assert [os.environ.get(name) for name in ("WORLD_SIZE", "MASTER_ADDR", "RANK", "OTHER")] == [
        None,
        None,
        "0",
        "kept",
    ]


def test_the_interface_is_the_one_that_has_the_nodes_address():
    assert interface_of(LOOPBACK) == "lo"
    with pytest.raises(
        InfrastructureError, match=r"no network interface of this machine has the address 192\.0\.2\.1"
    ):
        interface_of("192.0.2.1")  # reserved for documentation, so no machine has it
