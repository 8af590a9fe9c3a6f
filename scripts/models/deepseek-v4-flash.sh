# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# shellcheck shell=bash disable=SC2034  # the script that sources this file reads MODEL_ARGS
#
# deepseek-ai/DeepSeek-V4-Flash: architecture flags of Megatron, from the model's config.json.
# Made by scripts/tools/make_model_args.py.
# No flag can tell the following, which Megatron Bridge reads from config.json:
#   compressed sparse attention
#   hyper-connections
#   the router's sqrtsoftplus scores
MODEL_ARGS=(
   --swiglu
   --num-layers 43
   --hidden-size 4096
   --num-attention-heads 64
   --group-query-attention
   --num-query-groups 1
   --use-rotary-position-embeddings
   --disable-bias-linear
   --normalization "RMSNorm"
   --norm-epsilon 1e-6
   --rotary-base 10000
   --vocab-size 129280
   --kv-channels 512
   --qk-layernorm
   --untie-embeddings-and-output-weights
   --num-experts 256
   --moe-ffn-hidden-size 2048
   --moe-router-topk 6
   --moe-shared-expert-intermediate-size 2048
   --moe-router-topk-scaling-factor 1.5
   --moe-router-enable-expert-bias
)
