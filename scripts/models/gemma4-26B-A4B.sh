# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# shellcheck shell=bash disable=SC2034  # the script that sources this file reads MODEL_ARGS
#
# google/gemma-4-26B-A4B-it: architecture flags of Megatron, from the model's config.json.
# Made by scripts/tools/make_model_args.py.
# No flag can tell the following, which Megatron Bridge reads from config.json:
#   the gated GELU
#   norms after attention and MLP
#   sliding windows, and head sizes and rotary bases that differ between layers
MODEL_ARGS=(
   --num-layers 30
   --hidden-size 2816
   --ffn-hidden-size 2112
   --num-attention-heads 16
   --group-query-attention
   --num-query-groups 8
   --use-rotary-position-embeddings
   --disable-bias-linear
   --normalization "RMSNorm"
   --norm-epsilon 1e-6
   --vocab-size 262144
   --kv-channels 256
   --qk-layernorm
   --num-experts 128
   --moe-ffn-hidden-size 704
   --moe-router-topk 8
)
