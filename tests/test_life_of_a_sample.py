# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Walks docs/life-of-a-sample.md hop by hop: one prompt from its row to the weights that its reward moves.

The policy is a table of next-token logits that starts at zero, so every number here can be had with a pencil. The
reward likes even ids. The prompt's two samples are one token each, one even and one odd (the seed is chosen so).
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.simulation.world import ARGS, HOST, PORT
from relax.algorithms.options import AlgorithmOptions, build_loss
from relax.backends.base import ModelSpec, OptimizerSpec
from relax.backends.tiny.engine import EchoEngine, EchoRouter
from relax.backends.tiny.train import TinyTrain
from relax.backends.tiny.weights import MemoryPublisher, WeightStore
from relax.components.actor import Actor
from relax.components.advantages import Advantages
from relax.components.engines import EngineFleet
from relax.components.messages import PRODUCERS, AcceptedGroup, GroupOrder, TrainTask
from relax.components.rollout import Rollout, RolloutSettings
from relax.components.training_data import BatchSettings, plan_items, read_parts, start_plan
from relax.core.prompt_order import PromptOrder
from relax.data.chat import PromptBuilder
from relax.data.datasets import open_dataset
from relax.distributed.bus.local import LocalBus
from relax.distributed.trace import TraceEntry, TraceWriter, read_block
from relax.engine.rewards.score import RewardScorer
from relax.engine.rollout.attempts import GenerationOptions
from relax.engine.rollout.groups import GroupGenerator
from relax.engine.rollout.hooks import load_hook
from relax.engine.rollout.sampling import SamplingOptions
from relax.schedule import events as ev
from relax.schedule.batch_plan import BatchPlan
from relax.schedule.clock import VirtualClock, run_virtual
from relax.schedule.journal import MemoryJournal
from relax.schedule.scheduler import GateSettings, Scheduler
from relax.utils.http_utils import register_local, unregister_local
from relax.utils.types import Sample
from tests.builders import tiny_tokenizer

ROOT = Path(__file__).parents[1]
SEED, LR = 0, 0.5
HOPS = (  # as `walk` numbers them
    "read",
    "prepare",
    "admit",
    "generate",
    "sample a token",
    "score, filter",
    "store",
    "bind",
    "advantages",
    "plan",
    "train",
    "publish, install",
    "close",
)


async def likes_even_ids(args: Any, sample: Sample, **kwargs: Any) -> float:
    return float(sample.tokens[-1] % 2 == 0)


class Hops:
    """The parts of one run, and what a hop leaves for the next."""

    def __init__(self, folder: Path) -> None:
        (folder / "prompts.jsonl").write_text(json.dumps({"input": "What is 3 plus 4?", "label": "7"}) + "\n")
        self.folder, self.clock, self.store = folder, VirtualClock(), WeightStore()
        self.tokenizer = tiny_tokenizer()
        self.size = len(self.tokenizer)
        self.journal, self.bus = MemoryJournal(), LocalBus(PRODUCERS)
        self.scheduler = Scheduler(GateSettings(rollout_batch_size=1, max_staleness=0, num_rollouts=2))
        self.engine = EchoEngine(
            np.ones((self.size, self.size)), clock=self.clock, store=self.store, eos_id=self.size + 1
        )
        self.fleet = EngineFleet({"engine-0": self.engine}, clock=self.clock)
        self.actor, self.advantages = self._actor(), self._advantages()
        self.rollout = self._rollout()

    def _rollout(self) -> Rollout:
        dataset = open_dataset(str(self.folder / "prompts.jsonl"))
        builder = PromptBuilder(self.tokenizer, label_key="label")

        async def prepare(row: Any) -> Any:
            return builder.build(row)

        generator = GroupGenerator(
            args=ARGS,
            hook=load_hook(),
            sampling_params=SamplingOptions(max_response_len=1).params(),
            options=GenerationOptions(seed=SEED, max_response_len=1),
            clock=self.clock,
            scorer=RewardScorer(custom_rm_path="tests.test_life_of_a_sample.likes_even_ids", clock=self.clock),
            engines=self.fleet,
        )
        return Rollout(
            dataset=dataset,
            prepare=prepare,
            generator=generator,
            engines=self.fleet,
            bus=self.bus,
            trace=TraceWriter(self.folder / "trace"),
            journal=self.journal,
            clock=self.clock,
            settings=RolloutSettings(2, result_dir=self.folder),
        )

    def _actor(self) -> Actor:
        return Actor(
            backend=TinyTrain(np.zeros((self.size, self.size)), store=self.store),
            loss=build_loss(AlgorithmOptions()),
            model=ModelSpec(Path("unused")),
            optimizer=OptimizerSpec(lr=LR, clip_grad=0.0),
            settings=BatchSettings(2, 2, 4096),
            bus=self.bus,
            publisher=MemoryPublisher(self.store),
            clock=self.clock,
            deadline_s=1.0,
        )

    def _advantages(self) -> Advantages:
        return Advantages(bus=self.bus, options=AlgorithmOptions(), group_size=2, global_batch_size=2, deadline_s=1.0)

    def decide(self, event: ev.Event) -> None:
        self.journal.append(event)
        self.scheduler.apply(event)


async def walk(hops: Hops) -> None:
    scheduler, rollout, actor = hops.scheduler, hops.rollout, hops.actor
    await rollout.start()
    await actor.start()
    hops.decide(ev.Published(0))
    (status,) = await rollout.install(await actor.publish(0))
    hops.decide(ev.EngineJoined(status.engine, 0))

    # 1 read, 2 prepare (inside admit), 3 admit
    epoch, row = PromptOrder(1, seed=SEED, shuffle=True).next_fresh()
    assert (epoch, row) == (0, 0)
    admitted = scheduler.admit(epoch, row)
    hops.decide(admitted)
    assert (admitted.group, admitted.version) == (0, 0)
    assert scheduler.admissible() == 0  # the gate is closed behind it
    await rollout.admit((GroupOrder(admitted.group, epoch, row),))

    # 4 generate, 5 sample a token, 6 score (no filter), 7 store
    report = await rollout.report(1, 60.0)
    assert report.sampled_tokens == 2
    completed = next(event for event in hops.journal.events if isinstance(event, ev.Completed))
    entry = TraceEntry(completed.file, completed.offset, completed.length, completed.digest, columns=completed.columns)
    assert report.accepted == (AcceptedGroup(0, oldest=0, newest=0, entry=entry),)
    stored = read_block(hops.folder / "trace", entry).columns
    prompt = hops.tokenizer.encode("What is 3 plus 4?", add_special_tokens=False)
    length = len(prompt)
    tokens = stored["tokens"].reshape(2, length + 1)
    assert (tokens[:, :length] == prompt).all()
    sampled = tokens[:, length].tolist()
    even = [token for token in sampled if token % 2 == 0]
    odd = [token for token in sampled if token % 2 == 1]
    assert len(even) == len(odd) == 1  # what SEED is chosen for
    assert stored["rollout_logprobs"] == pytest.approx([-math.log(hops.size)] * 2)  # uniform at first
    assert stored["weight_version"].tolist() == [0, 0]
    assert stored["reward"].tolist() == [float(token % 2 == 0) for token in sampled]

    # 8 bind
    hops.decide(ev.Accepted(0, 0, 0))
    bound = scheduler.bind()
    assert bound == ev.Bound(0, (0,), last=True)
    hops.decide(bound)
    release = await rollout.release(0, bound.groups)
    assert release.groups[0].digest == completed.digest

    # 9 advantages: rewards 1 and 0, mean 1/2, sample std sqrt(1/2)
    size = 0.5 / (math.sqrt(0.5) + 1e-6)
    weighed = await hops.advantages.compute(0, (0,))
    columns = (await hops.bus.get("train_0", ("advantages",), [0], deadline_s=1.0))["advantages"][0].columns
    assert columns["advantages"] == pytest.approx([size if token % 2 == 0 else -size for token in sampled])
    assert columns["loss_weight"].tolist() == [1.0, 1.0]
    assert weighed.divisors == (2.0,)

    # 10 plan
    (piece,) = start_plan(BatchSettings(2, 2, 4096), dp_size=1).extend(plan_items(release.groups), last=True)
    assert piece.ranks == ((((0, 0), (0, 1)),),)
    plan = BatchPlan((piece.ranks,))
    (part,) = await read_parts(hops.bus, 0, release.groups, ("advantages",), plan, 0, deadline_s=1.0)
    assert [s.uid for s in part.micro_batches[0]] == [(0, 0), (0, 1)]

    # 11 train. On-policy: d loss / d log p = -advantage / divisor, and the softmax terms of +size and -size cancel,
    # so the logits of the two sampled tokens after the prompt's last token move by lr * size / 2, all others stay.
    hops.decide(ev.Taken(0, 0))
    trained = await actor.train(TrainTask(0, release.groups, ("advantages",), weighed.divisors))
    assert trained.num_steps == 1
    hops.decide(ev.Stepped(0, "digest"))
    right = np.zeros((hops.size, hops.size))
    right[prompt[-1], even[0]] = LR * size / 2
    right[prompt[-1], odd[0]] = -LR * size / 2
    table = actor._backend.table
    assert table == pytest.approx(right, abs=1e-7)
    # advantages travel as float32, hence 1e-7; no other row has felt anything at all
    assert set(np.flatnonzero(table.any(axis=1)).tolist()) == {prompt[-1]}

    # 12 publish, install
    manifest = await actor.publish(1)
    hops.decide(ev.Published(1))
    (status,) = await rollout.install(manifest)
    assert (status.ok, hops.engine.version) == (True, "1")
    params = {"temperature": 0.0, "max_new_tokens": 1, "sampling_seed": 0}
    greedy = await hops.engine.generate({"input_ids": prompt, "sampling_params": params})
    assert greedy["output_ids"] == even  # what was rewarded is now what the engine prefers
    assert greedy["meta_info"]["weight_version"] == "1"

    # 13 close
    assert scheduler.open
    hops.decide(ev.Installed("engine-0", 1))
    assert not scheduler.open
    assert scheduler.admissible() == 1
    await rollout.drop("train_0")
    await rollout.stop()
    await actor.stop()


def test_a_prompts_reward_moves_the_right_parameters(tmp_path: Path):
    async def main() -> list[ev.Event]:
        hops = Hops(tmp_path)
        register_local(f"http://{HOST}:{PORT}", EchoRouter([hops.engine]))
        try:
            await asyncio.wait_for(walk(hops), 3600)
        finally:
            unregister_local(f"http://{HOST}:{PORT}")
        return hops.journal.events

    events = run_virtual(main())
    assert [event.kind for event in events] == [
        "published",
        "engine_joined",
        "admitted",
        "completed",
        "rewarded",
        "accepted",
        "bound",
        "taken",
        "stepped",
        "published",
        "installed",
    ]
    (line, _) = (tmp_path / "rollout_result" / "train" / "0.jsonl").read_text().splitlines()
    assert json.loads(line)["prompt"] == "What is 3 plus 4?"


def test_the_page_has_the_hops_of_the_walk():
    page = (ROOT / "docs" / "life-of-a-sample.md").read_text()
    rows = re.findall(r"^\| (\d+) ([\w, ]+) \|", page, flags=re.MULTILINE)
    assert [(int(number), name) for number, name in rows] == list(enumerate(HOPS, start=1))
