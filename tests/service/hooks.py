# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What users write: rewards, generate functions, filters. Some of them misbehave on purpose."""

import asyncio
import os
from functools import cache
from pathlib import Path
from typing import Any

from relax.engine.rewards.judges import GenRMClient
from relax.engine.rollout.sglang_rollout import GenerateState
from relax.utils.collect_stacks import collect, report
from relax.utils.http_utils import post
from relax.utils.metrics_client import MetricsClient
from relax.utils.types import Sample


def token_reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    """Differs between samples, and is a function of the tokens alone."""
    return float(sum(sample.tokens[-sample.response_length :]) % 7)


def dict_reward(args: Any, sample: Sample, **kwargs: Any) -> dict[str, Any]:
    score = token_reward(args, sample)
    return {"score": score, "half": score / 2}


def constant_reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    return 1.0


def nan_reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    return 1e308 if sample.index else -1e308


def raising_reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    raise KeyError("the judge has no answer")


def reward_raising_once(args: Any, sample: Sample, **kwargs: Any) -> float:
    if (sample.group_index, sample.index) == (1, 1):
        raise ValueError("the judge dislikes sample 1.1")
    return token_reward(args, sample)


def reward_asking_for_stacks(args: Any, sample: Sample, **kwargs: Any) -> float:
    """What a user does by `relax stacks` in another window."""
    if (sample.group_index, sample.index) == (0, 0):
        folder = Path(args.run_dir)
        (folder / "asked.txt").write_text(report(collect(folder / "stacks", answer_s=30.0)))
    return token_reward(args, sample)


async def slow_reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    await asyncio.sleep(float(os.environ.get("TEST_REWARD_SECONDS", "0.5")))
    return token_reward(args, sample)


async def told_reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    """Counts itself at the metrics service."""
    reporter(args.metrics_service_url).log_metric(None, "custom/scored/count", 1)
    return await slow_reward(args, sample)


@cache
def reporter(url: str) -> MetricsClient:
    return MetricsClient(url, source="told_reward")


def turn_all_down(args: Any, samples: list[Sample]) -> bool:
    """A filter that turns everything down."""
    return False


def keep_even_groups(args: Any, samples: list[Sample]) -> bool:
    return samples[0].group_index % 2 == 0


class Dice:
    """An environment: answers each turn with a number and is done after the second."""

    def __init__(self, limit: int) -> None:
        self.limit, self.turns = limit, 0

    def reset(self) -> None:
        self.turns = 0

    def step(self, text: str) -> tuple[str, bool, dict[str, Any]]:
        self.turns += 1
        return f"observed {self.turns}", self.turns >= self.limit, {}


def build_env(*, sample: Sample, args: Any) -> Dice:
    return Dice(args.dice_turns)


async def generate(args, sample: Sample, sampling_params) -> Sample:
    """The documented example of a multi-turn function, word for word."""
    state = GenerateState(args)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    env = build_env(sample=sample, args=args)
    env.reset()
    prompt_ids = state.tokenizer.encode(sample.prompt, add_special_tokens=False)
    sample.tokens, sample.loss_mask, sample.rollout_log_probs, response_tokens = list(prompt_ids), [], [], []
    for turn in range(args.max_turns):  # noqa: B007
        output = await post(
            url, {"input_ids": sample.tokens, "sampling_params": sampling_params, "return_logprob": True}
        )
        new_tokens = [t[1] for t in output["meta_info"]["output_token_logprobs"]]
        new_probs = [t[0] for t in output["meta_info"]["output_token_logprobs"]]
        sample.tokens.extend(new_tokens)
        response_tokens.extend(new_tokens)
        sample.loss_mask.extend([1] * len(new_tokens))
        sample.rollout_log_probs.extend(new_probs)
        observation, done, info = env.step(output["text"])  # noqa: RUF059
        if done:
            break
        obs_ids = state.tokenizer.encode(observation, add_special_tokens=False)
        sample.tokens.extend(obs_ids)
        response_tokens.extend(obs_ids)
        sample.loss_mask.extend([0] * len(obs_ids))
        sample.rollout_log_probs.extend([0.0] * len(obs_ids))
    sample.response = state.tokenizer.decode(response_tokens, skip_special_tokens=False)
    sample.response_length = len(response_tokens)
    sample.status = Sample.Status.COMPLETED
    return sample


async def generate_raising(args, sample: Sample, sampling_params) -> Sample:
    raise RuntimeError("the tool server is down")


async def generate_hanging(args, sample: Sample, sampling_params) -> Sample:
    await asyncio.Event().wait()
    return sample


async def generate_wrong_length(args, sample: Sample, sampling_params) -> Sample:
    sample = await generate(args, sample, sampling_params)
    sample.loss_mask = sample.loss_mask[:-1]
    return sample


def text_reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    """Differs between samples, and is a function of the text alone."""
    return float(len(sample.response) % 5)


def share_of_even_tokens(args: Any, sample: Sample, **kwargs: Any) -> float:
    """Dense and learnt in a few updates: the share of even token ids."""
    ids = sample.tokens[-sample.response_length :]
    return sum(1.0 for token in ids if token % 2 == 0) / max(1, len(ids))


async def judged_length(args: Any, sample: Sample, **kwargs: Any) -> float:
    """How long a judge's answer about the response is, in characters."""
    question = [{"role": "user", "content": f"What do you think of {sample.response!r}?"}]
    return float(1 + len(await GenRMClient().generate(question)))


def label_reward(args: Any, sample: Sample, **kwargs: Any) -> float:
    """Known as soon as the prompt is: a fifth of the sum that it asks for."""
    return float(sample.label) / 5
