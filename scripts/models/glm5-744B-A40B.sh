# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# shellcheck shell=bash disable=SC2034  # the script that sources this file reads MODEL_ARGS
#
# zai-org/GLM-5: architecture flags of Megatron, from the model's config.json.
# Made by scripts/tools/make_model_args.py.
MODEL_ARGS=(
   --swiglu
   --num-layers 78
   --hidden-size 6144
   --ffn-hidden-size 12288
   --num-attention-heads 64
   --multi-latent-attention
   --q-lora-rank 2048
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
   --experimental-attention-variant "dsa"
   --dsa-indexer-n-heads 32
   --dsa-indexer-head-dim 128
   --dsa-indexer-topk 2048
   --num-experts 256
   --moe-ffn-hidden-size 2048
   --moe-router-topk 8
   --moe-layer-freq "[0]*3+[1]*75"
   --moe-shared-expert-intermediate-size 2048
   --moe-router-score-function "sigmoid"
   --moe-router-topk-scaling-factor 2.5
   --moe-router-enable-expert-bias
)
