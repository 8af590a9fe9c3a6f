#!/usr/bin/env bash
# Copyright (c) 2026 Relax Authors. All Rights Reserved.
#
# GRPO of Qwen3-Omni-30B-A3B on videos and text (NextQA); actor and rollout take turns on 16 cards. Two nodes:
# scripts/entrypoint/spmd-multinode.sh or ray-job.sh.
#
#   EXP_DIR      outputs, and what the next two fall back to   (the folder that holds this checkout)
#   MODEL_DIR    folder of Qwen3-Omni-30B-A3B-Instruct/
#   DATA_DIR     folder of NextQA/
#   PROMPT_SET   training data                                 (${DATA_DIR}/NextQA/train.jsonl)
#   NUM_ROLLOUT  rounds of "sample, then train"                (200)
#
# More flags may follow and win: run-qwen3-30B-A3B-omni-16xgpu-video.sh --num-rollout 10 --dry-run
set -euo pipefail

SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
# shellcheck source=/dev/null
source "${SCRIPT_DIR}/../../entrypoint/common.sh"
relax_paths
# shellcheck source=/dev/null
source "${MODEL_CONFIG_DIR}/qwen3-30B-A3B-omni.sh"

PROJECT_NAME=${PROJECT_NAME:-relax-omni}
RUN_NAME=${RUN_NAME:-qwen3-omni-30B-video}
NUM_ROLLOUT=${NUM_ROLLOUT:-200}
PROMPT_SET=${PROMPT_SET:-${DATA_DIR}/NextQA/train.jsonl}

CKPT_ARGS=(
   # tokenizer, processor and configuration
   --hf-checkpoint "${MODEL_DIR}/Qwen3-Omni-30B-A3B-Instruct/"
   # the reference model, and what training starts from where --load has no checkpoint
   --ref-load "${MODEL_DIR}/Qwen3-Omni-30B-A3B-Instruct/"
   # weights are converted in both directions by themselves
   --megatron-to-hf-mode bridge
   --load "${EXP_DIR}/${PROJECT_NAME}/${RUN_NAME}/"
   --save "${EXP_DIR}/${PROJECT_NAME}/${RUN_NAME}/"
   --save-interval 20
)

ROLLOUT_ARGS=(
   --prompt-data "${PROMPT_SET}"
   --input-key prompt
   --label-key label
   --apply-chat-template
   # a modality is read only when it is named, with its column
   --multimodal-keys '{"video":"video"}'
   --rollout-shuffle
   --rm-type multiple_choice
   --num-rollout "${NUM_ROLLOUT}"
   # 32 prompts x 8 answers = 256 samples a round
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-max-response-len 2048
   --rollout-temperature 1.0
   # samples of one optimizer step
   --global-batch-size 256
)

GRPO_ARGS=(
   --advantage-estimator grpo
   --eps-clip 0.2
   --eps-clip-high 0.28
)

OPTIMIZER_ARGS=(
   --lr 1e-6
   --lr-decay-style constant
   --weight-decay 0.1
   --adam-beta1 0.9
   --adam-beta2 0.98
)

PERF_ARGS=(
   --tensor-model-parallel-size 2
   --sequence-parallel
   --pipeline-model-parallel-size 1
   --context-parallel-size 1
   --expert-model-parallel-size 8
   --expert-tensor-parallel-size 1
   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1
   # samples are packed up to so many tokens a card; a longer one is a micro-batch of its own
   --use-dynamic-batch-size
   --max-tokens-per-gpu 9216
)

SGLANG_ARGS=(
   # tensor parallelism of one engine
   --rollout-num-gpus-per-engine 4
   --sglang-mem-fraction-static 0.7
)

LOG_ARGS=(
   --use-tensorboard
   --tb-project-name "${EXP_DIR}/tensorboard/${PROJECT_NAME}"
   --tb-experiment-name "${RUN_NAME}"
)

RESOURCE_ARGS=(
   # role: [replicas, cards in all]; replicas are 1
   --resource '{"actor": [1, 16], "rollout": [1, 16]}'
   --num-data-storage-units 1
   # actor and rollout take turns on the same cards, strictly on-policy
   --colocate
   --max-staleness 0
   # engines of other machines cannot read this one's memory
   --checkpoint-engine-backend gloo
)

launch "${RESOURCE_ARGS[@]}" "${MODEL_ARGS[@]}" "${CKPT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" \
   "${GRPO_ARGS[@]}" "${OPTIMIZER_ARGS[@]}" "${PERF_ARGS[@]}" "${SGLANG_ARGS[@]}" "${LOG_ARGS[@]}" "$@"
