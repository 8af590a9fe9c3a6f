# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# ruff: noqa: RUF009 (`flag` makes a dataclass field)
"""Which roles run where, and how far they may drift apart."""

from __future__ import annotations

from dataclasses import dataclass

from relax.config.flags import Section, above, at_least, flag
from relax.config.frozen import FrozenDict


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(Section):
    """Mode, resources, services and the data bus."""

    resource: FrozenDict | None = flag(
        None,
        help="Cards of each role, JSON {role: [replicas, cards in all]}; replicas is 1, cards 0 for a CPU role.",
        shown="from the mode and the cards of this machine",
    )
    colocate: bool = flag(False, help="Actor and rollout take turns on the same cards (strictly on-policy).")
    fully_async: bool = flag(False, help="Every role works at its own pace on its own cards.")
    hybrid: bool = flag(
        False,
        help="Actor and rollout work at their own pace on their own cards; the actor computes reference and old "
        "log-probs by itself, from copies of the weights.",
    )
    max_staleness: int = flag(
        0,
        help="Rollouts that generation may be ahead of the installed weights (RL); producer lead in steps (SFT).",
        check=at_least(0),
    )
    update_weights_interval: int = flag(
        1, help="Rollouts between two weight updates of the engines.", check=at_least(1)
    )
    stale_token_policy: str = flag(
        "wait",
        choices=("wait", "drop"),
        help="Let training wait for a slow group that would grow too old, or drop it once it is.",
    )
    deterministic: bool = flag(
        False,
        help="Decide by group ids and versions alone, never by what came first: equal runs end with equal weights.",
    )
    num_iters_per_train_update: int = flag(
        1,
        help="Parts in which the samples of one optimizer step are streamed to the trainer, which starts with the "
        "first while the others are generated.",
        check=at_least(1),
    )
    stream_order: str = flag(
        "uid",
        choices=("uid", "arrival"),
        help="Groups of a streamed part: the next ones by id, which gives the weights of the whole batch bit for bit, "
        "or the first that ended, which does not wait for slow ones and agrees up to rounding.",
    )
    actor_num_nodes: int | None = flag(None, help="Nodes of the actor.", check=at_least(1), shown="from --resource")
    actor_num_gpus_per_node: int | None = flag(
        None, help="Cards of the actor on each of its nodes.", check=at_least(1), shown="from --resource"
    )
    rollout_num_gpus: int | None = flag(
        None, help="Cards of all rollout engines together.", check=at_least(0), shown="from --resource"
    )
    rollout_num_gpus_per_engine: int = flag(1, help="Cards of one engine (its tensor parallelism).", check=at_least(1))
    num_gpus_per_node: int | None = flag(
        None, help="Cards of one node.", check=at_least(1), shown="those of this machine, 8 where they are not visible"
    )
    offload_train: bool | None = flag(
        None, help="The trainer leaves the cards while engines generate.", shown="on with --colocate"
    )
    offload_rollout: bool | None = flag(
        None, help="Engines leave the cards while the trainer works.", shown="on with --colocate"
    )
    distributed_timeout_minutes: float = flag(
        30.0, help="Longest wait for one collective operation between training ranks, in minutes.", check=above(0)
    )
    bus: str | None = flag(
        None,
        choices=("transfer_queue", "local"),
        help="What carries samples between the roles.",
        shown="transfer_queue; local with --inline",
    )
    num_data_storage_units: int = flag(1, help="Storage processes of the data bus.", check=at_least(1))
    checkpoint_engine_backend: str = flag(
        "shm",
        choices=("shm", "gloo"),
        later=("disk", "nccl"),
        help="How weight versions travel to engines and forward-only roles.",
    )
    use_fault_tolerance: bool = flag(False, help="Start an engine that has died again, with the newest weights.")
    scale_out_timeout: float = flag(
        1800.0, help="Longest time for engines that are added while a run goes on, in seconds.", check=above(0)
    )
    scale_in_drain_timeout: float = flag(
        30.0,
        help="Seconds in which an engine that leaves may end its requests; then they are cut off.",
        check=above(0),
    )
    scale_in_shutdown_timeout: float = flag(
        30.0, help="Seconds in which an engine that leaves must stop before it is killed.", check=above(0)
    )
    inline: bool = flag(False, help="Run every role in this process on an in-memory bus, without Ray.")
    ray_dashboard: bool = flag(
        False,
        help="Start Ray's dashboard with a local cluster (it takes 14-33 s on a laptop, and asks for RAY_AUTH_TOKEN: "
        "set one of your own).",
    )
    lend_cores: bool = flag(
        True,
        help="On CPU, the trainer computes further micro-batches on the cores of engines that wait; results keep "
        "their bits. On one node, and not with --deterministic.",
    )
    serve_http: bool = flag(True, help="Open the roles' HTTP routes.")
    serve_host: str = flag("127.0.0.1", help="Address that the HTTP routes listen on.")
    serve_port: int = flag(8000, help="Port of the HTTP routes; 0 takes any free one.", check=at_least(0))
    run_name: str | None = flag(
        None, help="Name of the run: of its folder and in the logs.", shown="from the model and the data"
    )
    dry_run: bool = flag(False, help="Print the resolved configuration and the batch arithmetic as JSON, then stop.")
