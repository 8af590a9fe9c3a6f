# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# shellcheck shell=bash disable=SC2034  # the script that sources this file reads MODEL_ARGS
#
# google/gemma-4-31B-it: architecture flags of Megatron, from the model's config.json.
# Made by scripts/tools/make_model_args.py.
# No flag can tell the following, which Megatron Bridge reads from config.json:
#   the gated GELU
#   norms after attention and MLP
#   sliding windows, and head sizes and rotary bases that differ between layers
MODEL_ARGS=(
   --num-layers 60
   --hidden-size 5376
   --ffn-hidden-size 21504
   --num-attention-heads 32
   --group-query-attention
   --num-query-groups 16
   --use-rotary-position-embeddings
   --disable-bias-linear
   --normalization "RMSNorm"
   --norm-epsilon 1e-6
   --vocab-size 262144
   --kv-channels 256
   --qk-layernorm
)
