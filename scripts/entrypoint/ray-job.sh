#!/usr/bin/env bash
# Copyright (c) 2026 Relax Authors. All Rights Reserved.
#
# Runs a training script on a Ray cluster that is there already (KubeRay and the like). Ray is neither started nor
# stopped; of earlier trainings of this checkout only processes whose job has ended are cleaned away, by their ids.
#
#   scripts/entrypoint/ray-job.sh SCRIPT [FLAGS...]
#
#   RAY_ADDRESS   http://HOST:8265 of the job server, or HOST:6379 of the cluster  (the cluster of this node)
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

(($# > 0)) && [[ -f $1 ]] || die "usage: $0 SCRIPT [FLAGS...]${1:+; there is no file $1}"
if asks_only "$@"; then
   exec bash "$@"
fi
case ${RAY_ADDRESS:-} in
http://* | https://*)
   export RELAX_JOB_ADDRESS=${RAY_ADDRESS}
   unset RAY_ADDRESS # every other call of Ray refuses such an address
   ;;
esac
export RELAX_JOB_ADDRESS="${RELAX_JOB_ADDRESS:-http://127.0.0.1:8265}"
cd -- "${RELAX_ROOT}"
script=$(realpath -- "$1")
shift
MASTER_ADDR=$("${PYTHON}" -m relax.entrypoints.ray_cluster join --address "${RELAX_JOB_ADDRESS}" --checkout "${RELAX_ROOT}")
export MASTER_ADDR RELAX_ENTRYPOINT=ray-job
note "Ray cluster with the head ${MASTER_ADDR}, job server ${RELAX_JOB_ADDRESS}"
exec bash "${script}" "$@"
