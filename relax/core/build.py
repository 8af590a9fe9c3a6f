# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""From a configuration to role objects. Runs in the process that hosts the role; heavy imports stay inside."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from relax.algorithms.options import AlgorithmOptions
from relax.backends.additions import LORA_MATRICES
from relax.backends.base import EngineClient, EngineConfig, ModelSpec, OptimizerSpec, TrainBackend
from relax.components.messages import PRODUCERS
from relax.components.training_data import BatchSettings
from relax.config.checks import MEDIA_LIMITS
from relax.config.run import RunConfig
from relax.core.model_parts import asks_adapter, class_head, lora_spec, mtp_scale, mtp_spec, publishes_adapter
from relax.core.run_folder import RunFolder, result_folder
from relax.data.media.processing import MediaOptions
from relax.distributed.bus.base import Bus
from relax.distributed.bus.factory import make_bus
from relax.distributed.checkpoint_service.base import ADAPTER_NAME
from relax.schedule.clock import Clock, RealClock
from relax.utils.errors import ConfigError

TABLE_OF_ROLE = {"reference": ("ref", "ref_logprobs"), "actor_fwd": ("actor_fwd", "old_logprobs")}
USER_FUNCTIONS = (
    "custom_advantage_function_path",
    "custom_loss_function_path",
    "custom_pg_loss_reducer_function_path",
)
TOLD_IDS_TIMEOUT_S = 300.0  # for a process that imports transformers and reads a tokenizer
STATE_DEADLINE_S = 1800.0  # a role waits this long for another role's columns


@dataclass(frozen=True)
class Wiring:
    """What a role's process must know besides the configuration. Picklable, without torch."""

    run_dir: Path
    shared_dir: Path  # weight versions; below /dev/shm on one machine
    router_host: str = "127.0.0.1"
    router_port: int = 0
    bus_attachment: Any = None
    engine_urls: Mapping[str, str] = field(default_factory=dict)
    served_urls: Mapping[str, str] = field(default_factory=dict)  # of engines beside the policy's, see served_models
    incarnation: int = 0
    namespace: str = ""  # of the run's Ray actors
    metrics_url: str | None = None  # of the metrics service
    actor_host: str = "127.0.0.1"  # training rank 0, as the engines see it


@dataclass
class InProcess:
    """Objects that an inline run shares between its roles."""

    bus: Bus
    engines: Mapping[str, EngineClient]
    clock: Clock
    actor: Any = None  # set once it is built

    async def send_weights(self, version: int, num_receivers: int, group_name: str) -> None:
        await self.actor.send_weights(version, num_receivers, group_name)


# ---------------------------------------------------------------------- plain options


def algorithm_options(config: RunConfig) -> AlgorithmOptions:
    section = config.algorithm
    names = {f.name for f in dataclasses.fields(AlgorithmOptions)} & set(dir(section))
    values = {name: getattr(section, name) for name in names}
    return AlgorithmOptions(
        **{
            **values,
            "old_log_probs": config.old_log_probs,
            "rollout_max_response_len": config.rollout.rollout_max_response_len,
            "invalid_reward": section.invalid_reward_policy,
            "zero_variance": section.zero_variance_policy,
            "disable_rewards_normalization": section.disable_rewards_normalization
            or config.reward.custom_reward_post_process_path is not None,
            "args": config.flat() if any(values[name] is not None for name in USER_FUNCTIONS) else None,
        }
    )


def batch_settings(config: RunConfig) -> BatchSettings:
    train = config.train
    return BatchSettings(
        group_size=config.rollout.n_samples_per_prompt,
        global_batch_size=train.global_batch_size,  # type: ignore[arg-type]
        max_tokens=train.max_tokens_per_gpu if train.use_dynamic_batch_size else None,
        micro_batch_size=train.micro_batch_size,
    )


def model_spec(config: RunConfig, *, trainable: bool) -> ModelSpec:
    """The trainer's model: `--ref-load`, which falls back to `--hf-checkpoint`; `--load` comes on top."""
    train = config.train
    return ModelSpec(
        hf_path=Path(config.initial_model),
        dtype=train.train_dtype,  # type: ignore[arg-type]
        temperature=config.rollout.rollout_temperature,
        suppressed_ids=suppressed_ids(config),
        gradient_checkpointing=config.gradient_checkpointing,
        **({} if train.log_probs_chunk_size < 1 else {"logprob_chunk": train.log_probs_chunk_size}),
        trainable=trainable,
        head=class_head(config),
        lora=lora_spec(config) if trainable else None,
        mtp=mtp_spec(config) if trainable else None,
    )


def optimizer_spec(config: RunConfig) -> OptimizerSpec:
    section = config.optimizer
    return OptimizerSpec(
        lr=section.lr,
        betas=(section.adam_beta1, section.adam_beta2),
        eps=section.adam_eps,
        weight_decay=section.weight_decay,
        clip_grad=section.clip_grad,
        warmup_steps=section.lr_warmup_iters,
        decay_style=section.lr_decay_style,  # type: ignore[arg-type]
        decay_steps=section.lr_decay_iters,
        min_lr=section.min_lr,
        offload=config.optimizer_offload,
    )


def engine_config(config: RunConfig, log_path: Path | None = None) -> EngineConfig:
    rollout = config.rollout
    of_sglang = rollout.rollout_backend == "sglang"
    return EngineConfig(
        model_path=Path(config.checkpoint.hf_checkpoint),  # type: ignore[arg-type]
        dtype=rollout.rollout_dtype,  # type: ignore[arg-type]
        tensor_parallel=config.cluster.rollout_num_gpus_per_engine if of_sglang else 1,
        max_running_requests=rollout.engine_max_running_requests,
        max_total_tokens=rollout.engine_max_total_tokens,
        context_length=rollout.rollout_max_context_len,
        seed=rollout.rollout_seed,
        suppressed_ids=told_ids(config),
        media_options=media_options(config),
        extra_args=config.external.argv("sglang") if of_sglang else (),
        log_path=log_path,
    )


def adapter_args(config: RunConfig) -> tuple[str, ...]:
    """SGLang's flags of a policy that it gets as adapters."""
    if not asks_adapter(config):
        return ()
    folder = Path(config.checkpoint.hf_checkpoint)  # type: ignore[arg-type]
    parts = {"vision_config", "audio_config", "thinker_config"} & set(json.loads((folder / "config.json").read_text()))
    if parts:
        raise ConfigError(
            f"--lora-adapter-mode: the model has {sorted(parts)}, and SGLang takes adapters of text models alone in "
            "this version; use --lora-merge-mode, which sends merged weights"
        )
    names = [name for target in config.lora.lora_target_modules for name in LORA_MATRICES[target]]
    rank = str(config.lora.lora_rank)
    return ("--enable-lora", "--max-lora-rank", rank, "--max-loras-per-batch", "2", "--lora-target-modules", *names)


def told_ids(config: RunConfig) -> tuple[int, ...] | None:
    """The same ids for SGLang, which must be told; the native engine finds them by itself.

    Asked of a process of its own: this one hosts an engine, and would keep torch and transformers for nothing.
    """
    if config.rollout.rollout_backend != "sglang":
        return None
    command = [sys.executable, "-m", "relax.data.media.suppressed", str(config.checkpoint.hf_checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOLD_IDS_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise ConfigError(f"the media ids of --hf-checkpoint cannot be read: {done.stderr.strip()[-500:]}")
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def media_options(config: RunConfig) -> MediaOptions:
    """Of the `MediaProcessor` of the rollout role and of every engine: one value, so that all see one prompt."""
    limits = {name: getattr(config.data, name) for name in MEDIA_LIMITS}
    return MediaOptions(**limits, as_sglang=config.rollout.rollout_backend == "sglang")


def suppressed_ids(config: RunConfig) -> tuple[int, ...]:
    """Media ids that are never sampled, by the very rule of the native engine."""
    from relax.data.media.suppressed import suppressed_ids_of

    return suppressed_ids_of(Path(config.checkpoint.hf_checkpoint))  # type: ignore[arg-type]


def tables(config: RunConfig) -> tuple[str, ...]:
    """What the actor reads besides `rollout` and `media`: one table for each role that writes one."""
    names = ["advantages"]
    if config.uses_kl and ("reference" in config.resource or config.algorithm.kl_coef > 0):
        names.append("ref")
    if config.old_log_probs_role == "actor_fwd":
        names.append("actor_fwd")
    if config.distillation.use_opd:
        names.append("teacher")
    return tuple(names)


def bus_tables(config: RunConfig) -> tuple[str, ...]:
    """Every table that a role of this run writes."""
    own = {"critic": config.uses_critic, "student": config.asks_student}
    return ("rollout", "media", *tables(config), *(name for name, written in own.items() if written))


# ---------------------------------------------------------------------- roles


def build_bus(config: RunConfig, wiring: Wiring, shared: InProcess | None) -> Bus:
    if shared is not None:
        return shared.bus
    producers = {table: role for table, role in PRODUCERS.items() if table in bus_tables(config)}
    return make_bus("transfer_queue", producers, attachment=wiring.bus_attachment)


def build_actor(
    config: RunConfig,
    wiring: Wiring,
    rank: int = 0,
    shared: InProcess | None = None,
    wrap_backend: Callable[[TrainBackend], TrainBackend] | None = None,
) -> Any:
    """One training rank. The process group's variables are in the environment when there are several ranks.

    `wrap_backend` may look at what the backend is given.
    """
    from relax.algorithms.options import build_statistic
    from relax.components.actor import Actor
    from relax.core.build_teacher import distilled
    from relax.core.parity import build_parity

    backend, options = train_backend(config), algorithm_options(config)
    return Actor(
        backend=wrap_backend(backend) if wrap_backend else backend,
        loss=distilled(policy_loss(config), config),
        statistic=build_statistic(options),
        model=replace(model_spec(config, trainable=True), num_top=config.distillation.opd_log_prob_top_k),
        optimizer=optimizer_spec(config),
        settings=batch_settings(config),
        bus=build_bus(config, wiring, shared),
        publisher=build_publisher(config, wiring) if rank == 0 else None,
        clock=shared.clock if shared else RealClock(),
        deadline_s=STATE_DEADLINE_S,
        keep_reference=config.uses_kl and "reference" not in config.resource,
        parity=build_parity(config),
        executor=ThreadPoolExecutor(1, thread_name_prefix="actor"),
        adapter_alone=publishes_adapter(config),
    )


def policy_loss(config: RunConfig) -> Any:
    """What the actor of reinforcement learning minimises."""
    from relax.algorithms.options import build_loss
    from relax.algorithms.supervised.mtp import WithMtp

    loss, scale = build_loss(algorithm_options(config)), mtp_scale(config)
    return loss if scale is None else WithMtp(loss, scale)


def build_publisher(config: RunConfig, wiring: Wiring) -> Any:
    """The sending side of --checkpoint-engine-backend."""
    if config.cluster.checkpoint_engine_backend == "gloo":
        from relax.distributed.checkpoint_service.gloo import GlooPublisher

        receiver = "sglang" if config.rollout.rollout_backend == "sglang" else "native"
        return GlooPublisher(wiring.actor_host, receiver=receiver, name_map=engine_names(config))
    from relax.distributed.checkpoint_service.publishers import SharedMemoryPublisher

    folder = Path(config.checkpoint.hf_checkpoint)  # type: ignore[arg-type]
    return SharedMemoryPublisher(wiring.shared_dir, folder, name_map=engine_names(config))


def remote_sender(wiring: Wiring) -> Any:
    """How the rollout worker asks training rank 0 to broadcast, by the rank's Ray name."""

    async def send(version: int, num_receivers: int, group_name: str) -> None:
        import ray

        from relax.distributed.ray.handles import RemoteRole

        rank = ray.get_actor("actor-0", namespace=wiring.namespace)
        await RemoteRole("actor", rank).send_weights(version, num_receivers, group_name)

    return send


def train_backend(config: RunConfig, *, value_head: bool = False) -> Any:
    """The backend of this rank, joined to its process group."""
    import torch

    from relax.backends.fsdp.backend import FsdpBackend
    from relax.backends.fsdp.distributed import init_distributed
    from relax.utils.cores import CoreShare

    if not torch.cuda.is_available():
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    ranks = init_distributed(timeout_s=config.cluster.distributed_timeout_minutes * 60)
    return FsdpBackend(
        ranks,
        shared_prefix=config.train.shared_prefix,
        value_head=value_head,
        cores=CoreShare.from_environment(),
    )


def engine_names(config: RunConfig) -> Any:
    """How weight names change on the way to the engine; the native engine takes the trainer's."""
    if config.rollout.rollout_backend != "sglang":
        return None
    from relax.distributed.checkpoint_service.naming import THINKER, sglang_names

    model = json.loads((Path(config.checkpoint.hf_checkpoint) / "config.json").read_text())  # type: ignore[arg-type]
    return sglang_names(THINKER if "thinker_config" in model else "")


def build_forward(role: str, config: RunConfig, wiring: Wiring, shared: InProcess | None = None) -> Any:
    """The reference or actor_fwd role."""
    from relax.components.actor_fwd import ForwardRole

    table, column = TABLE_OF_ROLE[role]
    return ForwardRole(
        name=role,
        table=table,
        column=column,
        backend=train_backend(config),
        model=forward_spec(role, config),
        settings=batch_settings(config),
        bus=build_bus(config, wiring, shared),
        clock=shared.clock if shared else RealClock(),
        deadline_s=STATE_DEADLINE_S,
        executor=ThreadPoolExecutor(1, thread_name_prefix=role),
    )


def forward_spec(role: str, config: RunConfig) -> ModelSpec:
    """A role that takes published versions has an adapter of its own where they are one."""
    spec = model_spec(config, trainable=False)
    takes = role == "actor_fwd" or config.algorithm.ref_update_interval is not None
    return replace(spec, lora=lora_spec(config)) if takes and publishes_adapter(config) else spec


def build_advantages(config: RunConfig, wiring: Wiring, shared: InProcess | None = None) -> Any:
    from relax.components.advantages import Advantages

    return Advantages(
        bus=build_bus(config, wiring, shared),
        options=algorithm_options(config),
        group_size=config.rollout.n_samples_per_prompt,
        global_batch_size=config.train.global_batch_size,  # type: ignore[arg-type]
        deadline_s=STATE_DEADLINE_S,
    )


def hook_arguments(config: RunConfig, wiring: Wiring) -> Any:
    """`args` of user functions: every flag, and where this run is."""
    return config.flat().with_facts(
        sglang_router_ip=wiring.router_host,
        sglang_router_port=wiring.router_port,
        run_dir=str(wiring.run_dir),
        metrics_service_url=wiring.metrics_url,
    )


def build_rollout(config: RunConfig, wiring: Wiring, shared: InProcess | None = None) -> Any:
    """The rollout role with everything it owns."""
    from relax.components.elastic import EngineRequests
    from relax.components.engines import EngineFleet
    from relax.components.rollout import Rollout, RolloutSettings
    from relax.core.rollout_parts import (
        Evaluator,
        Preparer,
        details_writer,
        open_prompts,
        post_process,
        sample_filter,
    )
    from relax.distributed.trace import TraceWriter
    from relax.engine.filters.dynamic import load_dynamic_filter
    from relax.engine.rollout.groups import GroupGenerator
    from relax.engine.rollout.hooks import load_hook
    from relax.engine.rollout.state import sampling_options
    from relax.engine.router.workers import RouterWorkers
    from relax.schedule.journal import FileJournal

    clock = shared.clock if shared else RealClock()
    folder = RunFolder(wiring.run_dir)
    args = hook_arguments(config, wiring)
    fleet = EngineFleet(
        shared.engines if shared else http_engines(config, wiring),
        clock=clock,
        send=shared.send_weights if shared else remote_sender(wiring),
        workers=None if shared else RouterWorkers(f"http://{wiring.router_host}:{wiring.router_port}", clock=clock),
        connect=None if shared else functools.partial(http_engine, config, folder),
    )
    fixed = shared is not None or config.mode == "colocate"
    refused = "engines come and go with --fully-async or --hybrid only" if fixed else None
    preparer = Preparer(config)
    scorer = build_scorer(config, args, clock)
    hook = load_hook(config.rollout.custom_generate_function_path)
    options = rollout_options(config)
    filter_path = config.rollout.dynamic_sampling_filter_path
    generator = GroupGenerator(
        args=args,
        hook=hook,
        sampling_params=sampling_options(args).params(),
        options=options,
        clock=clock,
        scorer=scorer,
        dynamic_filter=load_dynamic_filter(filter_path) if filter_path else None,
        filter_path=filter_path or "",
        engines=fleet,
    )
    evaluator = Evaluator(
        config,
        preparer=preparer,
        args=args,
        hook=hook,
        options=options,
        scorer=scorer,
        clock=clock,
        wait_open=generator.wait_open,
    )

    async def close() -> None:
        await scorer.close()
        preparer.close()
        await fleet.close()

    return Rollout(
        dataset=open_prompts(config),
        prepare=preparer.prepare,
        generator=generator,
        engines=fleet,
        bus=build_bus(config, wiring, shared),
        trace=TraceWriter(folder.trace),
        journal=FileJournal(folder.journal, "rollout", incarnation=wiring.incarnation),
        clock=clock,
        settings=RolloutSettings(
            n_samples_per_prompt=config.rollout.n_samples_per_prompt,
            reward_key=config.reward.reward_key,
            result_dir=result_folder(config, folder),
            interrupt_for_weights=config.rollout.partial_rollout,
            generate_timeout_s=config.rollout.generate_timeout_s,
            drop_overlong=config.rollout.overlong_prompt != "error",
            in_order=config.cluster.deterministic,
            max_staleness=config.cluster.max_staleness,
            samples_per_engine=config.rollout.sglang_server_concurrency or 1,
            router_url=None if shared else f"http://{wiring.router_host}:{wiring.router_port}",
            lora_path=options.lora_path,
        ),
        sample_filter=sample_filter(config, args),
        post_process=post_process(config, args),
        details=details_writer(config, bus_tables(config)[2:]),
        evaluate=evaluator.run if config.eval_datasets else None,
        engine_requests=EngineRequests(fleet.names, refused=refused, wall_time=time.time),
        close=close,
        executor=ThreadPoolExecutor(1, thread_name_prefix="rollout"),
    )


def rollout_options(config: RunConfig) -> Any:
    from relax.engine.rollout.attempts import GenerationOptions

    rollout = config.rollout
    return GenerationOptions(
        seed=rollout.rollout_seed,
        max_response_len=rollout.rollout_max_response_len,
        max_running_samples=max(1, (rollout.sglang_server_concurrency or 1) * max(1, config.num_engines)),
        call_timeout_s=rollout.generate_timeout_s,
        on_failure=rollout.rollout_failure_policy,  # type: ignore[arg-type]
        partial_rollout=rollout.partial_rollout,
        strict_timing=config.cluster.deterministic,
        protected_after=rollout.partial_rollout_max_aborted_count,
        mask_off_policy=rollout.mask_offpolicy_in_partial_rollout,
        lora_path=ADAPTER_NAME if asks_adapter(config) else None,
    )


def build_scorer(config: RunConfig, args: Any, clock: Clock) -> Any:
    from relax.engine.rewards.score import RewardScorer

    reward = config.reward
    return RewardScorer(
        rm_type=reward.rm_type,
        rm_type_infer=reward.rm_type_infer,
        rm_type_fallback=reward.rm_type_fallback,
        custom_rm_path=reward.custom_rm_path,
        group_rm=reward.group_rm,
        reward_key=reward.reward_key,
        rm_url=reward.rm_url,
        args=args,
        max_concurrency=reward.reward_max_concurrency,
        num_workers=min(reward.reward_num_workers, max(1, (os.cpu_count() or 1))),
        timeout_s=reward.reward_timeout_s,
        on_failure=reward.reward_failure_policy,
        strict_timing=config.cluster.deterministic,
        clock=clock,
    )


def http_engines(config: RunConfig, wiring: Wiring) -> dict[str, EngineClient]:
    folder = RunFolder(wiring.run_dir)
    return {name: http_engine(config, folder, name, url) for name, url in wiring.engine_urls.items()}


def http_engine(config: RunConfig, folder: RunFolder, name: str, url: str) -> EngineClient:
    from relax.backends.engine_client import HttpEngineClient

    log = folder.log(f"{name}-process")
    return HttpEngineClient(url, timeout_s=config.rollout.rollout_http_timeout, log_path=log)


def build_engine(config: RunConfig, log_path: Path, host: str) -> Any:
    """One engine process that listens on `host`, for the worker that hosts it. Imports no torch."""
    from relax.backends.engine_process import EngineProcess

    own = engine_config(config, log_path)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return EngineProcess(
        engine_spec(config),
        replace(own, extra_args=(*own.extra_args, *adapter_args(config))),
        clock=RealClock(),
        host=host,
        gpus=tuple(int(card) for card in visible.split(",") if card.strip().isdecimal()),
        start_timeout_s=config.rollout.rollout_engine_init_timeout,
    )


def engine_spec(config: RunConfig) -> Any:
    if config.rollout.rollout_backend == "sglang":
        from relax.backends.sglang.spec import SglangEngine

        return SglangEngine(config.rollout.sglang_python)
    from relax.backends.native.spec import NativeEngine

    return NativeEngine()
