# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Flags that belong to features this version does not have. They are refused by name, never accepted and ignored."""

from __future__ import annotations

TRAIN_BACKENDS = ("fsdp",)

# Flags that have a place in a section and that nothing reads yet: any value but the default is refused. A line is
# removed in the change that makes its flag work.
PENDING: frozenset[str] = frozenset(
    {
        "offload_train",
        "offload_rollout",
        "log_probs_max_tokens_per_gpu",
        "prefetch_chunk_size",
        "eval_max_context_len",
    }
)

_LATER = {
    "checkpoint rotation and partial checkpoints": """
        rotate-ckpt max-actor-ckpt-to-keep only-load-weight async-save no-save-optim no-load-optim no-load-rng
        ref-ckpt-step ckpt-step reset-optimizer-states
    """,
    "other formats of the Hugging Face export": """
        save-hf-dtype save-hf-quant-mode save-hf-quant-block-size save-hf-post-hook-path
    """,
    "automatic restarts of roles and engines": """
        use-health-check max-global-restart rollout-health-check-interval
        rollout-health-check-timeout rollout-health-check-first-wait
        rollout-health-check-max-consecutive-failures
    """,
    "engines that run elsewhere, affinity and the autoscaler": """
        autoscaler-config scale-out-partial-success-policy enable-affinity rollout-external
        rollout-external-engine-addrs
    """,
    "reading of the bus without polling": """
        polling-mode
    """,
    "batch sizes that follow what was accepted": """
        use-dynamic-global-batch-size
    """,
    "own filters of the sample buffer": """
        buffer-filter-path
    """,
    "own rollout and data-source classes": """
        rollout-function-path eval-function-path data-source-path disable-rollout-global-dataset
        rollout-data-postprocess-path
        custom-convert-samples-to-train-data-path rollout-all-samples-process-path disable-rollout-trim-samples
        custom-rollout-log-function-path custom-eval-rollout-log-function-path
    """,
    "separate model parts and weights": """
        sglang-hf-checkpoint model-name custom-model-provider-path freeze-language-model freeze-vision-model
        freeze-vision-projection freeze-audio-model freeze-audio-projection only-train-params-name-list
        freeze-params-name-list vision-dp-when-tp vit-tp-size padded-vocab-size warm-hf-checkpoint-page-cache
        ref-actor-config keep-old-actor use-rollout-entropy
    """,
    "Megatron's training loop": """
        recompute-loss-function recompute-loss-function-use-reentrant allgather-cp custom-megatron-init-path
        custom-megatron-before-log-prob-hook-path custom-megatron-before-train-step-hook-path
        dynamic-context-parallel disable-weights-backuper selective-offload train-memory-margin-bytes
        update-weight-buffer-size fast-colocate-switching data-pad-size-multiplier
    """,
    "routing replay": """
        use-routing-replay use-rollout-routing-replay optimize-routing-replay
    """,
    "presets of loss masks": """
        loss-mask-type
    """,
    "deferred and categorised rewards": """
        defer-reward-to-post-process
        log-reward-category log-correct-samples log-multi-turn
    """,
    "media rules beyond token limits": """
        normalize-bbox use-audio-in-video encode-max-workers deepeyes-qwen-vl-patch
    """,
    "alerts and timelines": """
        notify-urls timeline-dump-dir
    """,
    "profiling": """
        use-pytorch-profiler profile-step-start profile-step-end profile-target profile-with-stack
        profile-with-memory profile-with-flops record-memory-history memory-snapshot-dir
        memory-snapshot-num-steps memory-recorder enable-cuda-memory-check
    """,
    "debug dumps other than --dump-details": """
        debug-rollout-only debug-train-only save-debug-rollout-data load-debug-rollout-data
        load-debug-rollout-data-subsample save-debug-train-data load-forge-rollout-data check-weight-update-equal
        ci-test ci-disable-kl-checker ci-save-grad-norm ci-load-grad-norm
    """,
    "agentic rollout": """
        use-agentic-rollout agent-command agent-cwd agent-timeout agent-env
    """,
    "the rollout buffer service": """
        rollout-buffer-url fetch-trajectory-retry-times min-batch-collection-ratio rollout-task-type
    """,
    "several teachers, and teachers of a Megatron checkpoint": """
        opd-teacher-routes opd-teacher-key opd-teacher-ckpt-step
    """,
    "remote HTTP posting": """
        http-proxy use-distributed-post
    """,
    "model sources in object stores": """
        s3-model-shm-root s3-model-download-workers disable-s3-model-download disable-s3-model-cleanup
    """,
    "remote stepping": """
        rlsp-server-port
    """,
}
LATER_FLAGS: dict[str, str] = {flag: feature for feature, flags in _LATER.items() for flag in flags.split()}

LATER_PREFIXES: dict[str, str] = {
    "agentic-": "agentic rollout",
    "teacher-sglang-": "SGLang flags of the teacher's engines alone",
    "use-slime-router": "other routers",
    "slime-router-": "other routers",
    "straggler-": "straggler analysis",
    "fsdp-": "FSDP options of the diffusion trainer",
}


def later_feature(flag: str) -> str | None:
    """The feature that a flag (`--lora-rank`, or its `--no-` form) belongs to, when this version lacks it."""
    name = flag.removeprefix("--")
    for candidate in (name, name.removeprefix("no-")):
        if candidate in LATER_FLAGS:
            return LATER_FLAGS[candidate]
        for prefix, feature in LATER_PREFIXES.items():
            if candidate.startswith(prefix):
                return feature
    return None
