#!/usr/bin/env bash
# Copyright (c) 2026 Relax Authors. All Rights Reserved.
#
# Supervised fine-tuning of Qwen3-VL-4B-Instruct on images (pokemon-gpt4o-captions, English and Chinese), with samples
# rendered ahead, PPL evaluation and generative predictions. 8 cards; actor and rollout take turns on them. One node.
#
#   MODEL_DIR    folder of Qwen3-VL-4B-Instruct/               (none: it must be set)
#   DATA_DIR     folder of sft/data/pokemon-gpt4o-captions/    (data/ beside this script)
#   EXP_DIR      outputs                                       (the folder that holds this checkout)
#   PROMPT_DATA  training data                                 (both .parquet files of the folder)
#   NUM_EPOCH    times the data is gone through                (10)
#
# More flags may follow and win: run-qwen3-vl-4B-pokemon-8xgpu.sh --num-epoch 1 --dry-run
set -euo pipefail

SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
# shellcheck source=/dev/null
source "${SCRIPT_DIR}/../../entrypoint/common.sh"
relax_sft_paths "${SCRIPT_DIR}" Qwen3-VL-4B-Instruct
# shellcheck source=/dev/null
source "${MODEL_CONFIG_DIR}/qwen3-vl-4B.sh"

PROJECT_NAME=${PROJECT_NAME:-relax-sft}
RUN_NAME=${RUN_NAME:-qwen3-vl-4B-pokemon}
NUM_EPOCH=${NUM_EPOCH:-10}
TRAIN_FILES=(
   "'${DATA_DIR}/sft/data/pokemon-gpt4o-captions/pokemon_gpt4o_en.parquet'"
   "'${DATA_DIR}/sft/data/pokemon-gpt4o-captions/pokemon_gpt4o_zh.parquet'"
)
PROMPT_DATA=${PROMPT_DATA:-"[$(IFS=,; echo "${TRAIN_FILES[*]}")]"}

CKPT_ARGS=(
   # tokenizer, processor, configuration, and what engines start from when predictions are on
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
   # whole dialogues under ShareGPT's names, and one <image> for each entry of `images`
   --input-key conversations
   --multimodal-keys '{"image":"images"}'
   --conversation-key-map '{"from":"role","value":"content","human":"user","gpt":"assistant"}'
   # the number of steps follows from the size of the data
   --num-epoch "${NUM_EPOCH}"
   --global-batch-size 32
)

PREFETCH_ARGS=(
   # rendered samples that wait, and who renders them
   --sft-prefetch-buffer-size 256
   --sft-prefetch-chunk-size 32
   --sft-prefetch-num-workers 4
   # steps that the producer may be ahead of the trainer
   --max-staleness 4
   # every rank reads its samples itself
   --per-rank-fetch
   --num-data-storage-units 8
)

EVAL_ARGS=(
   # a hundredth of the rows is held out, the same ones in every epoch
   --eval-size 0.01
   --eval-interval 10
)

PREDICT_ARGS=(
   --sft-predict-interval 10
   --eval-temperature 0.0
   --eval-max-response-len 512
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
   --tensor-model-parallel-size 2
   --sequence-parallel
   --pipeline-model-parallel-size 1
   --context-parallel-size 1
   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1
   # samples are packed up to so many tokens a card
   --use-dynamic-batch-size
   --max-tokens-per-gpu 8192
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

launch "${RESOURCE_ARGS[@]}" "${MODEL_ARGS[@]}" "${CKPT_ARGS[@]}" "${SFT_ARGS[@]}" "${PREFETCH_ARGS[@]}" \
   ${EVAL_ARGS[@]+"${EVAL_ARGS[@]}"} ${PREDICT_ARGS[@]+"${PREDICT_ARGS[@]}"} "${OPTIMIZER_ARGS[@]}" \
   "${PERF_ARGS[@]}" "${SGLANG_ARGS[@]}" "${LOG_ARGS[@]}" "$@"
