# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# shellcheck shell=bash
#
# Another name of qwen3-omni-30B-A3B.sh.
source "$(dirname -- "${BASH_SOURCE[0]}")/qwen3-omni-30B-A3B.sh"
