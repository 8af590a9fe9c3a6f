# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`--rollout-sample-filter-path`: which samples of a batch stay out of the loss.

    fn(args, groups) -> None        sets `sample.remove_sample` in place

`groups` is a list of groups, each a list of samples. A removed sample stays in its group: its reward still counts in
the group's mean, its tokens have zero loss weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relax.utils.errors import UserCodeError
from relax.utils.imports import load_callable
from relax.utils.types import Sample

FLAG = "--rollout-sample-filter-path"
SampleFilter = Callable[[Any, Sequence[Sequence[Sample]]], None]


def load_sample_filter(path: str) -> SampleFilter:
    """The filter at `path`, checked at load. It may not add, drop or reorder samples."""
    function = load_callable(path, flag=FLAG, positional=("args", "groups"))

    def checked(args: Any, groups: Sequence[Sequence[Sample]]) -> None:
        before = [[id(sample) for sample in group] for group in groups]
        try:
            function(args, groups)
        except Exception as error:  # the run is told, with the user's traceback as the cause
            raise UserCodeError(f"{type(error).__name__}: {error}", path=path) from error
        if before != [[id(sample) for sample in group] for group in groups]:
            raise UserCodeError("changed the list of samples; it may only set sample.remove_sample", path=path)

    return checked
