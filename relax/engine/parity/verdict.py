# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""What a diagnosis finds: the cause, the evidence, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

# {cause: what to do}
ADVICE: dict[str, str] = {
    "temperature": "sample with --rollout-temperature: a generate function passes its sampling_params on as they are",
    "log_prob_kind": "let the engine report log-probs of what it samples from (after temperature), not of raw logits",
    "truncation": "sample with top_p 1 and top_k -1; look for defaults in the model's generation_config.json and for "
    "sampling_params that a generate function changes",
    "suppressed_ids": "engine and trainer must leave out the same ids: start the engine with --suppressed-ids auto "
    "and with the media processor of --hf-checkpoint",
    "precision": "set --rollout-dtype to what the engines compute in, or correct for it by --use-tis",
    "version": "the engine did not take the last weights: look for failed installs, and for a cache that was not "
    "flushed, in its log",
    "alignment": "entry i of rollout_log_probs belongs to response token i: copy meta_info.output_token_logprobs "
    "without shifting it",
    "tokenization": "keep the ids that the engine sampled (output_ids); never tokenize the response text again",
    "prompt": "send the engine the prompt ids that are trained on (sample.tokens): no second BOS, no other chat "
    "template, no truncation in between",
    "media": "send the row's media in the order of their placeholders, and let both sides read them with the same "
    "processor files and limits",
    "weights": "compare the engine's checksums (POST /weights_checker) with the version's manifest; where they are "
    "equal it is the engine's forward, its kernels or its prefix cache",
}
CAUSES = tuple(ADVICE)


@dataclass(frozen=True)
class Trial:
    """One thing that was switched, and the mean difference of the suspects with it, in nats."""

    cause: str
    what: str
    after: float


@dataclass(frozen=True)
class Verdict:
    cause: str  # one of CAUSES
    finding: str  # what the engine does otherwise, as a clause
    before: float  # mean |engine - trainer| of the suspects, nats
    after: float  # the same with the one thing switched
    trials: tuple[Trial, ...] = ()

    @property
    def advice(self) -> str:
        return ADVICE[self.cause]

    def __str__(self) -> str:
        tried = ", ".join(f"{t.what} {t.after:.2g}" for t in self.trials)
        return (
            f"cause: {self.cause}: {self.finding} ({self.before:.3g} nats before, {self.after:.3g} after the switch). "
            f"What to do: {self.advice}." + (f" Tried: {tried}" if tried else "")
        )
