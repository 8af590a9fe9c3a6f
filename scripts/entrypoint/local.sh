#!/usr/bin/env bash
# Copyright (c) 2026 Relax Authors. All Rights Reserved.
#
# A Ray of this machine alone, for one training; it ends with the script. Training scripts source this file by
# themselves when no other entry point has prepared Ray; called as a command it runs a script:
#
#   scripts/entrypoint/local.sh SCRIPT [FLAGS...]
#
#   NUM_GPUS            cards: GPUs to use, or slots where there are none  (all GPUs; 8 slots)
#   RAY_DASHBOARD_PORT  port of the dashboard and the job server           (8265; any free one when that is taken)
#   RAY_AUTH_TOKEN      what who talks to this Ray must know               (made here)
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

start_local_ray() {
   local plan
   mapfile -t plan < <("${PYTHON}" -m relax.entrypoints.ray_cluster plan)
   ((${#plan[@]} == 3)) || die "this machine already runs a Ray, or could not be asked; the message is above"
   local cards=${NUM_GPUS:-${plan[0]}} port=${plan[1]} flags
   if [[ -z ${RAY_AUTH_MODE:-} ]]; then
      # Ray listens on every interface, and who reaches it can run code
      export RAY_AUTH_MODE=token RAY_AUTH_TOKEN="${RAY_AUTH_TOKEN:-${plan[2]}}"
   fi
   mapfile -t flags < <(card_flags "${cards}")
   local cpus
   cpus=$(nproc)
   export RELAX_ENTRYPOINT=local RELAX_JOB_ADDRESS="http://127.0.0.1:${port}"
   note "starting Ray on this machine with ${cards} cards, job server ${RELAX_JOB_ADDRESS}"
   trap stop_ray EXIT
   start_ray --head --node-ip-address=127.0.0.1 --port=0 --num-cpus=$((cpus < 16 ? 16 : cpus)) "${flags[@]}" \
      --include-dashboard=true --dashboard-host=127.0.0.1 --dashboard-port="${port}"
   "${PYTHON}" -m relax.entrypoints.ray_cluster ready --address "${RELAX_JOB_ADDRESS}" --pid "${RAY_START_PID}" \
      || ray_failed "Ray did not start on this machine"
}

if [[ ${BASH_SOURCE[0]} != "$0" ]]; then
   start_local_ray
elif (($# == 0)) || [[ ! -f $1 ]]; then
   die "usage: $0 SCRIPT [FLAGS...]${1:+; there is no file $1}"
elif asks_only "$@"; then
   exec bash "$@"
else
   start_local_ray
   code=0
   bash "$@" || code=$?
   exit "${code}"
fi
