# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Messages of any field and role names to `role` and `content`, by `--conversation-key-map`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relax.utils.errors import DataError

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
_SHAREGPT = '{"from":"role","value":"content","human":"user","gpt":"assistant"}'


def mapped_messages(messages: Sequence[Any], key_map: Mapping[str, str], where: str) -> list[dict[str, Any]]:
    """New messages whose fields and roles are renamed by `key_map`; other fields stay as they are.

    One map holds both: field names (`from` -> `role`) and values of the role field (`human` -> `user`).
    """
    return [_mapped(message, place, key_map, where) for place, message in enumerate(messages)]


def _mapped(message: Any, place: int, key_map: Mapping[str, str], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise DataError(f"message {place} is a {type(message).__name__}, not an object with a role", where=where)
    out: dict[str, Any] = {}
    for name, value in message.items():
        target = key_map.get(name, name)
        if target in out:
            raise DataError(
                f"message {place} has two fields for {target!r} after --conversation-key-map: {sorted(message)}",
                where=where,
            )
        out[target] = value
    role = out.get("role")
    if not isinstance(role, str):
        raise DataError(
            f"message {place} has no role; its fields are {sorted(message)}{_advice(message)}", where=where
        )
    out["role"] = key_map.get(role, role)
    if out["role"] not in ROLES:
        raise DataError(
            f"message {place} has the role {out['role']!r}; known are {', '.join(ROLES)}. Map it by "
            f'--conversation-key-map \'{{"{out["role"]}":"user"}}\'',
            where=where,
        )
    _check_learn(out, place, where)
    return out


def _check_learn(message: dict[str, Any], place: int, where: str) -> None:
    """`learn` to a boolean (0 and 1 are taken too); only assistant messages can be trained."""
    learn = message.get("learn")
    if learn is None:
        message.pop("learn", None)
        return
    if learn not in (0, 1):
        raise DataError(f"message {place} has learn={learn!r}; it must be true or false", where=where)
    if learn and message["role"] != "assistant":
        raise DataError(
            f"message {place} of role {message['role']} has learn=true; only assistant messages are trained",
            where=where,
        )
    message["learn"] = bool(learn)


def _advice(message: Mapping[str, Any]) -> str:
    return f"; for ShareGPT's names add --conversation-key-map '{_SHAREGPT}'" if "from" in message else ""
