# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""`args` as user hooks see it: an immutable, picklable snapshot of every flag by its underscore name.

It also holds run-time facts (`sglang_router_ip`, `sglang_router_port`, `run_dir`) once they are known, Megatron's
flags that were given, and the keys of `--custom-config-path`. Relax's own code reads its typed sections instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from relax.config.flags import nearest
from relax.config.frozen import FrozenDict, freeze

RUN_TIME_FACTS = ("sglang_router_ip", "sglang_router_port", "run_dir")


class HookArgs:
    """A read-only attribute view; an unknown name raises AttributeError with the nearest one."""

    __slots__ = ("_values",)
    _values: FrozenDict

    def __init__(self, values: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_values", freeze(values))

    def __getattr__(self, name: str) -> Any:
        if name == "_values" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)  # pickle and copy probe for these before there are values
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(self._unknown(name)) from None

    def _unknown(self, name: str) -> str:
        if name in RUN_TIME_FACTS:
            return f"args.{name} is known only while a run is going on"
        near = nearest(name, self._values)
        hint = f"did you mean args.{near}?" if near else "a key of your own belongs into --custom-config-path"
        return f"args has no {name!r}: {hint}"

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"args.{name} cannot be set: args is a snapshot of the run's configuration")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"args.{name} cannot be deleted: args is a snapshot of the run's configuration")

    def __dir__(self) -> Iterator[str]:  # type: ignore[override]
        return iter(sorted(self._values))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HookArgs) and self._values == other._values

    def __hash__(self) -> int:
        return hash(self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        return (HookArgs, (self._values,))

    def __repr__(self) -> str:
        return f"HookArgs({', '.join(f'{name}={value!r}' for name, value in sorted(self._values.items()))})"

    def as_dict(self) -> FrozenDict:
        """All names and values."""
        return self._values

    def with_facts(self, **facts: Any) -> HookArgs:
        """A new view with run-time facts added or replaced."""
        return HookArgs(self._values | facts)
