# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# shellcheck shell=bash disable=SC2034  # the script that sources this file reads MODEL_ARGS
#
# zai-org/GLM-4.7-Flash: architecture flags of Megatron, from the model's config.json.
# Made by scripts/tools/make_model_args.py.
MODEL_ARGS=(
   --swiglu
   --num-layers 47
   --hidden-size 2048
   --ffn-hidden-size 10240
   --num-attention-heads 20
   --multi-latent-attention
   --q-lora-rank 768
   --kv-lora-rank 512
   --qk-head-dim 192
   --qk-pos-emb-head-dim 64
   --v-head-dim 256
   --use-rotary-position-embeddings
   --disable-bias-linear
   --normalization "RMSNorm"
   --norm-epsilon 1e-5
   --rotary-base 1000000
   --rope-type "rope"
   --vocab-size 154880
   --qk-layernorm
   --untie-embeddings-and-output-weights
   --num-experts 64
   --moe-ffn-hidden-size 1536
   --moe-router-topk 4
   --moe-layer-freq "[0]*1+[1]*46"
   --moe-shared-expert-intermediate-size 1536
   --moe-router-score-function "sigmoid"
   --moe-router-topk-scaling-factor 1.8
   --moe-router-enable-expert-bias
)
