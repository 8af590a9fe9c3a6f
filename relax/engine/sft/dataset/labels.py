# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Labels of classification rows: an integer for one class, a list of integers for a set of classes."""

from __future__ import annotations

from typing import Any

from relax.utils.errors import DataError


def class_label(value: Any, *, problem_type: str, num_labels: int, key: str, where: str) -> int | tuple[int, ...]:
    """The class, or the classes in ascending order. Raises DataError for anything outside [0, num_labels)."""
    if problem_type == "multi_label_classification":
        if not isinstance(value, list) or not all(_is_class(item) for item in value):
            raise DataError(
                f"--label-key {key!r} holds {value!r}; --problem-type {problem_type} expects a list of class indices "
                "such as [0, 2], empty for none",
                where=where,
            )
        _check_range(value, num_labels, key, where)
        if len(set(value)) != len(value):
            raise DataError(f"--label-key {key!r} names a class twice: {value}", where=where)
        return tuple(sorted(value))
    if not _is_class(value):
        raise DataError(
            f"--label-key {key!r} holds {value!r}; --problem-type {problem_type} expects an integer class", where=where
        )
    _check_range([value], num_labels, key, where)
    return value


def _is_class(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_range(classes: list[int], num_labels: int, key: str, where: str) -> None:
    outside = [item for item in classes if not 0 <= item < num_labels]
    if outside:
        raise DataError(
            f"--label-key {key!r} names class {outside[0]}, --num-labels {num_labels} allows 0 to {num_labels - 1}",
            where=where,
        )
