# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# shellcheck shell=bash disable=SC2034  # the script that sources this file reads MODEL_ARGS
#
# moonshotai/Kimi-K2.6: architecture flags of Megatron, from the model's config.json.
# Made by scripts/tools/make_model_args.py.
MODEL_ARGS=(
   --swiglu
   --num-layers 61
   --hidden-size 7168
   --ffn-hidden-size 18432
   --num-attention-heads 64
   --multi-latent-attention
   --q-lora-rank 1536
   --kv-lora-rank 512
   --qk-head-dim 128
   --qk-pos-emb-head-dim 64
   --v-head-dim 128
   --use-rotary-position-embeddings
   --disable-bias-linear
   --normalization "RMSNorm"
   --norm-epsilon 1e-5
   --rotary-base 50000
   --rope-type "yarn"
   --rotary-scaling-factor 64
   --mscale-all-dim 1
   --vocab-size 163840
   --qk-layernorm
   --untie-embeddings-and-output-weights
   --num-experts 384
   --moe-ffn-hidden-size 2048
   --moe-router-topk 8
   --moe-layer-freq "[0]*1+[1]*60"
   --moe-shared-expert-intermediate-size 2048
   --moe-router-score-function "sigmoid"
   --moe-router-topk-scaling-factor 2.827
   --moe-router-enable-expert-bias
)
