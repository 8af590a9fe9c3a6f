# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A receiver in a process of its own, for test_gloo: joins a group, receives tensors, prints their checksums.

`sglang` joins as SGLang does, through torch's own rendezvous and process-group helper.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import torch
import torch.distributed.distributed_c10d as c10d
from torch.distributed import PrefixStore, TCPStore, rendezvous

from relax.distributed.checkpoint_service.checksums import tensor_checksum
from relax.distributed.checkpoint_service.gloo import broadcast, join_group


def main() -> None:
    kind, port, name, rank, world_size, body = sys.argv[1:7]
    timeout = timedelta(seconds=20)
    if kind == "native":
        store = TCPStore("127.0.0.1", int(port), int(world_size), is_master=False, timeout=timeout)
        group = join_group(store, name, int(rank), int(world_size), timeout)
        receive = lambda tensor: broadcast(group, tensor)  # noqa: E731
    else:
        address = f"tcp://127.0.0.1:{port}"
        store, _, _ = next(rendezvous(address, int(rank), int(world_size), timeout=timeout))
        prefixed = PrefixStore(name, store)
        group, _ = c10d._new_process_group_helper(
            int(world_size), int(rank), [], "gloo", prefixed, group_name=name, timeout=timeout
        )
        c10d._world.pg_group_ranks[group] = {place: place for place in range(int(world_size))}
        receive = lambda tensor: torch.distributed.broadcast(tensor, src=0, group=group)  # noqa: E731
    got = {}
    for tensor_name, dtype, shape in json.loads(body):
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        receive(tensor)
        got[tensor_name] = tensor_checksum(tensor)
    print(json.dumps(got))


if __name__ == "__main__":
    main()
