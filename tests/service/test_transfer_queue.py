# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The TransferQueue bus against a real local Ray: one start for the whole file."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relax.distributed.bus.base import Block, PartitionDropped
from relax.distributed.bus.factory import make_bus
from relax.distributed.bus.transfer_queue import ENVIRONMENT, TransferQueueBus, TransferQueueOwner
from relax.utils.errors import BusTimeout, InfrastructureError
from tests.unit.distributed.bus.conformance import CLAIMS, PRODUCERS, assert_same_block, make_block

pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]

RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def owner() -> Iterator[TransferQueueOwner]:
    os.environ.update(RAY_ENVIRONMENT)
    import ray

    folder = tempfile.mkdtemp(prefix="rx", dir="/tmp")  # short: Ray puts sockets below it
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        _temp_dir=folder,
        log_to_driver=False,
        object_store_memory=100 << 20,
        runtime_env={"env_vars": {**ENVIRONMENT, **RAY_ENVIRONMENT, "PYTHONPATH": root}},
    )
    owner = TransferQueueOwner(start_timeout_s=90, bell=Path(folder) / "bus-writes")
    try:
        owner.start()
        yield owner
    finally:
        owner.close()
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def bus(owner: TransferQueueOwner) -> AsyncIterator[TransferQueueBus]:
    bus = TransferQueueBus(owner.attachment, PRODUCERS)
    yield bus
    await bus.close()


@pytest.fixture
def partition() -> str:
    return f"train_{uuid.uuid4().hex[:6]}"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
async def test_transfer_queue_bus_conforms(claim, bus: TransferQueueBus, partition: str) -> None:
    await claim(bus, partition)


async def test_rows_are_found_by_uid_after_places_were_freed_and_reused(owner, partition: str) -> None:
    """TransferQueue gives freed places to new rows, in another order than they were put."""
    bus = TransferQueueBus(owner.attachment, PRODUCERS, grace_s=0.0)
    for step, size in enumerate((64, 3, 20, 7, 128)):
        await bus.put(f"{partition}_{step}", "rollout", [make_block(uid) for uid in range(size)])
        if step % 2 == 0:
            await bus.drop(f"{partition}_{step}")
    uids = list(range(1000, 1300))
    await bus.put(partition, "rollout", [make_block(uid, length=uid % 7) for uid in uids])
    got = (await bus.get(partition, ["rollout"], reversed(uids), deadline_s=5))["rollout"]
    for uid in uids:
        assert_same_block(got[uid], make_block(uid, length=uid % 7))
    await bus.close()


async def test_a_dropped_partition_is_cleared_after_its_grace_and_stays_fenced(owner, partition: str) -> None:
    bus = TransferQueueBus(owner.attachment, PRODUCERS, grace_s=0.05)
    await bus.put(partition, "rollout", [make_block(1)])
    where = f"{owner.attachment.incarnation}/{partition}/rollout"
    listing = lambda: bus._run("list", lambda client: client.async_kv_list(where))  # noqa: E731
    await bus.drop(partition)
    assert set((await listing())[where]) == {"1", "dropped"}
    await asyncio.sleep(0.06)
    await bus.drop("nothing")
    assert set((await listing())[where]) == {"dropped"}
    with pytest.raises(PartitionDropped):
        await bus.put(partition, "rollout", [make_block(1)])
    await bus.close()


@pytest.mark.parametrize("bell", ["rung", "missing", None])
async def test_a_waiting_reader_asks_when_a_writer_has_rung(owner, partition: str, bell: str | None, tmp_path) -> None:
    attachment = owner.attachment
    if bell != "rung":  # a reader on another node, or an owner without a bell
        attachment = replace(attachment, bell=bell and str(tmp_path / bell))
    reader, writer = TransferQueueBus(attachment, PRODUCERS), TransferQueueBus(owner.attachment, PRODUCERS)
    asked = []
    listing = reader._list

    async def counted(client, where):
        asked.append(where)
        return await listing(client, where)

    reader._list = counted
    get = asyncio.create_task(reader.get(partition, ["rollout"], [1], deadline_s=30))
    await asyncio.sleep(0.8)
    questions = len(asked)
    await writer.put(partition, "rollout", [make_block(1)])
    start = time.monotonic()
    assert_same_block((await get)["rollout"][1], make_block(1))
    assert time.monotonic() - start < 0.5  # a reader that had not heard the bell would ask after a second
    # with a bell: at the start, once for whatever else rang; without: every 25 ms at most
    assert questions <= 3 if bell == "rung" else questions > 10
    await reader.close()
    await writer.close()


async def test_a_row_reserved_by_a_producer_that_died_is_written_by_the_next(bus, owner, partition: str) -> None:
    where = f"{owner.attachment.incarnation}/{partition}/rollout"
    await bus._run(
        "reserve", lambda client: client.async_kv_retrieve_meta(keys=["1", "2"], partition_id=where, create=True)
    )
    assert await bus.have(partition, "rollout") == frozenset()
    await bus.put(partition, "rollout", [make_block(1)])
    assert await bus.have(partition, "rollout") == {1}
    with pytest.raises(BusTimeout, match="uids 2 "):
        await bus.get(partition, ["rollout"], [1, 2], deadline_s=0.05)
    clearing = TransferQueueBus(owner.attachment, PRODUCERS, grace_s=0.0)
    await clearing.drop(partition)
    await clearing.close()


async def test_bytes_overwritten_by_a_stale_writer_are_an_error_not_data(bus, owner, partition: str) -> None:
    await bus.put(partition, "rollout", [make_block(1), make_block(2)])
    where = f"{owner.attachment.incarnation}/{partition}/rollout"

    async def overwrite(client):
        from tensordict import NonTensorStack, TensorDict

        meta = await client.async_kv_retrieve_meta(keys=["2"], partition_id=where, create=False)
        meta.update_custom_meta([{}])
        await client.storage_manager.put_data(TensorDict({"block": NonTensorStack(b"stale")}, batch_size=[1]), meta)

    await bus._run("overwrite", overwrite)
    with pytest.raises(InfrastructureError, match=r"uids \[2\] were overwritten"):
        await bus.get(partition, ["rollout"], [1, 2], deadline_s=5)


async def test_a_batch_larger_than_one_request_is_cut(owner: TransferQueueOwner, partition: str) -> None:
    bus = TransferQueueBus(owner.attachment, PRODUCERS, chunk_bytes=10_000)
    blocks = [Block(uid, {"x": np.full(1000, uid, np.int32)}) for uid in range(9)]  # about 4 kB each
    await bus.put(partition, "rollout", blocks)
    got = await bus.get(partition, ["rollout"], range(9), deadline_s=5)
    for block in blocks:
        assert_same_block(got["rollout"][block.uid], block)
    await bus.close()


def test_another_process_attaches_with_a_pickled_attachment(owner: TransferQueueOwner, partition: str) -> None:
    import ray

    @ray.remote(num_cpus=0)
    def produce(attachment, partition: str, uids: list[int]) -> str:
        async def main() -> str:
            bus = make_bus("transfer_queue", PRODUCERS, attachment=attachment)
            await bus.put(partition, "rollout", [make_block(uid) for uid in uids])
            got = await bus.get(partition, ["ref"], [1], deadline_s=30)
            await bus.close()
            return got["ref"][1].digest

        return asyncio.run(main())

    async def main() -> None:
        digest = produce.remote(owner.attachment, partition, [1, 2, 3])
        bus = make_bus("transfer_queue", PRODUCERS, attachment=owner.attachment)
        got = await bus.get(partition, ["rollout"], [3, 1, 2], deadline_s=60)
        for uid in (1, 2, 3):
            assert_same_block(got["rollout"][uid], make_block(uid))
        await bus.put(partition, "ref", [make_block(1, seed=1)])
        assert await asyncio.to_thread(ray.get, digest, timeout=30) == make_block(1, seed=1).digest
        await bus.close()

    asyncio.run(main())


def test_a_second_run_in_the_cluster_is_refused(owner: TransferQueueOwner) -> None:
    with pytest.raises(InfrastructureError, match="already has a TransferQueueController"):
        TransferQueueOwner().start()


def test_too_few_cpus_are_refused_before_anything_starts(owner: TransferQueueOwner) -> None:
    other = TransferQueueOwner(num_data_storage_units=99)
    with pytest.raises(InfrastructureError, match=r"needs 100 Ray CPUs .* the cluster has 8"):
        other._check_cpus()


def test_after_a_dead_controller_calls_end_in_time_and_a_restart_serves_anew(owner, partition: str) -> None:
    """Last in the file: it restarts the owner."""
    import ray

    owner.check()
    old = TransferQueueBus(owner.attachment, PRODUCERS, call_timeout_s=1.0)

    async def before() -> None:
        await old.put(partition, "rollout", [make_block(1)])
        ray.kill(ray.get_actor("TransferQueueController", namespace="transfer_queue"))
        with pytest.raises(InfrastructureError, match="TransferQueueController does not answer"):
            for _ in range(100):  # Ray kills in the background
                await asyncio.to_thread(owner.check)
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        start = time.monotonic()
        with pytest.raises(BusTimeout, match=f"list of .*{partition}/rollout, 1 s"):
            await old.have(partition, "rollout")
        assert time.monotonic() - start < 30  # 1 s by the bound; without a bound the call waits for ever
        await old.close()

    async def after() -> None:
        bus = TransferQueueBus(attachment, PRODUCERS)
        assert await bus.have(partition, "rollout") == frozenset()
        await bus.put(partition, "rollout", [make_block(1)])
        assert await bus.have(partition, "rollout") == {1}
        await bus.close()

    asyncio.run(before())
    incarnation = owner.attachment.incarnation
    attachment = owner.restart()
    assert attachment.incarnation != incarnation
    asyncio.run(after())
