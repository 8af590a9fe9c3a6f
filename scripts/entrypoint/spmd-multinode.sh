#!/usr/bin/env bash
# Copyright (c) 2026 Relax Authors. All Rights Reserved.
#
# The same command on every machine: forms a Ray cluster of them, trains, and takes down what it has started.
#
#   scripts/entrypoint/spmd-multinode.sh SCRIPT [FLAGS...]
#
#   MASTER_ADDR      host name of the head; the machine whose POD_NAME equals it is the head
#   POD_NAME         host name of this machine
#   HOST_IP          address of this machine
#   WORLD_SIZE       machines in all                                        (2)
#   NUM_GPUS         cards of each machine                                  (8)
#   RAY_AUTH_TOKEN   what who talks to this cluster must know; the same on every machine
#                    (none: whoever reaches the ports of the machines can run code on them)
#   RAY_PORT         port of the head                                       (6379)
#   RAY_DASHBOARD_PORT  port of the head's dashboard and job server         (8265)
#   HEAD_TIMEOUT_S   seconds in which the head must answer                  (600)
#   JOIN_TIMEOUT_S   seconds in which all machines must have joined         (600)
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

(($# > 0)) && [[ -f $1 ]] || die "usage: $0 SCRIPT [FLAGS...]${1:+; there is no file $1}"
if asks_only "$@"; then
   exec bash "$@"
fi
require_env "MASTER_ADDR=host name of the head, the same on every machine" "POD_NAME=host name of this machine" \
   "HOST_IP=address of this machine"
export WORLD_SIZE=${WORLD_SIZE:-2} NUM_GPUS=${NUM_GPUS:-8}
for name in WORLD_SIZE NUM_GPUS; do
   [[ ${!name} =~ ^[1-9][0-9]*$ ]] || die "${name}=${!name} must be a whole number, at least 1"
done
port=${RAY_PORT:-6379} dashboard=${RAY_DASHBOARD_PORT:-8265}
head_timeout=${HEAD_TIMEOUT_S:-600} join_timeout=${JOIN_TIMEOUT_S:-600}
if [[ -n ${RAY_AUTH_TOKEN:-}${RAY_AUTH_TOKEN_PATH:-} ]]; then
   export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}
else
   export RAY_AUTH_MODE=${RAY_AUTH_MODE:-disabled}
   [[ ${RAY_AUTH_MODE} != disabled ]] || note "no RAY_AUTH_TOKEN: whoever reaches port ${port} of the head can run code here"
fi
script=$(realpath -- "$1")
shift
cd -- "${RELAX_ROOT}"
mapfile -t cards < <(card_flags "${NUM_GPUS}")
cpus=$(nproc)
flags=(--node-ip-address="${HOST_IP}" --num-cpus=$((cpus < 16 ? 16 : cpus)) "${cards[@]}")
trap stop_ray EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ ${MASTER_ADDR} == "${POD_NAME}" ]]; then
   export RELAX_JOB_ADDRESS="http://127.0.0.1:${dashboard}" RELAX_ENTRYPOINT=spmd-multinode
   note "head of ${WORLD_SIZE} machines at ${HOST_IP}:${port} with ${NUM_GPUS} cards each"
   start_ray --head --port="${port}" "${flags[@]}" --include-dashboard=true --dashboard-host=0.0.0.0 \
      --dashboard-port="${dashboard}"
   "${PYTHON}" -m relax.entrypoints.ray_cluster ready --address "${RELAX_JOB_ADDRESS}" --pid "${RAY_START_PID}" \
      || ray_failed "Ray did not start on the head"
   "${PYTHON}" -m relax.entrypoints.ray_cluster nodes --address "${HOST_IP}:${port}" --count "${WORLD_SIZE}" \
      --timeout-s "${join_timeout}"
   code=0
   bash "${script}" "$@" || code=$?
   sleep 3 # workers look every second how the last job has ended
   exit "${code}"
fi

job_server="http://${MASTER_ADDR}:${dashboard}"
note "worker ${POD_NAME} (${HOST_IP}) of ${WORLD_SIZE} machines, head ${MASTER_ADDR}"
"${PYTHON}" -m relax.entrypoints.ray_cluster ready --address "${job_server}" --timeout-s "${head_timeout}"
start_ray --address="${MASTER_ADDR}:${port}" "${flags[@]}"
code=0
"${PYTHON}" -m relax.entrypoints.ray_cluster follow --address "${job_server}" --pid "${RAY_START_PID}" || code=$?
if ((code == 5)); then
   tail -n 20 -- "${RAY_START_LOG}" >&2
fi
exit "${code}"
