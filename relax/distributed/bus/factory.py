# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One place that chooses a bus. The local one imports neither torch nor Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from relax.distributed.bus.base import Bus
from relax.distributed.bus.local import LocalBus

if TYPE_CHECKING:
    from relax.distributed.bus.transfer_queue import Attachment

BusKind = Literal["local", "transfer_queue"]


def make_bus(kind: BusKind, producers: Mapping[str, str], *, attachment: Attachment | None = None) -> Bus:
    """A bus of `kind` whose tables are written by `producers` (table -> role).

    `attachment` comes from the driver's `TransferQueueOwner.start()` and is needed for `transfer_queue` alone.
    """
    if kind == "local":
        return LocalBus(producers)
    if kind == "transfer_queue":
        if attachment is None:
            raise ValueError("a transfer_queue bus needs the attachment of the driver's TransferQueueOwner")
        from relax.distributed.bus.transfer_queue import TransferQueueBus

        return TransferQueueBus(attachment, producers)
    raise ValueError(f"unknown bus kind {kind!r}; use 'local' or 'transfer_queue'")
