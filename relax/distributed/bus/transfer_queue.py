# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The data bus over TransferQueue, for roles in several processes of one Ray cluster.

One TransferQueue partition holds one (partition, table); one row holds one block: key = uid, a field with the encoded
block, and a tag with its digest that is written last, so a row without a tag is not there yet. A key `DROPPED` fences
the partition: writers look for it before and after they write, and the rows are cleared a grace period later, when
every write that could still be under way has ended. Guards for TransferQueue 0.1.11:

- the owner lives in the driver, starts in bounded time, and refuses a controller that is not its own;
- every call is bounded; after one without an answer the client is rebuilt, and the error names what was waited for;
- a waiting reader asks again when a writer has rung the bell, not all the time;
- rows are found by uid and checked against their digest: TransferQueue keeps no order and gives freed places of a
  cleared partition to new rows, which a stale writer can still overwrite;
- a partition is cleared only after a look at its consumption, without which half-written rows make clearing fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import pickle
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from relax.distributed.bus.base import Block, BusConflict, decode_block, encode_block
from relax.distributed.bus.checks import check_block, describe_missing, dropped, known_table
from relax.utils import light_imports
from relax.utils.errors import BusLost, BusTimeout, InfrastructureError

if TYPE_CHECKING:
    from transfer_queue.client import AsyncTransferQueueClient

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Read when TransferQueue is imported, by itself or by our hook, so each process that touches it needs them: put them
# into the job's runtime environment too.
ENVIRONMENT = {
    "TQ_SIMPLE_STORAGE_SEND_RECV_TIMEOUT": "5",
    "TQ_SIMPLE_STORAGE_MAX_ATTEMPTS": "2",
    "TQ_SIMPLE_STORAGE_PROBE_TIMEOUT": "2",
    "TQ_STORAGE_HANDSHAKE_TIMEOUT": "5",
    "TQ_STORAGE_HANDSHAKE_MAX_RETRIES": "2",
    "TQ_CLIENT_ZMQ_IO_THREADS": "1",
    "TQ_NUM_THREADS": "1",
    "TQ_LOGGING_LEVEL": "ERROR",
    light_imports.SWITCH: "1",
}
CONTROLLER, NAMESPACE, STORAGE_UNIT = "TransferQueueController", "transfer_queue", "TransferQueueStorageUnit#"
DROPPED = "dropped"  # the key that fences a partition; uids are decimal, so it is no uid
FIELD = "block"
CALL_TIMEOUT_S = 30.0  # one call to TransferQueue: above the 2 x 5 s + 2 s of its own storage time-outs
WATCH_S = 1.0  # between two looks at whether the actors live
CHUNK_BYTES = 64 << 20  # payload of one storage request
FENCES_KEPT = 256  # dropped partitions that are remembered
# A waiting reader looks up after this fraction of the time waited so far, within these bounds. A question to
# TransferQueue costs 1 - 2 ms of CPU in all processes, a look at the bell 0.05 ms.
LOOK_FIRST_S, LOOK_LAST_S, LOOK_FRACTION = 0.002, 0.025, 0.1
UNRUNG_S = 1.0  # a reader with a bell asks this often without a ring, in case a writer could not ring


@dataclass(frozen=True)
class Attachment:
    """How a process reaches the bus. Picklable without importing TransferQueue."""

    incarnation: str  # of the owner's start; part of every partition name, so an old client writes where nobody reads
    connection: bytes
    bell: str | None = None  # a file of this node that grows with every write


def set_environment() -> None:
    """Set TransferQueue's variables in this process, before its import; what the user set stays."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    light_imports.install_hook()


class TransferQueueOwner:
    """Starts, checks, restarts and stops TransferQueue. Lives in the driver: the actors die with their creator.

    Blocks are lost by a restart; the bus is refilled from the trace, and every client attaches anew.
    """

    def __init__(
        self, *, num_data_storage_units: int = 1, start_timeout_s: float = 300.0, bell: Path | None = None
    ) -> None:
        """`bell` is a file to make, in memory and removed by who removes its folder; None: readers poll."""
        if num_data_storage_units < 1:
            raise ValueError(f"--num-data-storage-units must be >= 1, got {num_data_storage_units}")
        self._units = num_data_storage_units
        self._timeout_s, self._bell = start_timeout_s, bell
        self._attachment: Attachment | None = None

    @property
    def attachment(self) -> Attachment:
        if self._attachment is None:
            raise InfrastructureError("the TransferQueue owner has not been started")
        return self._attachment

    def start(self) -> Attachment:
        """Start controller and storage units. Blocking, at most `start_timeout_s`; needs an initialised Ray."""
        set_environment()
        self._refuse_foreign_controller()
        self._check_cpus()
        outcome: list[Any] = []
        starter = threading.Thread(target=self._initialise, args=(outcome,), daemon=True, name="transfer-queue-start")
        starter.start()
        starter.join(self._timeout_s)
        if not outcome or isinstance(outcome[0], BaseException):
            # before the actors are killed, which fails a start that is only slow
            reason = f"did not start within {self._timeout_s:g} s" if not outcome else f"failed to start: {outcome[0]}"
            self._kill_actors()
            raise InfrastructureError(
                f"TransferQueue {reason}; its controller and {self._units} storage unit(s) need one Ray CPU each"
            )
        if self._bell is not None:
            self._bell.touch()
        bell = None if self._bell is None else str(self._bell)
        self._attachment = Attachment(uuid.uuid4().hex[:8], outcome[0], bell)
        logger.info("transfer queue started incarnation=%s units=%d", self._attachment.incarnation, self._units)
        return self._attachment

    def check(self, timeout_s: float = 10.0) -> None:
        """Raise InfrastructureError naming the actor that does not answer within `timeout_s` seconds. Blocking."""
        import ray

        for name, namespace in self._actor_names():
            try:
                actor = ray.get_actor(name, namespace=namespace)
                ray.get(actor.__ray_ready__.remote(), timeout=timeout_s)
            except (ValueError, ray.exceptions.RayError) as error:
                raise InfrastructureError(f"{name} does not answer: {type(error).__name__}: {error}") from error

    async def watch(self) -> NoReturn:
        """Raise BusLost once one of the actors has died. A busy one is waited for."""
        import ray

        actors = {name: ray.get_actor(name, namespace=namespace) for name, namespace in self._actor_names()}
        while True:
            for name, actor in actors.items():
                try:
                    await actor.__ray_ready__.remote()
                except ray.exceptions.RayActorError as error:
                    reason = str(error).splitlines()[0]
                    raise BusLost(f"{name} of the data bus died: {reason}; go on with --load") from None
            await asyncio.sleep(WATCH_S)

    def restart(self) -> Attachment:
        """Stop what is left and start anew under a new incarnation. Blocking."""
        self.close()
        return self.start()

    def close(self) -> None:
        """Stop the actors and this process's TransferQueue client. Idempotent."""
        if self._attachment is None:
            return
        self._attachment = None
        import transfer_queue

        closer = threading.Thread(target=transfer_queue.close, daemon=True, name="transfer-queue-close")
        closer.start()
        closer.join(20.0)  # its own graceful stop takes at most 15 s
        self._kill_actors()

    def _initialise(self, outcome: list[Any]) -> None:
        try:
            import transfer_queue
            from omegaconf import OmegaConf

            config = transfer_queue.init(
                OmegaConf.create(
                    {
                        "controller": {"polling_mode": True},  # else one waiting reader blocks the controller
                        "backend": {
                            "storage_backend": "SimpleStorage",
                            "SimpleStorage": {"num_data_storage_units": self._units},
                        },
                    }
                )
            )
            outcome.append(pickle.dumps((config.controller.zmq_info, config.backend.SimpleStorage)))
        except BaseException as error:  # told to `start`, which waits for the outcome
            outcome.append(error)

    def _refuse_foreign_controller(self) -> None:
        if not self._exists(CONTROLLER, NAMESPACE):
            return
        raise InfrastructureError(
            f"this Ray cluster already has a {CONTROLLER} that this run did not start; "
            "its rows would mix with ours: stop that run, or use another Ray cluster"
        )

    def _check_cpus(self) -> None:
        import ray

        have, need = ray.cluster_resources().get("CPU", 0), self._units + 1
        if have < need:
            raise InfrastructureError(
                f"TransferQueue needs {need} Ray CPUs (controller and {self._units} storage unit(s)), the cluster has "
                f"{have:g}: start Ray with a larger num_cpus (it is only a number), or lower --num-data-storage-units"
            )

    def _actor_names(self) -> list[tuple[str, str | None]]:
        return [(CONTROLLER, NAMESPACE), *((f"{STORAGE_UNIT}{unit}", None) for unit in range(self._units))]

    def _kill_actors(self) -> None:
        import ray

        for name, namespace in self._actor_names():
            try:
                ray.kill(ray.get_actor(name, namespace=namespace))
            except ValueError:
                continue  # not there, which is what is wanted
        end = time.monotonic() + 5.0
        while time.monotonic() < end:  # a name stays taken until Ray has buried its actor
            if not any(self._exists(name, namespace) for name, namespace in self._actor_names()):
                return
            time.sleep(0.05)

    @staticmethod
    def _exists(name: str, namespace: str | None) -> bool:
        import ray

        try:
            ray.get_actor(name, namespace=namespace)
        except ValueError:
            return False
        return True


class TransferQueueBus:
    """The bus as one process sees it; connects at the first call. `producers` maps each table to its role.

    TransferQueue's own work (encoding, sockets) runs in a thread of its own, so a role's event loop stays free.
    """

    def __init__(
        self,
        attachment: Attachment,
        producers: Mapping[str, str],
        *,
        call_timeout_s: float = CALL_TIMEOUT_S,
        grace_s: float = CALL_TIMEOUT_S,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._attachment = attachment
        self._producers = dict(producers)
        self._call_timeout_s = call_timeout_s
        self._grace_s = grace_s  # from a drop to the clearing of its rows
        self._chunk_bytes = chunk_bytes
        self._thread: _ClientThread | None = None
        self._fenced: list[tuple[float, str, bool]] = []  # (when, TransferQueue partition, rows cleared), oldest first

    async def put(self, partition: str, table: str, blocks: Iterable[Block]) -> None:
        known_table(self._producers, table)
        blocks = list(blocks)
        for block in blocks:
            check_block(block)
        if blocks:
            where = self._where(partition, table)
            await self._run(
                f"put of {len(blocks)} blocks to {where}", lambda c: self._put(c, partition, where, blocks)
            )

    async def get(
        self, partition: str, tables: Iterable[str], uids: Iterable[int], *, deadline_s: float
    ) -> dict[str, dict[int, Block]]:
        tables, uids = tuple(tables), tuple(dict.fromkeys(uids))
        for table in tables:
            known_table(self._producers, table)
        if not tables or not uids:
            return {table: {} for table in tables}
        return await self._run(
            f"get of {len(uids)} blocks of {partition}",
            lambda client: self._get(client, partition, tables, uids, deadline_s),
            extra_s=deadline_s,
        )

    async def have(self, partition: str, table: str) -> frozenset[int]:
        known_table(self._producers, table)
        where = self._where(partition, table)
        rows = await self._run(f"list of {where}", lambda client: self._list(client, where))
        return frozenset() if rows is None else frozenset(rows)

    async def drop(self, partition: str) -> None:
        await self._run(f"drop of {partition}", lambda client: self._drop(client, partition))

    async def close(self) -> None:
        """Close this process's client; rows stay. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.close)

    def _where(self, partition: str, table: str) -> str:
        return f"{self._attachment.incarnation}/{partition}/{table}"

    # ------------------------------------------------------------------ calls, in the role's event loop

    async def _run(
        self, what: str, work: Callable[[AsyncTransferQueueClient], Awaitable[T]], *, extra_s: float = 0.0
    ) -> T:
        """Run `work` in the client's thread; each of its calls is bounded there, and the whole is bounded here."""
        if self._thread is None:
            self._thread = _ClientThread(self._attachment)
        thread, limit = self._thread, extra_s + 2 * self._call_timeout_s
        try:
            return await asyncio.wait_for(thread.run(work), limit)
        except (_NoAnswer, TimeoutError) as error:
            self._abandon(thread)
            waited = error.what if isinstance(error, _NoAnswer) else f"{what}, {limit:g} s"
            raise BusTimeout(
                f"TransferQueue did not answer ({waited}); the client is rebuilt at the next call"
            ) from error

    def _abandon(self, thread: _ClientThread) -> None:
        """Forget a client that hangs; its thread is a daemon and ends when its call does."""
        if self._thread is thread:
            self._thread = None
        threading.Thread(target=thread.close, daemon=True, name="transfer-queue-abandon").start()

    # ------------------------------------------------------------------ work, in the client's thread

    async def _ask(self, what: str, call: Awaitable[T]) -> T:
        """One bounded call to TransferQueue."""
        try:
            return await asyncio.wait_for(call, self._call_timeout_s)
        except TimeoutError as error:
            raise _NoAnswer(f"{what}, {self._call_timeout_s:g} s") from error
        except Exception as error:  # its errors have no common type; the caller hears of each as one kind
            if "StorageUnitTimeout" in (type(error).__name__, type(error.__cause__).__name__):
                raise _NoAnswer(f"{what}: {error}") from error
            raise InfrastructureError(f"TransferQueue failed in {what}: {type(error).__name__}: {error}") from error

    async def _list(self, client: AsyncTransferQueueClient, where: str) -> dict[int, dict[str, Any]] | None:
        """{uid: tag} of the complete rows, or None when the partition is fenced."""
        listing = await self._ask(f"list of {where}", client.async_kv_list(where))
        rows = listing.get(where, {})
        if DROPPED in rows:
            return None
        return {int(key): tag for key, tag in rows.items() if "digest" in tag}

    async def _put(
        self, client: AsyncTransferQueueClient, partition: str, where: str, blocks: Sequence[Block]
    ) -> None:
        there = await self._list(client, where)
        if there is None:
            raise dropped(partition)
        digests = {uid: tag["digest"] for uid, tag in there.items()}
        rows: list[tuple[str, dict[str, Any], bytes]] = []
        for block in blocks:
            data = encode_block(block)
            digest = digest_of(data)
            if digests.setdefault(block.uid, digest) != digest:
                raise BusConflict(f"{where}: uid {block.uid} was put with other contents before")
            if block.uid not in there:
                rows.append((str(block.uid), {"digest": digest, "bytes": len(data)}, data))
        rows = list({key: (key, tag, data) for key, tag, data in rows}.values())
        for chunk in _chunks(rows, [tag["bytes"] for _, tag, _ in rows], self._chunk_bytes):
            await self._write(client, where, chunk)
            ring(self._attachment.bell)
        if rows and await self._list(client, where) is None:
            raise dropped(partition)

    async def _write(
        self, client: AsyncTransferQueueClient, where: str, rows: Sequence[tuple[str, dict[str, Any], bytes]]
    ) -> None:
        from tensordict import NonTensorStack, TensorDict

        what = f"put of {len(rows)} rows to {where}"
        keys = [key for key, _, _ in rows]
        meta = await self._ask(what, client.async_kv_retrieve_meta(keys=keys, partition_id=where, create=True))
        meta.update_custom_meta([tag for _, tag, _ in rows])
        data = TensorDict({FIELD: NonTensorStack(*(payload for _, _, payload in rows))}, batch_size=[len(rows)])
        await self._ask(what, client.async_put(data, meta))

    async def _get(
        self,
        client: AsyncTransferQueueClient,
        partition: str,
        tables: tuple[str, ...],
        uids: tuple[int, ...],
        deadline_s: float,
    ) -> dict[str, dict[int, Block]]:
        result: dict[str, dict[int, Block]] = {}
        start = time.monotonic()
        while True:
            rung = rings(self._attachment.bell)  # before the question: what is written after it rings again
            missing: dict[str, list[int]] = {}
            for table in tables:
                if table in result:
                    continue
                rows = await self._list(client, self._where(partition, table))
                if rows is None:
                    raise dropped(partition)
                lost = [uid for uid in uids if uid not in rows]
                if lost:
                    missing[table] = lost
                else:
                    result[table] = await self._read(client, partition, table, {uid: rows[uid] for uid in uids})
            if not missing:
                return {table: result[table] for table in tables}
            if time.monotonic() - start >= deadline_s:
                raise BusTimeout(describe_missing(partition, missing, self._producers, deadline_s))
            await self._until_rung(rung, start, start + deadline_s)

    async def _until_rung(self, rung: int | None, start: float, deadline: float) -> None:
        """Return when a question is worth its cost: after a ring, after a while, or, without a bell, at each look."""
        asked = time.monotonic()
        while (now := time.monotonic()) < deadline:
            pause = min(max(LOOK_FIRST_S, (now - start) * LOOK_FRACTION), LOOK_LAST_S)
            await asyncio.sleep(min(pause, deadline - now))
            if rung is None or rings(self._attachment.bell) != rung or time.monotonic() - asked >= UNRUNG_S:
                return

    async def _read(
        self, client: AsyncTransferQueueClient, partition: str, table: str, rows: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, Block]:
        """Fetch complete rows and check every one by uid and digest."""
        where, found = self._where(partition, table), {}
        digests = {tag["digest"]: uid for uid, tag in rows.items()}
        for chunk in _chunks(list(rows), [tag["bytes"] for tag in rows.values()], self._chunk_bytes):
            what = f"get of {len(chunk)} rows of {where}"
            keys = [str(uid) for uid in chunk]
            meta = await self._ask(what, client.async_kv_retrieve_meta(keys=keys, partition_id=where, create=False))
            if meta.size != len(keys) or FIELD not in meta.field_names:
                break  # cleared in the meantime
            data = await self._ask(what, client.async_get_data(meta))
            for payload in data[FIELD]:
                block = decode_checked(payload, digests)
                if block is not None:
                    found[block.uid] = block
        lost = [uid for uid in rows if uid not in found]
        if lost:
            if await self._list(client, where) is None:
                raise dropped(partition)
            raise InfrastructureError(
                f"{where}: rows of uids {lost[:8]} were overwritten or lost; refill them from the trace"
            )
        return {uid: found[uid] for uid in rows}

    async def _drop(self, client: AsyncTransferQueueClient, partition: str) -> None:
        prefix = self._where(partition, "")
        known = await self._ask(f"drop of {partition}", client.async_get_partition_list())
        if any(name.startswith(prefix) for name in known):
            for table in self._producers:
                where = self._where(partition, table)
                fence = client.async_kv_retrieve_meta(keys=[DROPPED], partition_id=where, create=True)
                await self._ask(f"fence of {where}", fence)
                ring(self._attachment.bell)
                if all(name != where for _, name, _ in self._fenced):
                    self._fenced.append((time.monotonic(), where, False))
        await self._reclaim(client)

    async def _reclaim(self, client: AsyncTransferQueueClient) -> None:
        """Clear rows whose grace period is over, keep the fence; forget the oldest fences."""
        ripe = time.monotonic() - self._grace_s
        for place, (when, where, cleared) in enumerate(self._fenced):
            if when <= ripe and not cleared:
                await self._clear_rows(client, where)
                self._fenced[place] = (when, where, True)
        while len(self._fenced) > FENCES_KEPT * len(self._producers) and self._fenced[0][2]:
            _, where, _ = self._fenced.pop(0)
            # a look at the consumption grows the controller's tables, without which clearing can fail for ever
            await self._ask(f"look at {where}", client.async_get_consumption_status(FIELD, where))
            await self._ask(f"clear of {where}", client.async_clear_partition(where))

    async def _clear_rows(self, client: AsyncTransferQueueClient, where: str) -> None:
        listing = await self._ask(f"list of {where}", client.async_kv_list(where))
        keys = [key for key in listing.get(where, {}) if key != DROPPED]
        if keys:
            await self._ask(f"look at {where}", client.async_get_consumption_status(FIELD, where))
            call = client.async_kv_retrieve_meta(keys=keys, partition_id=where, create=False)
            meta = await self._ask(f"clear of {where}", call)
            await self._ask(f"clear of {where}", client.async_clear_samples(meta))


class _NoAnswer(Exception):
    """TransferQueue did not answer in time; `what` was asked."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class _ClientThread:
    """A TransferQueue client on an event loop and thread of its own, made at the first call."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._client: AsyncTransferQueueClient | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="transfer-queue-client")
        self._thread.start()

    async def run(self, work: Callable[[AsyncTransferQueueClient], Awaitable[T]]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._work(work), self._loop))

    async def _work(self, work: Callable[[AsyncTransferQueueClient], Awaitable[T]]) -> T:
        if self._client is None:
            self._client = self._connect()
        return await work(self._client)

    def _connect(self) -> AsyncTransferQueueClient:
        set_environment()
        from transfer_queue.client import AsyncTransferQueueClient

        controller, storage = pickle.loads(self._attachment.connection)
        client = AsyncTransferQueueClient(f"relax-{os.getpid()}-{uuid.uuid4().hex[:6]}", controller)
        try:
            client.initialize_storage_manager("SimpleStorage", storage)
        except Exception as error:  # its errors have no common type; the caller hears of each as one kind
            client.close()
            raise InfrastructureError(
                f"cannot attach to TransferQueue {self._attachment.incarnation} at {controller.ip}: "
                f"{type(error).__name__}: {error}; has its owner been restarted?"
            ) from error
        return client

    async def _cancel_work(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=1.0) if others else None
        self._loop.call_soon(self._loop.stop)

    def close(self) -> None:
        """Stop the loop, then close the sockets: closing while the loop runs is not safe. Blocking, 5 s at most."""
        asyncio.run_coroutine_threadsafe(self._cancel_work(), self._loop)
        self._thread.join(5.0)
        if self._thread.is_alive():
            return  # hangs inside TransferQueue; the daemon thread ends with its call or with the process
        if self._client is not None:
            self._client.close()
            self._client = None
        self._loop.close()


def ring(bell: str | None) -> None:
    """Wake the readers that wait: the bell grows by a byte. A node without it has nobody to wake."""
    with contextlib.suppress(FileNotFoundError):
        if bell is not None:
            file = os.open(bell, os.O_WRONLY | os.O_APPEND)
            os.write(file, b".")
            os.close(file)


def rings(bell: str | None) -> int | None:
    """How often the bell was rung, or None where there is none."""
    try:
        return None if bell is None else os.stat(bell).st_size
    except FileNotFoundError:
        return None


def digest_of(data: bytes) -> str:
    """`Block.digest` of an encoded block."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def decode_checked(payload: Any, digests: Mapping[str, int]) -> Block | None:
    """The block, or None when the bytes are not those of an expected row (`digests`: digest -> uid)."""
    if not isinstance(payload, bytes):
        return None
    uid = digests.get(digest_of(payload))
    return None if uid is None else decode_block(payload)  # the uid is part of the bytes, so it is the right one


def _chunks(items: Sequence[T], sizes: Sequence[int], limit: int) -> Iterator[list[T]]:
    """Cut `items` into runs of at most `limit` bytes, one item at least."""
    chunk: list[T] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if chunk and total + size > limit:
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += size
    if chunk:
        yield chunk
