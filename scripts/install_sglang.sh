#!/usr/bin/env bash
# Copyright (c) 2026 Relax Authors. All Rights Reserved.
#
# SGLang in an environment of its own, because it pins other versions than the trainer has: .venv-sglang of this checkout.
# Trainings then name its interpreter: --rollout-backend sglang --sglang-python .venv-sglang/bin/python
#
#   scripts/install_sglang.sh [--dry-run]
#
#   BASE_PYTHON  interpreter that the environment is made with  (python3)
#   PIP_ARGS     more arguments of pip install                  (none)
#   CUDA         1 or 0: install for a CUDA GPU                 (1 where this machine has one; an image is built where
#                there is none)
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname -- "${BASH_SOURCE[0]}")/entrypoint/common.sh"
cd -- "${RELAX_ROOT}"

SGLANG=$(grep -m1 '^sglang==' requirements/sglang-cpu.txt) # the release that the tests run with
BASE_PYTHON=${BASE_PYTHON:-python3}

[[ ${1:-} != --dry-run ]] || export DRY_RUN=1
read -ra pip_args <<<"${PIP_ARGS:-}"

"${BASE_PYTHON}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
   || die "${BASE_PYTHON} is older than Python 3.11: set BASE_PYTHON"
if [[ ${CUDA:-$(has_gpu)} == 1 ]]; then
   [[ -x .venv-sglang/bin/python ]] || run "${BASE_PYTHON}" -m venv .venv-sglang
   run .venv-sglang/bin/python -m pip --disable-pip-version-check install "${pip_args[@]}" "${SGLANG}"
else
   note "no CUDA GPU: SGLang's server for the CPU"
   run make --no-print-directory "PYTHON=${BASE_PYTHON}" "PIP_ARGS=${PIP_ARGS:-}" .venv-sglang/.installed
fi
run .venv-sglang/bin/python -c 'import importlib.metadata as m; print("sglang", m.version("sglang"))'
