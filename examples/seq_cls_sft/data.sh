# shellcheck shell=bash
# Copyright (c) 2026 Relax Authors. All Rights Reserved.
#
# Sourced by the classification scripts: which data, how many classes, and the flags that follow from them.

# Sets CLASSIFICATION_DATASET (unless it is set) and CLASSIFICATION_ARGS. Files and classes of the user win.
classification_data() { # DEFAULT_DATASET
   CLASSIFICATION_DATASET=${CLASSIFICATION_DATASET:-$1}
   local subset=${DATA_SUBSET:-full} labels kind=single_label_classification
   case ${CLASSIFICATION_DATASET} in
   sst2) labels=2 ;;
   ag_news) labels=4 ;;
   go_emotions) labels=28 kind=multi_label_classification ;;
   *)
      [[ -n ${TRAIN_DATA:-} && -n ${EVAL_DATA:-} && -n ${NUM_LABELS:-} && -n ${PROBLEM_TYPE:-} ]] \
         || die "CLASSIFICATION_DATASET=${CLASSIFICATION_DATASET} is not one of sst2, ag_news, go_emotions; for data of your own set TRAIN_DATA, EVAL_DATA, NUM_LABELS and PROBLEM_TYPE"
      labels=${NUM_LABELS}
      ;;
   esac
   [[ ${subset} == full || ${subset} == smoke || ${subset} == extended ]] \
      || die "DATA_SUBSET=${subset} is not one of full, smoke, extended"
   local folder=${DATA_DIR}/sft/seq_cls/${CLASSIFICATION_DATASET}/${subset}
   kind=${PROBLEM_TYPE:-${kind}}
   CLASSIFICATION_ARGS=(
      --loss-type sft
      # a head of as many logits as there are classes, in place of the vocabulary's
      --task-type seq_cls
      --num-labels "${NUM_LABELS:-${labels}}"
      --problem-type "${kind}"
      --classification-threshold "${CLASSIFICATION_THRESHOLD:-0.5}"
      --prompt-data "${TRAIN_DATA:-${folder}/train.jsonl}"
      --input-key messages
      --label-key label
      --eval-prompt-data "${CLASSIFICATION_DATASET}" "${EVAL_DATA:-${folder}/eval.jsonl}"
      --eval-interval "${EVAL_INTERVAL:-100}"
      # the number of steps follows from the size of the data
      --num-epoch "${NUM_EPOCH:-10}"
      --global-batch-size "${GLOBAL_BATCH_SIZE:-64}"
   )
}
