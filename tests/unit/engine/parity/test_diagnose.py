# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Causes named on a table of logits, where each fault can be planted in the numbers themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relax.backends.base import ModelSpec, Part
from relax.backends.tiny.policy import draw, log_prob_table
from relax.backends.tiny.train import TinyTrain
from relax.data.columns import TrainSequence
from relax.engine.parity.diagnose import Facts, diagnose
from relax.engine.parity.difference import Compared, compare
from relax.engine.parity.gate import ParityGate, ParitySettings
from relax.engine.parity.suspects import Suspects
from relax.engine.parity.variants import Vocabulary, beginnings, prompt_variants
from relax.engine.parity.verdict import Verdict
from relax.utils.errors import ConfigError
from relax.utils.types import MediaFeatures

SIZE = 12
TABLE = 1.5 * np.random.default_rng(3).normal(size=(SIZE, SIZE))
OTHER = 1.5 * np.random.default_rng(4).normal(size=(SIZE, SIZE))


def rows(sampled: np.ndarray, reported: np.ndarray, *, number: int = 40, length: int = 30) -> list[TrainSequence]:
    """Responses drawn from the table of log-probs `sampled`, with the log-probs of `reported`."""
    generator, out = np.random.default_rng(0), []
    for group in range(number):
        tokens = [0, 1]
        for _ in range(length):
            tokens.append(draw(sampled[tokens[-1]], generator.random()))
        out.append(row_of(tokens, reported[tokens[1:-1], tokens[2:]], group))
    return out


def row_of(tokens: list[int], log_probs: np.ndarray, group: int = 0) -> TrainSequence:
    count = len(tokens) - 2
    columns = {"rollout_logprobs": np.asarray(log_probs, np.float32), "weight_version": np.zeros(count, np.float32)}
    return TrainSequence(group, 0, np.asarray(tokens, np.int32), 2, np.ones(count, np.uint8), columns)


def trainer(temperature: float = 1.0, suppressed: tuple[int, ...] = ()) -> TinyTrain:
    backend = TinyTrain(TABLE)
    backend.open(ModelSpec(Path("unused"), temperature=temperature, suppressed_ids=suppressed), None)
    return backend


def found(sequences: list[TrainSequence], backend: TinyTrain, facts: Facts) -> Verdict:
    compared = compare(backend, Part(tuple((s,) for s in sequences)), {0: "actor"})
    return diagnose(backend, compared, {0: "actor"}, facts, tolerance=1e-3)


def test_P1_another_temperature_is_named_with_its_value():
    hot = log_prob_table(TABLE, temperature=0.7)
    verdict = found(rows(hot, hot), trainer(), Facts())
    assert verdict.cause == "temperature"
    assert "temperature 0.7, the trainer's of 1" in verdict.finding
    assert verdict.after < 1e-5 < 0.1 < verdict.before


def test_P2_raw_log_probs_of_tokens_drawn_at_the_right_temperature_are_of_another_kind():
    hot, raw = log_prob_table(TABLE, temperature=0.5), log_prob_table(TABLE)
    verdict = found(rows(hot, raw), trainer(0.5), Facts(temperature=0.5))
    assert verdict.cause == "log_prob_kind"
    assert verdict.after < 1e-5


def test_weights_of_another_kind_are_named_as_the_version_that_they_are():
    old = log_prob_table(OTHER)
    backend = trainer()
    backend.table = OTHER.copy()
    backend.keep("initial")
    backend.table = TABLE.copy()
    verdict = found(rows(old, old), backend, Facts(other_tags={"the weights of the model's folder": "initial"}))
    assert (verdict.cause, verdict.after) == ("version", pytest.approx(0.0, abs=1e-5))


def test_ids_that_one_side_alone_suppresses_are_named():
    own, free = log_prob_table(TABLE, suppressed=(5, 6)), log_prob_table(TABLE)
    verdict = found(rows(own, free), trainer(suppressed=(5, 6)), Facts(suppressed_ids=(5, 6)))
    assert verdict.cause == "suppressed_ids"


def test_T_log_probs_that_stand_one_place_off_are_named():
    right = log_prob_table(TABLE)
    sequences = rows(right, right, number=8)
    late = [
        replace(s, columns={**s.columns, "rollout_logprobs": np.roll(s.columns["rollout_logprobs"], 1)})
        for s in sequences
    ]
    verdict = found(late, trainer(), Facts())
    assert verdict.cause == "alignment"
    assert "one place earlier" in verdict.finding


def test_what_nothing_explains_is_left_to_weights_and_forward():
    other = log_prob_table(OTHER)
    verdict = found(rows(other, other), trainer(), Facts())
    assert verdict.cause == "weights"
    assert "/weights_checker" in verdict.advice


def test_sampled_ids_that_the_trainer_suppresses_are_named_before_anything_is_scored():
    free = log_prob_table(TABLE)
    sequences = rows(free, free)
    number = sum(int(np.isin(s.tokens[2:], [5]).sum()) for s in sequences)
    backend = trainer(suppressed=(5,))
    gate = ParityGate(ParitySettings(), lambda: Facts(suppressed_ids=(5,)))
    with pytest.raises(ConfigError, match=rf"suppressed_ids: {number} of 1200 sampled tokens"):
        gate.check(backend, Part(tuple((s,) for s in sequences)), 0)


def test_exact_engines_are_suspected_long_before_the_limit():
    own, warm = log_prob_table(TABLE), log_prob_table(TABLE, temperature=1.01)
    part = Part(tuple((s,) for s in rows(own, warm)))
    gate = ParityGate(ParitySettings(same_forward=True))
    assert gate.examine(trainer(), part, 0).verdict is None  # 0.01 nats: rounding, for all that is known
    verdict = gate.examine(trainer(), part, 0, exact=True).verdict
    assert verdict is not None
    assert verdict.cause == "log_prob_kind"  # drawn at 1, reported at 1.01
    assert ParityGate(ParitySettings(same_forward=True)).check(trainer(), part, 0, exact=True).mean < 0.1  # a warning


# --------------------------------------------------------------------------- variants


def test_prompt_variants_cut_both_ends_and_add_a_bos():
    sequence = row_of([7, 8, 9], np.zeros(1))  # prompt 7 8
    found = {name: prompt.tolist() for name, prompt in prompt_variants(sequence, Vocabulary({}, bos_id=3))}
    assert found == {
        "prompt without its first 1": [8],
        "prompt without its last 1": [7],
        "prompt behind a BOS": [3, 7, 8],
    }


def test_beginnings_spell_the_text_from_its_start():
    vocabulary = Vocabulary({"a": 0, "ab": 1, "b": 2, "abc": 3, "bc": 4})
    assert beginnings("abcd", vocabulary) == [0, 1, 3]


def test_media_of_other_prompts_are_tried_in_the_places_that_fit():
    from relax.engine.parity.variants import _with_other_media

    def item(name: str, tokens: int) -> MediaFeatures:
        return MediaFeatures("image", name, {"pixel_values": np.zeros((tokens, 2), np.float32)}, tokens)

    media = [(item("a", 4),), (item("b", 4),), (item("c", 6),)]
    log_p = log_prob_table(TABLE)
    sequences = [replace(s, media=m) for s, m in zip(rows(log_p, log_p - 1, number=3), media, strict=True)]
    backend = trainer()
    compared = [Compared(s, np.zeros(s.response_len), np.zeros(s.response_len)) for s in sequences]
    found = _with_other_media(Suspects(backend, compared, {0: "actor"}))
    assert {uid: [s.media[0].sha256 for s in found[uid]] for uid in sorted(found)} == {
        (0, 0): ["b"],
        (1, 0): ["a"],
        (2, 0): [],  # six tokens stand where four do not
    }
