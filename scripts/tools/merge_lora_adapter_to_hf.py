# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Adds a LoRA adapter into the matrices of a Hugging Face folder, tensor by tensor.

python scripts/tools/merge_lora_adapter_to_hf.py --adapter run/iter_0000099/model/lora_adapter \\
    --hf-checkpoint Qwen3-4B --output-dir Qwen3-4B-merged

Every file of the folder is kept; tensors that the adapter changes keep their type. Sums are made in float32.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":  # started as a file: the repository must be found
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from relax.backends.fsdp.lora_files import merge_adapter
from relax.utils.errors import RelaxError


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, or that of the error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", type=Path, required=True, help="a lora_adapter folder")
    parser.add_argument("--hf-checkpoint", type=Path, required=True, help="the model that it was trained on")
    parser.add_argument("--output-dir", type=Path, required=True, help="a new folder")
    options = parser.parse_args(argv)
    try:
        changed = merge_adapter(options.adapter, options.hf_checkpoint, options.output_dir)
    except RelaxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{changed} matrices of {options.hf_checkpoint} changed: {options.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
