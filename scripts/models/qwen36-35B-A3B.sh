# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# shellcheck shell=bash
#
# Another name of qwen3.6-35B-A3B.sh.
source "$(dirname -- "${BASH_SOURCE[0]}")/qwen3.6-35B-A3B.sh"
