# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# shellcheck shell=bash disable=SC2034  # the script that sources this file reads MODEL_ARGS
#
# moonshotai/Kimi-K3: architecture flags of Megatron, from the model's config.json.
# Made by scripts/tools/make_model_args.py.
# No flag can tell the following, which Megatron Bridge reads from config.json:
#   layers of Kimi delta attention
#   the SiTU activation
#   attention over earlier layers
MODEL_ARGS=(
   --num-layers 93
   --hidden-size 7168
   --ffn-hidden-size 33792
   --num-attention-heads 96
   --multi-latent-attention
   --q-lora-rank 1536
   --kv-lora-rank 512
   --qk-head-dim 128
   --qk-pos-emb-head-dim 64
   --v-head-dim 128
   --position-embedding-type "none"
   --disable-bias-linear
   --normalization "RMSNorm"
   --norm-epsilon 1e-5
   --vocab-size 163840
   --qk-layernorm
   --attention-output-gate
   --untie-embeddings-and-output-weights
   --num-experts 896
   --moe-ffn-hidden-size 3072
   --moe-latent-size 3584
   --moe-router-topk 16
   --moe-layer-freq "[0]*1+[1]*92"
   --moe-shared-expert-intermediate-size 6144
   --moe-router-score-function "sigmoid"
   --moe-router-topk-scaling-factor 1
   --moe-router-enable-expert-bias
)
