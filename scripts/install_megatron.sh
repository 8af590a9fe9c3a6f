#!/usr/bin/env bash
# Copyright (c) 2026 Relax Authors. All Rights Reserved.
#
# Megatron-LM beside Relax: Megatron Core, and Transformer Engine where there are a CUDA GPU and its compiler.
# Relax of this version trains with --train-backend fsdp and needs none of it; it reads Megatron's flags without it.
# Megatron Bridge is left out: each of its releases excludes the transformers that Relax needs, and weights are converted
# by Relax itself.
#
#   scripts/install_megatron.sh [--dry-run]
#
#   PYTHON    interpreter to install into      (.venv/bin/python of this checkout, else python3)
#   PIP_ARGS  more arguments of pip install    (none)
#   CUDA      1 or 0: install for a CUDA GPU   (1 where this machine has one; an image is built where there is none)
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname -- "${BASH_SOURCE[0]}")/entrypoint/common.sh"

MEGATRON_CORE=megatron-core==0.16.1
TRANSFORMER_ENGINE="transformer-engine[pytorch]==2.14.1"

[[ ${1:-} != --dry-run ]] || export DRY_RUN=1
read -ra pip_args <<<"${PIP_ARGS:-}"
pip=("${PYTHON}" -m pip --disable-pip-version-check install "${pip_args[@]}")

"${PYTHON}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "${PYTHON} is older than Python 3.11: set PYTHON"
"${PYTHON}" -c 'import importlib.util as util, sys; sys.exit(util.find_spec("torch") is None)' \
   || die "${PYTHON} has no torch, which Megatron builds on: install Relax first (make venv, or pip install -e '.[train,ray]')"

run "${pip[@]}" "${MEGATRON_CORE}"
if [[ ${CUDA:-$(has_gpu)} == 0 ]]; then
   note "no CUDA GPU: Megatron Core alone, without Transformer Engine"
elif ! command -v nvcc >/dev/null; then
   die "Transformer Engine is built with nvcc, the compiler of the CUDA toolkit, which is not on the PATH: install it"
else
   # built against the installed torch, so without an isolated build
   run "${pip[@]}" --no-build-isolation "${TRANSFORMER_ENGINE}"
fi
run "${PYTHON}" -c 'import megatron.core; print("megatron-core", megatron.core.__version__)'
