#!/usr/bin/env bash
# Copyright (c) 2026 Relax Authors. All Rights Reserved.
#
# Supervised fine-tuning of Qwen3.5-35B-A3B together with its multi-token-prediction layer on OpenMathReasoning-mini.
# 16 cards: two nodes, by scripts/entrypoint/spmd-multinode.sh.
#
#   EXP_DIR      outputs, and what the next two fall back to   (the folder that holds this checkout)
#   MODEL_DIR    folder of Qwen3.5-35B-A3B/
#   DATA_DIR     folder of sft/data/OpenMathReasoning-mini/
#   PROMPT_DATA  training data                                 (${DATA_DIR}/sft/data/OpenMathReasoning-mini/data/cot-00000-of-00001.parquet)
#
#   MTP_NUM_LAYERS 1             layers; the model and its checkpoint must have as many
#   MTP_LOSS_SCALING_FACTOR 0.2  weight of their loss
#   NUM_EPOCH 10   GLOBAL_BATCH_SIZE 64   MAX_TOKENS_PER_GPU 16384   LR 1e-5   SAVE_INTERVAL 100
#   TP_SIZE 2   PP_SIZE 2   EP_SIZE 4   CP_SIZE 1
#
# More flags may follow and win: run-qwen3.5-35B-A3B-mtp-sft-16xgpu.sh --num-epoch 1 --dry-run
set -euo pipefail

SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
# shellcheck source=/dev/null
source "${SCRIPT_DIR}/../../entrypoint/common.sh"
relax_paths
# shellcheck source=/dev/null
source "${MODEL_CONFIG_DIR}/qwen3.5-35B-A3B.sh"

PROJECT_NAME=${PROJECT_NAME:-relax-sft}
RUN_NAME=${RUN_NAME:-qwen3.5-35B-A3B-mtp}
PROMPT_DATA=${PROMPT_DATA:-${DATA_DIR}/sft/data/OpenMathReasoning-mini/data/cot-00000-of-00001.parquet}

CKPT_ARGS=(
   # tokenizer and configuration
   --hf-checkpoint "${MODEL_DIR}/Qwen3.5-35B-A3B"
   --ref-load "${MODEL_DIR}/Qwen3.5-35B-A3B"
   # where --load has no checkpoint, training starts from the Hugging Face weights
   --megatron-to-hf-mode bridge
   --load "${EXP_DIR}/${PROJECT_NAME}/${RUN_NAME}/"
   --save "${EXP_DIR}/${PROJECT_NAME}/${RUN_NAME}/"
   # training steps
   --save-interval "${SAVE_INTERVAL:-100}"
)

SFT_ARGS=(
   --loss-type sft
   --prompt-data "${PROMPT_DATA}"
   --input-key problem
   --label-key generated_solution
   # the number of steps follows from the size of the data
   --num-epoch "${NUM_EPOCH:-10}"
   --global-batch-size "${GLOBAL_BATCH_SIZE:-64}"
)

MTP_ARGS=(
   --mtp-num-layers "${MTP_NUM_LAYERS:-1}"
   --enable-mtp-training
   --mtp-loss-scaling-factor "${MTP_LOSS_SCALING_FACTOR:-0.2}"
)

EVAL_ARGS=(
   # a hundredth of the rows is held out, the same ones in every epoch
   --eval-size 0.01
   --eval-interval 10
)

OPTIMIZER_ARGS=(
   --lr "${LR:-1e-5}"
   --lr-decay-style cosine
   --weight-decay 0.1
   --clip-grad 1.0
   --adam-beta1 0.9
   --adam-beta2 0.98
)

PERF_ARGS=(
   --tensor-model-parallel-size "${TP_SIZE:-2}"
   --sequence-parallel
   --pipeline-model-parallel-size "${PP_SIZE:-2}"
   --context-parallel-size "${CP_SIZE:-1}"
   --expert-model-parallel-size "${EP_SIZE:-4}"
   --expert-tensor-parallel-size 1
   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1
   # samples are packed up to so many tokens a card
   --use-dynamic-batch-size
   --max-tokens-per-gpu "${MAX_TOKENS_PER_GPU:-16384}"
)

LOG_ARGS=(
   --use-tensorboard
   --tb-project-name "${EXP_DIR}/tensorboard/${PROJECT_NAME}"
   --tb-experiment-name "${RUN_NAME}"
)

RESOURCE_ARGS=(
   # role: [replicas, cards in all]; the producer of samples needs none
   --resource '{"sft": [1, 0], "actor": [1, 16]}'
)

launch "${RESOURCE_ARGS[@]}" "${MODEL_ARGS[@]}" "${CKPT_ARGS[@]}" "${SFT_ARGS[@]}" "${MTP_ARGS[@]}" \
   ${EVAL_ARGS[@]+"${EVAL_ARGS[@]}"} "${OPTIMIZER_ARGS[@]}" "${PERF_ARGS[@]}" "${LOG_ARGS[@]}" "$@"
