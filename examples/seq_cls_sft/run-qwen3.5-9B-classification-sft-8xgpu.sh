#!/usr/bin/env bash
# Copyright (c) 2026 Relax Authors. All Rights Reserved.
#
# Sequence classification with Qwen3.5-9B, all parameters, on SST-2, AG News or GoEmotions as prepared by
# examples/seq_cls_sft/tools/prepare_classification_sft_data.py. 8 cards, one node.
#
#   MODEL_DIR               folder of Qwen3.5-9B/   (none: it must be set)
#   DATA_DIR                folder of sft/seq_cls/  (data/ beside this script)
#   EXP_DIR                 outputs                 (the folder that holds this checkout)
#   CLASSIFICATION_DATASET  sst2, ag_news or go_emotions                        (sst2)
#   DATA_SUBSET             full, smoke or extended                             (full)
#   TRAIN_DATA, EVAL_DATA   own .jsonl files                                    (train.jsonl and eval.jsonl of the set)
#   NUM_LABELS              classes                                             (those of the set)
#   PROBLEM_TYPE            single_label_classification, multi_label_classification  (that of the set)
#   NUM_EPOCH 10   GLOBAL_BATCH_SIZE 64   MAX_TOKENS_PER_GPU 8192   LR 1e-5   SAVE_INTERVAL 100   EVAL_INTERVAL 100
#   CLASSIFICATION_THRESHOLD 0.5   probability from which on a class of several counts, in evaluation only
#
# More flags may follow and win: run-qwen3.5-9B-classification-sft-8xgpu.sh --num-epoch 1 --dry-run
set -euo pipefail

SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
# shellcheck source=/dev/null
source "${SCRIPT_DIR}/../../scripts/entrypoint/common.sh"
# shellcheck source=/dev/null
source "${SCRIPT_DIR}/data.sh"
relax_sft_paths "${SCRIPT_DIR}" Qwen3.5-9B
classification_data sst2
# shellcheck source=/dev/null
source "${MODEL_CONFIG_DIR}/qwen3.5-9B.sh"

PROJECT_NAME=${PROJECT_NAME:-relax-seq-cls}
RUN_NAME=${RUN_NAME:-qwen3.5-9B-${CLASSIFICATION_DATASET}}

CKPT_ARGS=(
   # tokenizer and configuration
   --hf-checkpoint "${MODEL_DIR}/Qwen3.5-9B"
   --ref-load "${MODEL_DIR}/Qwen3.5-9B"
   # where --load has no checkpoint, training starts from the Hugging Face weights and a new head
   --megatron-to-hf-mode bridge
   --load "${EXP_DIR}/${PROJECT_NAME}/${RUN_NAME}/"
   --save "${EXP_DIR}/${PROJECT_NAME}/${RUN_NAME}/"
   # training steps
   --save-interval "${SAVE_INTERVAL:-100}"
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
   --tensor-model-parallel-size 4
   --sequence-parallel
   --pipeline-model-parallel-size 1
   --context-parallel-size 1
   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1
   # samples are packed up to so many tokens a card
   --use-dynamic-batch-size
   --max-tokens-per-gpu "${MAX_TOKENS_PER_GPU:-8192}"
)

LOG_ARGS=(
   --use-tensorboard
   --tb-project-name "${EXP_DIR}/tensorboard/${PROJECT_NAME}"
   --tb-experiment-name "${RUN_NAME}"
)

RESOURCE_ARGS=(
   # role: [replicas, cards in all]; the producer of samples needs none
   --resource '{"sft": [1, 0], "actor": [1, 8]}'
)

launch "${RESOURCE_ARGS[@]}" "${MODEL_ARGS[@]}" "${CKPT_ARGS[@]}" "${CLASSIFICATION_ARGS[@]}" \
   "${OPTIMIZER_ARGS[@]}" "${PERF_ARGS[@]}" "${LOG_ARGS[@]}" "$@"
