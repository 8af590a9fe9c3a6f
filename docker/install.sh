#!/usr/bin/env bash
# Copyright (c) 2026 Relax Authors. All Rights Reserved.
#
# The install steps of the image, which also run outside of it, from the root of a checkout or a copy of it:
#
#   docker/install.sh packages   .venv with the pinned packages; needs requirements/ alone
#   docker/install.sh relax      Relax itself, from the sources
#
#   PYTHON    interpreter that the environment is made with  (python3)
#   PIP_ARGS  more arguments of pip install                  (none)
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

read -ra pip_args <<<"${PIP_ARGS:-}"
pip=(.venv/bin/python -m pip --disable-pip-version-check install --no-cache-dir -q "${pip_args[@]}")

case ${1:-} in
packages)
   "${PYTHON:-python3}" -m venv .venv
   mapfile -t first < <(grep -E '^(torch|numpy)==' requirements/cpu.txt)
   "${pip[@]}" "${first[@]}" # so that nothing else chooses their versions
   "${pip[@]}" -r requirements/cpu.txt
   "${pip[@]}" --no-deps -r requirements/torchvision.txt
   ;;
relax)
   "${pip[@]}" --no-deps -e .
   hook=$(.venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/zz_relax_torchvision.pth
   echo 'import relax.utils.torchvision_shim as shim; shim.install_hook()' >"${hook}"
   .venv/bin/relax env
   ;;
*)
   echo "usage: $0 packages|relax" >&2
   exit 2
   ;;
esac
