# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""A raw row to a `CanonicalSample`, or to the two samples of a preference row.

prompt and label    `--input-key` holds text, `--label-key` names the answer: a user and an assistant message
whole messages      `--input-key` holds the messages, `--label-key` is not set
classification      `--input-key` holds text or messages, `--label-key` names the class or classes
preference          see `relax.engine.sft.dataset.preference`
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relax.data.chat import PromptBuilder, edited_prompt, plain
from relax.data.datasets import RawRow
from relax.engine.sft.dataset.conversations import mapped_messages
from relax.engine.sft.dataset.labels import class_label
from relax.engine.sft.dataset.options import SftDataOptions
from relax.engine.sft.dataset.preference import preference_turns
from relax.engine.sft.dataset.sample import CanonicalSample
from relax.utils.errors import DataError
from relax.utils.imports import load_callable


class SampleReader:
    """Reads rows by one set of options. Touches neither tokenizer nor media; never changes a row."""

    def __init__(self, options: SftDataOptions) -> None:
        self._options = options
        path = options.custom_prompt_path
        self._edit: Callable[[Any, Any], Any] | None = (
            load_callable(path, flag="--custom-prompt-path", positional=("prompt", "row")) if path else None
        )
        self._builder = PromptBuilder(
            None,
            input_key=options.input_key,
            metadata_key=options.metadata_key,
            tool_key=options.tool_key,
            multimodal_keys=options.multimodal_keys,
            system_prompt=options.system_prompt,
            apply_chat_template=True,
        )

    def sample(self, row: RawRow) -> CanonicalSample:
        """A row of prompt and label, of whole messages, or of a classification."""
        options, label = self._options, None
        prompt = self._prompt(row)
        if options.task_type == "seq_cls":
            label = self._class(row)
            messages = (
                [{"role": "user", "content": prompt}] if isinstance(prompt, str) else self._listed(prompt, row.where)
            )
            if messages is None:
                raise DataError(
                    f"--input-key {options.input_key!r} must hold text or messages with --task-type seq_cls, "
                    f"got {_kind(prompt)}",
                    where=row.where,
                )
        elif options.label_key is None:
            messages = self._listed(prompt, row.where)
            if messages is None:
                raise DataError(
                    f"--label-key is not set, so --input-key {options.input_key!r} expects a messages list, got "
                    f"{_kind(prompt)}; name the column of answers by --label-key, or turn rows into messages",
                    where=row.where,
                )
        else:
            messages = [*_user(prompt, row.where, options.input_key), self._answer(row)]
        return self._canonical(row, messages, label)

    def pair(self, row: RawRow) -> tuple[CanonicalSample, CanonicalSample]:
        """(chosen, rejected) of a preference row; only what stands behind the common prompt is learned."""
        options, values = self._options, row.values
        sides = [self._column(row, key, "SFT row missing preference key") for key in _sides(options)]
        prompt = self._prompt(row) if options.input_key in values else None
        prompt_turns, chosen, rejected = preference_turns(
            prompt, *sides, key_map=options.conversation_key_map, input_key=options.input_key, where=row.where
        )
        return (
            self._canonical(row, [*prompt_turns, *chosen], None),
            self._canonical(row, [*prompt_turns, *rejected], None),
        )

    def text(self, row: RawRow) -> str:
        """The document of a row of continued pre-training: a text, or the text of one assistant message."""
        prompt = self._prompt(row)
        if isinstance(prompt, str):
            return prompt
        messages = self._listed(prompt, row.where) or []
        if len(messages) != 1 or messages[0]["role"] != "assistant" or not isinstance(messages[0].get("content"), str):
            raise DataError(
                f"--sft-training-mode cpt expects text or a list of one assistant message in --input-key "
                f"{self._options.input_key!r}, got {_kind(prompt)} of roles {[m['role'] for m in messages]}",
                where=row.where,
            )
        return messages[0]["content"]

    # ----------------------------------------------------------------- columns

    def _prompt(self, row: RawRow) -> Any:
        prompt = self._column(row, self._options.input_key, "SFT row missing prompt key")
        return prompt if self._edit is None else plain(edited_prompt(self._edit, prompt, row.values, row.where))

    def _column(self, row: RawRow, key: str, what: str) -> Any:
        if row.values.get(key) is None:
            near = difflib.get_close_matches(key, list(row.values), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            flag = " (--input-key)" if key == self._options.input_key else ""
            raise DataError(f"{what} {key!r}{flag}; the row's columns are {sorted(row.values)}{hint}", where=row.where)
        return plain(row.values[key])

    def _answer(self, row: RawRow) -> dict[str, Any]:
        key = self._options.label_key
        answer = self._column(row, key, "SFT row missing label key")  # type: ignore[arg-type]
        if not isinstance(answer, str):
            raise DataError(
                f"--label-key {key!r} must hold the answer's text with --task-type causal_lm, got {_kind(answer)}",
                where=row.where,
            )
        return {"role": "assistant", "content": answer}

    def _class(self, row: RawRow) -> int | tuple[int, ...]:
        options = self._options
        key: str = options.label_key  # type: ignore[assignment]  # checked by the options
        return class_label(
            self._column(row, key, "SFT row missing label key"),
            problem_type=options.problem_type,
            num_labels=options.num_labels or 0,
            key=key,
            where=row.where,
        )

    def _listed(self, prompt: Any, where: str) -> list[dict[str, Any]] | None:
        """The messages when the prompt is a list of them; None when it is something else."""
        if not isinstance(prompt, list):
            return None
        if not prompt:
            raise DataError(f"--input-key {self._options.input_key!r} holds an empty list of messages", where=where)
        return mapped_messages(prompt, self._options.conversation_key_map, where)

    def _canonical(
        self, row: RawRow, messages: Sequence[Mapping[str, Any]], label: int | tuple[int, ...] | None
    ) -> CanonicalSample:
        """Media to their places, tools and metadata parsed: the rest of the row by the rules of every prompt."""
        options = self._options
        skipped = {options.label_key, *(_sides(options) if options.training_mode == "preference" else ())}
        values = {name: value for name, value in row.values.items() if name not in skipped}
        values[options.input_key] = list(messages)
        read = self._builder.read(RawRow(values, row.where, row.folder))
        file, _, number = row.where.rpartition(":")
        return CanonicalSample(
            messages=tuple(read.messages or ()),
            tools=tuple(read.tools) if read.tools else None,
            media=tuple(read.media),
            label=label,
            metadata=read.metadata,
            file=file,
            row=int(number),
        )


def _sides(options: SftDataOptions) -> tuple[str, str]:
    return options.chosen_key, options.rejected_key


def _user(prompt: Any, where: str, key: str) -> list[dict[str, Any]]:
    if not isinstance(prompt, str):
        raise DataError(
            f"--label-key is set, so --input-key {key!r} expects the prompt's text with --task-type causal_lm, got "
            f"{_kind(prompt)}; for whole messages leave --label-key out",
            where=where,
        )
    return [{"role": "user", "content": prompt}]


def _kind(value: Any) -> str:
    return {"str": "text", "list": "a list", "dict": "an object"}.get(type(value).__name__, type(value).__name__)
