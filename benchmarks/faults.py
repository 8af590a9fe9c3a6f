# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Faults planted between engine and trainer; the parity check must name each rightly, and nothing in a clean run.

    python -m benchmarks.faults

The native engine serves a tiny Qwen3-Omni in this process and FSDP's backend trains it. Each fault is real: another
request, other weights or another type in the engine, or a generate function that changes what the engine answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.parity import Case, processor, prompt_ids, tokenizer
from relax.backends.base import ModelSpec, Part
from relax.backends.conformance.samples import png
from relax.backends.engine_client import AsgiEngineClient
from relax.backends.exact.logprobs import distribution
from relax.backends.fsdp.backend import FsdpBackend
from relax.backends.native.build import EngineSettings, build_app
from relax.data.columns import TrainSequence
from relax.distributed.checkpoint_service.publishers import SharedMemoryPublisher
from relax.engine.parity.diagnose import Facts
from relax.engine.parity.gate import Parity, ParityGate, ParitySettings
from relax.engine.parity.variants import Vocabulary
from tests.builders import build_tiny_model_folder

SENTENCES = tuple(f"What is {a} plus {b}?" for a, b in ((7, 5), (1, 12), (19, 3), (4, 4), (8, 0), (2, 16)))
TRUNCATED = {"top_p": 0.8}


@dataclass(frozen=True)
class Fault:
    """What is planted, and the cause that must be named. None: a clean run."""

    name: str
    cause: str | None
    temperature: float = 1.0  # of the trainer
    version: int = 0  # of the trainer's weights
    engine: str = "first"  # folder of the engine's weights
    dtype: str = "fp32"  # of the engine
    suppressed: str = "model"  # of the engine: "model", "none"; "ascii" is both sides'
    sampling: dict[str, Any] = field(default_factory=dict)
    raw: bool = False  # the engine reports log-probs of the raw logits
    images: bool = False
    members: int = 2
    request: Callable[[Case, Sequence[Case]], Case] = lambda case, cases: case  # what the engine is asked instead
    answer: Callable[[list[int], list[float]], tuple[list[int], list[float]]] = lambda ids, scores: (ids, scores)


def tokenized_again(ids: list[int], scores: list[float]) -> tuple[list[int], list[float]]:
    """A generate function that keeps the text: other ids for it, and as many of the log-probs."""
    again = tokenizer()(tokenizer().decode(ids))["input_ids"]
    length = min(len(again), len(scores))
    return again[:length], scores[:length]


def moved(ids: list[int], scores: list[float]) -> tuple[list[int], list[float]]:
    return ids, [scores[-1], *scores[:-1]]


def without_media(case: Case, cases: Sequence[Case]) -> Case:
    marks = {tokenizer().convert_tokens_to_ids("<|image_pad|>")}
    return replace(case, ids=[token for token in case.ids if token not in marks], media=[])


def of_the_next_prompt(case: Case, cases: Sequence[Case]) -> Case:
    place = next(n for n, other in enumerate(cases) if other is case)
    return replace(case, media=cases[(place + 1) % len(cases)].media)


def cut_off(case: Case, cases: Sequence[Case]) -> Case:
    return replace(case, ids=case.ids[3:])


FAULTS = (
    Fault("another temperature", "temperature", sampling={"temperature": 0.8}),
    Fault("raw log-probs", "log_prob_kind", temperature=0.6, sampling={"temperature": 0.6}, raw=True, members=6),
    Fault("top-p by default", "truncation", sampling=TRUNCATED),
    Fault("top-p, raw log-probs", "truncation", sampling={"top_p": 0.6}, raw=True, members=8),
    Fault("bf16 engine", "precision", dtype="bf16"),
    Fault("a version skipped", "version", version=1),
    Fault("shifted log-probs", "alignment", answer=moved),
    Fault("text tokenized again", "tokenization", suppressed="ascii", members=6, answer=tokenized_again),
    Fault("prompt cut off", "prompt", request=cut_off),
    Fault("images left out", "media", images=True, request=without_media),
    Fault("images exchanged", "media", images=True, request=of_the_next_prompt),
    Fault("placeholders not suppressed", "suppressed_ids", suppressed="none"),
    Fault("a layer disturbed", "weights", engine="disturbed"),
)
CLEAN = (
    Fault("text", None, members=8),
    Fault("images", None, images=True),
    Fault("temperature 0.6", None, temperature=0.6, sampling={"temperature": 0.6}, members=8),
    Fault("second version", None, version=1, engine="second"),
    Fault("responses in ascii", None, suppressed="ascii"),
)


def make_folders(root: Path) -> dict[str, Path]:
    """Two versions, some updates apart, and the first with one layer disturbed."""
    from safetensors.torch import load_file, save_file

    folders = {name: build_tiny_model_folder(root / name, "qwen3_omni") for name in ("first", "second", "disturbed")}
    for name, pattern in (("second", ""), ("disturbed", "layers.1.self_attn.o_proj")):
        path = folders[name] / "model.safetensors"
        tensors, generator = load_file(path), torch.Generator().manual_seed(1)
        for key in sorted(tensors):
            if pattern in key and tensors[key].ndim == 2:
                noise = torch.randn(tensors[key].shape, generator=generator)
                tensors[key] = tensors[key] + 0.1 * tensors[key].std() * noise
        save_file(tensors, path, metadata={"format": "pt"})
    return folders


def ascii_only() -> tuple[int, ...]:
    """All ids but those that spell plain letters, digits and blanks."""

    def plain(text: str) -> bool:
        return all(c.isascii() and (c.isalnum() or c in " .?") for c in text)

    return tuple(n for n in range(len(tokenizer())) if not plain(tokenizer().decode([n])))


def make_cases(images: bool, members: int) -> list[Case]:
    layout, length = ("text M" if images else "text"), 12 if images else 32
    return [
        Case(
            kind="image" if images else "text",
            ids=prompt_ids(layout, ["image"] if images else [], sentence),
            media=[("image", png(n))] if images else [],
            lengths=[length] * members,
            first_seed=1000 * (n + 1),
        )
        for n, sentence in enumerate(SENTENCES[:4] if images else SENTENCES)
    ]


async def generate(fault: Fault, folders: dict[str, Path], suppressed: tuple[int, ...] | None) -> list[TrainSequence]:
    """What the rollout role would put on the bus: the engine's answers, with the fault in them."""
    settings = EngineSettings(
        folders[fault.engine],
        dtype=fault.dtype,
        max_running_requests=64,
        max_total_tokens=8192,
        suppressed_ids=suppressed,
        weight_version=str(fault.version),
    )
    client = AsgiEngineClient(build_app(settings))
    cases = make_cases(fault.images, fault.members)
    try:
        tasks = [one(client, fault, case, cases, m) for case in cases for m in range(fault.members)]
        answers = await asyncio.gather(*tasks)
    finally:
        await client.close()
    rows = [(place, case, m) for place, case in enumerate(cases) for m in range(fault.members)]
    out = []
    for (place, case, member), (ids, scores) in zip(rows, answers, strict=True):
        ids, scores = fault.answer(ids, scores)
        prompt, count = case.expanded(), len(ids)
        out.append(
            TrainSequence(
                group=place,
                index=member,
                tokens=np.asarray([*prompt, *ids], np.int32),
                prompt_len=len(prompt),
                loss_mask=np.ones(count, np.uint8),
                columns={
                    "rollout_logprobs": np.asarray(scores, np.float32),
                    "weight_version": np.full(count, fault.version, np.float32),
                },
                media=tuple(case.features()),
            )
        )
    return out


async def one(
    client: AsgiEngineClient, fault: Fault, case: Case, cases: Sequence[Case], member: int
) -> tuple[list[int], list[float]]:
    body = fault.request(case, cases).body(member)
    body["sampling_params"] |= {"temperature": 1.0} | fault.sampling
    found = await client.generate(body)
    ids, scores = found["output_ids"], [entry[0] for entry in found["meta_info"]["output_token_logprobs"]]
    return ids, scores


@contextmanager
def raw_log_probs() -> Iterator[None]:
    """The engine reports what the logits say, before temperature and truncation."""
    from relax.backends.native import scheduler

    own = scheduler.sample

    def reporting_raw(logits: torch.Tensor, batch: Any, suppressed: torch.Tensor | None) -> Any:
        ids, _ = own(logits, batch, suppressed)
        return ids, distribution(logits, None, suppressed)[range(len(ids)), ids].numpy()

    scheduler.sample = reporting_raw
    try:
        yield
    finally:
        scheduler.sample = own


def check(fault: Fault, folders: dict[str, Path]) -> Parity:
    """Generate, then compare as a training rank does."""
    model_ids = processor().suppressed_ids
    trainer_ids = ascii_only() if fault.suppressed == "ascii" else model_ids
    engine_ids = {"model": model_ids, "none": (), "ascii": trainer_ids}[fault.suppressed]
    with raw_log_probs() if fault.raw else nullcontext():
        rows = asyncio.run(generate(fault, folders, engine_ids))
    backend = FsdpBackend()
    info = backend.open(
        ModelSpec(folders["first"], temperature=fault.temperature, suppressed_ids=tuple(trainer_ids)), None
    )
    gate = ParityGate(
        ParitySettings(interval=1, max_staleness=1, same_forward=True),
        lambda: Facts(
            temperature=fault.temperature,
            suppressed_ids=tuple(trainer_ids),
            model_suppressed_ids=tuple(model_ids),
            vocabulary=Vocabulary(
                tokenizer().get_vocab(),
                placeholder_ids=frozenset(processor().placeholder_ids.values()),
                media_ids=frozenset(model_ids),
            ),
        ),
    )
    gate.published(backend, 0)
    if fault.version:
        backend.load_weights(publish(folders["second"], fault.version))
        gate.published(backend, fault.version)
    by_group = {}
    for row in rows:
        by_group.setdefault(row.group, []).append(row)
    part = Part(tuple(tuple(group) for group in by_group.values()))
    try:
        return gate.examine(backend, part, fault.version, exact=info.exact)
    finally:
        backend.close()


def publish(folder: Path, version: int) -> Path:
    """The folder's weights as a training that led to them would publish them."""
    trained = FsdpBackend()
    trained.open(ModelSpec(folder), None)
    manifest = SharedMemoryPublisher(folder.parent / "versions").publish(version, trained.weights())
    trained.close()
    return Path(str(manifest.folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="Plant the faults whose name holds this text.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    named = alarms = 0
    faults = [f for f in FAULTS if arguments.only is None or arguments.only in f.name]
    with tempfile.TemporaryDirectory() as root:
        folders = make_folders(Path(root))
        for fault in (*faults, *CLEAN):
            started = time.process_time()
            found = check(fault, folders)
            cause = found.verdict.cause if found.verdict else None
            named += fault.cause is not None and cause == fault.cause
            alarms += fault.cause is None and cause is not None
            mark = "ok  " if cause == fault.cause else "FAIL"
            print(
                f"{mark} {fault.name:28} mean {found.difference.mean:9.3g}  p99 {found.difference.p99:9.3g}  "
                f"-> {cause or 'nothing'}  ({time.process_time() - started:.1f} CPU s)",
                flush=True,
            )
            if found.verdict is not None:
                print(f"       {found.verdict}", flush=True)
    result = {"planted": len(faults), "named": named, "clean": len(CLEAN), "false_alarms": alarms}
    print(f"RESULT {json.dumps(result)}")
    sys.exit(0 if named == len(faults) and not alarms else 1)


if __name__ == "__main__":
    main()
