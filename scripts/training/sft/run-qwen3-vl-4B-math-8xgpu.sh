#!/usr/bin/env bash
# Copyright (c) 2026 Relax Authors. All Rights Reserved.
#
# Supervised fine-tuning of Qwen3-VL-4B-Instruct on text alone (OpenMathReasoning-mini): `problem` ->
# `generated_solution`, with PPL evaluation and predictions. 8 cards; actor and rollout take turns on them. One node.
#
#   MODEL_DIR    folder of Qwen3-VL-4B-Instruct/               (none: it must be set)
#   DATA_DIR     folder of sft/data/OpenMathReasoning-mini/    (data/ beside this script)
#   EXP_DIR      outputs                                       (the folder that holds this checkout)
#   PROMPT_DATA  training data                                 (${DATA_DIR}/sft/data/OpenMathReasoning-mini/data/cot-00000-of-00001.parquet)
#   NUM_EPOCH    times the data is gone through                (10)
#
# More flags may follow and win: run-qwen3-vl-4B-math-8xgpu.sh --num-epoch 1 --dry-run
set -euo pipefail

SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
# shellcheck source=/dev/null
source "${SCRIPT_DIR}/../../entrypoint/common.sh"
relax_sft_paths "${SCRIPT_DIR}" Qwen3-VL-4B-Instruct
# shellcheck source=/dev/null
source "${MODEL_CONFIG_DIR}/qwen3-vl-4B.sh"

PROJECT_NAME=${PROJECT_NAME:-relax-sft}
RUN_NAME=${RUN_NAME:-qwen3-vl-4B-math}
NUM_EPOCH=${NUM_EPOCH:-10}
PROMPT_DATA=${PROMPT_DATA:-${DATA_DIR}/sft/data/OpenMathReasoning-mini/data/cot-00000-of-00001.parquet}

CKPT_ARGS=(
   # tokenizer, configuration, and what engines start from when predictions are on
   --hf-checkpoint "${MODEL_DIR}/Qwen3-VL-4B-Instruct"
   --ref-load "${MODEL_DIR}/Qwen3-VL-4B-Instruct"
   # where --load has no checkpoint, training starts from the Hugging Face weights
   --megatron-to-hf-mode bridge
   --load "${EXP_DIR}/${PROJECT_NAME}/${RUN_NAME}/"
   --save "${EXP_DIR}/${PROJECT_NAME}/${RUN_NAME}/"
   # training steps
   --save-interval 100
)

SFT_ARGS=(
   --loss-type sft
   --prompt-data "${PROMPT_DATA}"
   --input-key problem
   --label-key generated_solution
   # the number of steps follows from the size of the data
   --num-epoch "${NUM_EPOCH}"
   --global-batch-size 32
)

EVAL_ARGS=(
   # a hundredth of the rows is held out, the same ones in every epoch
   --eval-size 0.01
   --eval-interval 10
)

PREDICT_ARGS=(
   --sft-predict-interval 10
   --eval-temperature 0.0
   --eval-max-response-len 10240
)

OPTIMIZER_ARGS=(
   --lr 1e-5
   --lr-decay-style cosine
   --weight-decay 0.1
   --clip-grad 1.0
   --adam-beta1 0.9
   --adam-beta2 0.98
)

PERF_ARGS=(
   --tensor-model-parallel-size 4
   --sequence-parallel
   --pipeline-model-parallel-size 2
   --context-parallel-size 1
   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1
   # samples are packed up to so many tokens a card
   --use-dynamic-batch-size
   --max-tokens-per-gpu 16384
)

SGLANG_ARGS=(
   # tensor parallelism of one engine
   --rollout-num-gpus-per-engine 1
   --sglang-mem-fraction-static 0.6
)

LOG_ARGS=(
   --use-tensorboard
   --tb-project-name "${EXP_DIR}/tensorboard/${PROJECT_NAME}"
   --tb-experiment-name "${RUN_NAME}"
)

RESOURCE_ARGS=(
   # role: [replicas, cards in all]; the producer of samples needs none, and rollout works on the actor's
   --resource '{"sft": [1, 0], "actor": [1, 8], "rollout": [1, 8]}'
)

launch "${RESOURCE_ARGS[@]}" "${MODEL_ARGS[@]}" "${CKPT_ARGS[@]}" "${SFT_ARGS[@]}" ${EVAL_ARGS[@]+"${EVAL_ARGS[@]}"} \
   ${PREDICT_ARGS[@]+"${PREDICT_ARGS[@]}"} "${OPTIMIZER_ARGS[@]}" "${PERF_ARGS[@]}" "${SGLANG_ARGS[@]}" \
   "${LOG_ARGS[@]}" "$@"
