#!/usr/bin/env bash
# Copyright (c) 2026 Relax Authors. All Rights Reserved.
#
# The reinforcement learning of `make demo` as a launch script: fully async GRPO of a tiny Qwen3-Omni on a CPU.
# More flags may follow on the command line and win: run-digits-omni-cpu.sh --num-rollout 100
#
#   RUN_DIR   run folder with hf_before/ and data/ in it; made when it is missing   (runs/digits-omni)
#   SEED      seed of data order, sampling and training                             (0)
#   STEPS     rollouts, each one optimizer step                                     (40)
#   PYTHON    interpreter                                                           (.venv/bin/python)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

RUN_DIR=${RUN_DIR:-runs/digits-omni}
SEED=${SEED:-0}
STEPS=${STEPS:-40}
PYTHON=${PYTHON:-.venv/bin/python}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}  # several processes share the cores; exact log-probs need one thread

if [[ ! -e ${RUN_DIR}/hf_before/config.json ]]; then
   # a random tiny model, the data, and a supervised cold start
   ${PYTHON} -m examples.quickstart.demo --prepare-only --seed "${SEED}" --run-dir "${RUN_DIR}"
fi

MODE_ARGS=(
   # generation runs ahead of training by at most one rollout
   --fully-async
   --max-staleness 1
   # the engine's log-probs are the old policy of the ratio
   --use-rollout-logprobs
   # any free port, so that two runs can share a machine
   --serve-port 0
)

CKPT_ARGS=(
   --hf-checkpoint "${RUN_DIR}/hf_before"
   --save "${RUN_DIR}"
   --save-hf "${RUN_DIR}/hf_after"
   --save-interval "${STEPS}"
)

DATA_ARGS=(
   --prompt-data "${RUN_DIR}/data/image-train.jsonl"
   --input-key prompt
   --label-key label
   --multimodal-keys '{"image": "image"}'
   --apply-chat-template
   --rollout-shuffle
)

ROLLOUT_ARGS=(
   --num-rollout "${STEPS}"
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-max-response-len 4
   --rollout-temperature 1.0
   --rollout-seed "${SEED}"
   # exact match of the answer, then a stop
   --custom-rm-path examples.quickstart.reward.digit_reward
)

GRPO_ARGS=(
   --advantage-estimator grpo
   # reward - group mean, not divided by the group's deviation
   --disable-grpo-std-normalization
   --eps-clip 0.2
)

TRAIN_ARGS=(
   --global-batch-size 256
   --use-dynamic-batch-size
   --max-tokens-per-gpu 8192
   --lr 0.0003
   --lr-warmup-iters 5
   --adam-beta2 0.99
   --clip-grad 0.2
   --seed "${SEED}"
)

exec ${PYTHON} -m relax.entrypoints.train \
   "${MODE_ARGS[@]}" "${CKPT_ARGS[@]}" "${DATA_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${GRPO_ARGS[@]}" "${TRAIN_ARGS[@]}" "$@"
