# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Do engine, trainer and Hugging Face give the same log-probs? Text, images, audio and video, on perturbed weights.

    OMP_NUM_THREADS=1 python -m benchmarks.parity [--groups 5] [--members 3] [--max-length 200] [--seed 0]

One tiny Qwen3-Omni engine serves groups of 1 to 200 tokens at temperature 0.6 that join at different times, with a
medium in every position, is retracted in mid-flight, gets new weights while requests run, and serves on. Then every
response is scored again: token by token under the version that made it, by a plain HF forward (SDPA, float64 softmax)
and by the trainer (`FsdpBackend.score`, groups packed with a shared prompt). The last line is `RESULT {json}`.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relax.backends.base import ModelSpec, Part
from relax.backends.conformance import samples
from relax.backends.conformance.reference import hf_log_probs
from relax.backends.conformance.samples import MAKERS
from relax.backends.engine_client import AsgiEngineClient
from relax.backends.fsdp.backend import FsdpBackend
from relax.backends.native.build import EngineSettings, build_app
from relax.data.columns import TrainSequence
from relax.data.media.items import load_media
from relax.data.media.processing import MediaProcessor
from relax.distributed.checkpoint_service.publishers import SharedMemoryPublisher
from relax.utils.types import MediaFeatures
from tests.builders import build_tiny_model_folder, tiny_omni_processor, tiny_tokenizer

TEMPERATURE = 0.6
KINDS = ("text", "image", "audio", "video")
LAYOUTS = ("M text", "text M text", "text M", "M", "M text M text M")
SENTENCES = ("What is 7 plus 5?", "Which digit is shown?", "The answer is", "a", "12 plus 30")


# --------------------------------------------------------------------------- prompts


@functools.cache
def tokenizer() -> Any:
    return tiny_tokenizer()


@functools.cache
def processor() -> MediaProcessor:
    return MediaProcessor(tiny_omni_processor())


def prompt_ids(layout: str, kinds: Sequence[str], sentence: str = SENTENCES[0]) -> list[int]:
    return samples.prompt_ids(tokenizer(), layout, kinds, sentence)


@dataclass
class Case:
    """One group: a prompt and the responses of its members."""

    kind: str
    ids: list[int]
    media: list[tuple[str, str]]
    lengths: list[int]
    first_seed: int
    answers: list[dict[str, Any]] = field(default_factory=list)

    def features(self) -> list[MediaFeatures]:
        return [processor().extract(load_media(k, uri, folder=Path(), where="parity")) for k, uri in self.media]

    def expanded(self) -> list[int]:
        return processor().expand(self.ids, self.features())

    def body(self, member: int) -> dict[str, Any]:
        params = {
            "temperature": TEMPERATURE,
            "max_new_tokens": self.lengths[member],
            "sampling_seed": self.first_seed + member,
            "ignore_eos": True,
        }
        media = {f"{kind}_data": [uri for k, uri in self.media if k == kind] or None for kind in MAKERS}
        return {"input_ids": self.ids, "sampling_params": params, "return_logprob": True, **media}


def make_cases(groups: int, members: int, max_length: int, seed: int) -> list[Case]:
    """`groups` prompts of each kind; lengths between 1 and `max_length`, both taken."""
    chance = np.random.default_rng(seed)
    cases = []
    for kind in KINDS:
        for place in range(groups):
            layout = "text" if kind == "text" else LAYOUTS[place % len(LAYOUTS)]
            count = layout.split().count("M")
            seeds = chance.integers(0, 1 << 30, count).tolist()
            media = [(kind, MAKERS[kind](s)) for s in seeds]
            lengths = chance.integers(1, max_length + 1, members).tolist()
            if place == 0:
                lengths[:2] = [1, max_length][: len(lengths)]
            ids = prompt_ids(layout, [kind] * count, SENTENCES[place % len(SENTENCES)])
            cases.append(Case(kind, ids, media, lengths, int(chance.integers(0, 1 << 40))))
    return cases


# --------------------------------------------------------------------------- serving


async def serve(
    client: AsgiEngineClient, cases: Sequence[Case], chance: np.random.Generator, update: Any = None
) -> None:
    """All members of all cases, joining at random times; retracted twice, the second time with `update`."""

    async def member(case: Case, place: int, wait_s: float) -> dict[str, Any]:
        await asyncio.sleep(wait_s)
        return await client.generate(case.body(place))

    tasks = [[asyncio.create_task(member(c, m, chance.random() * 1.5)) for m in range(len(c.lengths))] for c in cases]
    for action in (None, update):
        await asyncio.sleep(0.8)
        await client.pause("retract")
        if action is not None:
            await action(client)
        else:
            await client.flush()
        await client.resume()
    for case, group in zip(cases, tasks, strict=True):
        case.answers = list(await asyncio.gather(*group))


async def alone_again(client: AsgiEngineClient, cases: Sequence[Case]) -> bool:
    """Whether responses asked for one at a time, from a cold cache, have the very bits they had in company."""
    equal = True
    for case in cases:
        for place, before in enumerate(case.answers):
            if len(before["meta_info"]["weight_versions"]) > 1:
                continue
            await client.flush()
            again = await client.generate(case.body(place))
            equal &= again["meta_info"]["output_token_logprobs"] == before["meta_info"]["output_token_logprobs"]
    return equal


# --------------------------------------------------------------------------- scoring


def load_hf_omni(folder: Path) -> Any:
    import transformers

    cls = transformers.Qwen3OmniMoeThinkerForConditionalGeneration
    return cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()


def trainer_log_probs(
    backend: FsdpBackend, cases: Sequence[Case], per_micro_batch: int = 4
) -> dict[tuple[int, int], np.ndarray]:
    """Log-probs by (case, member); each micro-batch holds whole groups with shared prompts."""
    groups = []
    for place, case in enumerate(cases):
        prompt, media = case.expanded(), tuple(case.features())
        groups.append(
            tuple(
                TrainSequence(
                    group=place,
                    index=member,
                    tokens=np.asarray([*prompt, *answer["output_ids"]], np.int32),
                    prompt_len=len(prompt),
                    loss_mask=np.ones(len(answer["output_ids"]), np.uint8),
                    media=media,
                )
                for member, answer in enumerate(case.answers)
            )
        )
    batches = [sum(groups[i : i + per_micro_batch], ()) for i in range(0, len(groups), per_micro_batch)]
    columns = backend.score(Part(tuple(batches)), frozenset({"log_probs"}))
    return {uid: found["log_probs"] for uid, found in columns.items()}


def by_version(answer: dict[str, Any], scores: dict[str, np.ndarray]) -> np.ndarray:
    """Scores of the response's tokens, each under the version that made it."""
    spans = answer["meta_info"]["weight_versions"]
    return np.concatenate([scores[s["version"]][s["start"] : s["end"]] for s in spans])


@dataclass
class Differences:
    hf: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    trainer: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    ratio: float = 0.0
    tokens: int = 0
    two_versions: int = 0  # responses that span the update


def compare(cases: Sequence[Case], folders: dict[str, Path], suppressed: Sequence[int]) -> Differences:
    models = {version: load_hf_omni(folder) for version, folder in folders.items()}
    trained = {}
    for version, folder in folders.items():
        backend = FsdpBackend()
        backend.open(ModelSpec(folder, temperature=TEMPERATURE, suppressed_ids=tuple(suppressed)), None)
        trained[version] = trainer_log_probs(backend, cases)
        backend.close()
    found = Differences()
    for place, case in enumerate(cases):
        prompt, features = case.expanded(), case.features()
        for member, answer in enumerate(case.answers):
            ids = answer["output_ids"]
            engine = np.asarray([score for score, _, _ in answer["meta_info"]["output_token_logprobs"]], np.float32)
            versions = {span["version"] for span in answer["meta_info"]["weight_versions"]}
            plain = {v: hf_log_probs(models[v], prompt, features, ids, TEMPERATURE, suppressed) for v in versions}
            own = by_version(answer, {v: trained[v][place, member] for v in versions})
            found.hf[case.kind] = max(found.hf[case.kind], float(np.abs(engine - by_version(answer, plain)).max()))
            found.trainer[case.kind] = max(found.trainer[case.kind], float(np.abs(engine - own).max()))
            found.ratio = max(found.ratio, float(np.abs(np.exp(own.astype(np.float64) - engine) - 1).max()))
            found.tokens += len(ids)
            found.two_versions += len(versions) > 1
    return found


# --------------------------------------------------------------------------- the run


async def run(groups: int, members: int, max_length: int, seed: int, folder: Path) -> dict[str, Any]:
    """The whole comparison; `folder` takes the models. Returns the RESULT object."""
    first = build_tiny_model_folder(folder / "first", "qwen3_omni", seed=seed)
    second = build_tiny_model_folder(folder / "second", "qwen3_omni", seed=seed + 1)
    settings = EngineSettings(first, max_running_requests=32, max_total_tokens=4096, weight_version="0")
    client = AsgiEngineClient(build_app(settings))
    info = await client.info()
    cases = make_cases(groups, members, max_length, seed)
    later = make_cases(groups, members, max_length, seed + 1)

    async def update(engine: AsgiEngineClient) -> None:
        from safetensors.torch import load_file

        manifest = SharedMemoryPublisher(folder / "versions").publish(
            1, load_file(second / "model.safetensors").items()
        )
        await engine.weights_begin()
        await engine.weights_from_disk(Path(str(manifest.folder)), 1)
        await engine.weights_end(1)

    try:
        await serve(client, cases, np.random.default_rng(seed), update)
        await serve(client, later, np.random.default_rng(seed + 1))
        equal = await alone_again(client, later[:: max(1, len(later) // 8)])
    finally:
        await client.close()
    found = compare([*cases, *later], {"0": first, "1": second}, info.raw["suppressed_ids"])
    return {
        "max_abs_logprob_diff_hf": found.hf,
        "max_abs_engine_trainer_diff": found.trainer,
        "first_ratio_max_abs_dev": found.ratio,
        "batch_independent_bits": equal,
        "exact": info.exact,
        "exact_reason": info.exact_reason,
        "responses": 2 * len(KINDS) * groups * members,
        "responses_across_an_update": found.two_versions,
        "tokens": found.tokens,
        "temperature": TEMPERATURE,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=5, help="Prompts of each kind, before and after the update.")
    parser.add_argument("--members", type=int, default=3, help="Responses of each prompt.")
    parser.add_argument("--max-length", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(
            run(arguments.groups, arguments.members, arguments.max_length, arguments.seed, Path(folder))
        )
    print(f"RESULT {json.dumps(result)}")


if __name__ == "__main__":
    main()
