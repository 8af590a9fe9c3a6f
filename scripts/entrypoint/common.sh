# shellcheck shell=bash
# Copyright (c) 2026 Relax Authors. All Rights Reserved.
#
# Sourced by every launch script and entry point: paths, messages, and the one way in which a training is started.
# Sourcing it starts nothing.
#
#   PYTHON             interpreter               (.venv/bin/python of this checkout, else python3)
#   MODEL_CONFIG_DIR   folder of the model files (scripts/models)
#   RELAX_ENTRYPOINT   which entry point has prepared Ray: local, ray-job or spmd-multinode; unset: none has
#   RELAX_JOB_ADDRESS  address of Ray's job server (http://127.0.0.1:8265)

RELAX_ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." &>/dev/null && pwd)"
if [[ -z ${PYTHON:-} ]]; then
   PYTHON=python3
   [[ ! -x ${RELAX_ROOT}/.venv/bin/python ]] || PYTHON=${RELAX_ROOT}/.venv/bin/python
fi
export RELAX_ROOT PYTHON
export MODEL_CONFIG_DIR="${MODEL_CONFIG_DIR:-${RELAX_ROOT}/scripts/models}"

die() { # MESSAGE [EXIT_CODE]
   printf '%s\n' "$1" >&2
   exit "${2:-2}"
}

note() {
   printf 'relax: %s\n' "$*" >&2
}

run() { # COMMAND...   told, and with DRY_RUN only told
   printf '+ %s\n' "$*" >&2
   [[ -n ${DRY_RUN:-} ]] || "$@"
}

has_gpu() { # prints 1 or 0
   (($(cd -- "${RELAX_ROOT}" && "${PYTHON}" -m relax.entrypoints.ray_cluster cards) == 0)) && echo 0 || echo 1
}

# Every missing variable is told at once, each with what it is: require_env NAME=meaning ...
require_env() {
   local pair name missing=()
   for pair in "$@"; do
      name=${pair%%=*}
      [[ -n ${!name:-} ]] || missing+=("   export ${name}=...   # ${pair#*=}")
   done
   ((${#missing[@]} == 0)) || die "$(printf '%s\n' "$(basename -- "$0") needs these variables, which are not set:" "${missing[@]}")"
}

asks_only() { # ARGS...   whether they ask for a report or for help, for which nothing has to be started
   local word
   for word in "$@"; do
      [[ ${word} != --dry-run && ${word} != --help && ${word} != -h ]] || return 0
   done
   return 1
}

# MODEL_DIR and DATA_DIR fall back to EXP_DIR, and EXP_DIR to the folder that holds this checkout (/root of /root/Relax).
relax_paths() {
   EXP_DIR=$(realpath -ms -- "${EXP_DIR:-$(dirname -- "${RELAX_ROOT}")}")
   MODEL_DIR=$(realpath -ms -- "${MODEL_DIR:-${EXP_DIR}}")
   DATA_DIR=$(realpath -ms -- "${DATA_DIR:-${EXP_DIR}}")
   export EXP_DIR MODEL_DIR DATA_DIR
   note "EXP_DIR=${EXP_DIR} MODEL_DIR=${MODEL_DIR} DATA_DIR=${DATA_DIR}"
}

# Supervised scripts: data stands beside the script unless DATA_DIR says where, and the model folder must be named.
relax_sft_paths() { # SCRIPT_DIR MODEL   a folder of MODEL_DIR
   require_env "MODEL_DIR=the folder that holds $2/"
   EXP_DIR=$(realpath -ms -- "${EXP_DIR:-$(dirname -- "${RELAX_ROOT}")}")
   MODEL_DIR=$(realpath -ms -- "${MODEL_DIR}")
   DATA_DIR=$(realpath -ms -- "${DATA_DIR:-$1/data}")
   export EXP_DIR MODEL_DIR DATA_DIR
   note "EXP_DIR=${EXP_DIR} MODEL_DIR=${MODEL_DIR} DATA_DIR=${DATA_DIR}"
}

# Train with these flags: on the Ray that an entry point has prepared, else on a local one that ends with the training.
launch() { # FLAGS...
   cd -- "${RELAX_ROOT}" || exit
   if asks_only "$@"; then
      exec "${PYTHON}" relax/entrypoints/train.py "$@"
   fi
   if [[ -z ${RELAX_ENTRYPOINT:-} ]]; then
      # shellcheck source=/dev/null
      source "${RELAX_ROOT}/scripts/entrypoint/local.sh"
   fi
   submit_job "$@"
}

# One Ray job. Ends with the exit code of the training; a signal stops this job and nothing else.
submit_job() { # FLAGS...
   local address=${RELAX_JOB_ADDRESS:-http://127.0.0.1:8265} code=0 stopped=0
   local job
   job="relax-$(date -u +%Y%m%d-%H%M%S)-$$"
   note "job ${job} at ${address}"
   # an http:// RAY_ADDRESS is for `ray job` alone, which is given its address here
   unset RAY_ADDRESS
   setsid "${PYTHON}" -m ray.scripts.scripts job submit --address="${address}" --submission-id="${job}" \
      --runtime-env="${RELAX_ROOT}/configs/env.yaml" -- \
      env -C "${RELAX_ROOT}" RELAX_JOB="${job}" RELAX_CHECKOUT="${RELAX_ROOT}" ${PYTHONPATH:+PYTHONPATH="${PYTHONPATH}"} \
      "${PYTHON}" relax/entrypoints/train.py "$@" &
   local submitter=$!
   # shellcheck disable=SC2064
   trap "stopped=1; '${PYTHON}' -m ray.scripts.scripts job stop --no-wait --address='${address}' '${job}' >&2" INT TERM
   while kill -0 "${submitter}" 2>/dev/null; do
      wait "${submitter}" || code=$?
   done
   trap - INT TERM
   "${PYTHON}" -m relax.entrypoints.ray_cluster result --address "${address}" "${job}" || code=$?
   ((stopped == 0)) || note "job ${job} was stopped"
   return "${code}"
}

# `ray start --block` with these flags as a child of this script: its end, whatever its reason, ends Ray as well.
start_ray() { # FLAGS...
   local owned=(setsid)
   ! command -v setpriv >/dev/null || owned+=(setpriv --pdeathsig TERM)
   RAY_START_LOG=$(mktemp "${TMPDIR:-/tmp}/relax-ray-start-XXXXXX.log")
   "${owned[@]}" "${PYTHON}" -m ray.scripts.scripts start --block --disable-usage-stats "$@" >"${RAY_START_LOG}" 2>&1 &
   RAY_START_PID=$!
}

# Ends the Ray that start_ray has started, by its process id.
stop_ray() {
   [[ -n ${RAY_START_PID:-} ]] || return 0
   local pid=${RAY_START_PID} tenths=0
   RAY_START_PID=
   kill -TERM "${pid}" 2>/dev/null || true
   while kill -0 "${pid}" 2>/dev/null && ((tenths++ < 150)); do
      sleep 0.1
   done
   kill -KILL -- "-${pid}" 2>/dev/null || true
   wait "${pid}" 2>/dev/null || true
   rm -f -- "${RAY_START_LOG}"
}

ray_failed() { # MESSAGE   with the end of what `ray start` said
   die "$1
$(tail -n 20 -- "${RAY_START_LOG}")" 5
}

# Flags of `ray start` for the cards of this node: GPUs where there are any, else slots, which are only numbers.
card_flags() { # NUM_GPUS
   local found
   found=$("${PYTHON}" -m relax.entrypoints.ray_cluster cards)
   if ((found > 0)); then
      printf '%s\n' "--num-gpus=$1"
   else
      printf '%s\n' "--num-gpus=0" "--resources={\"slot\": $1}"
   fi
}
