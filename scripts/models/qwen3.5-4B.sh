# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# shellcheck shell=bash disable=SC2034  # the script that sources this file reads MODEL_ARGS
#
# Qwen/Qwen3.5-4B: architecture flags of Megatron, from the model's config.json.
# Made by scripts/tools/make_model_args.py.
MODEL_ARGS=(
   --swiglu
   --num-layers 32
   --hidden-size 2560
   --ffn-hidden-size 9216
   --num-attention-heads 16
   --group-query-attention
   --num-query-groups 4
   --position-embedding-type "mrope"
   --mrope-section 11 11 10
   --disable-bias-linear
   --normalization "RMSNorm"
   --norm-epsilon 1e-6
   --rotary-base 10000000
   --rotary-percent 0.25
   --vocab-size 248320
   --kv-channels 256
   --qk-layernorm
   --apply-layernorm-1p
   --attention-output-gate
   --experimental-attention-variant "gated_delta_net"
   --linear-attention-freq 4
   --linear-conv-kernel-dim 4
   --linear-key-head-dim 128
   --linear-value-head-dim 128
   --linear-num-key-heads 16
   --linear-num-value-heads 32
)
