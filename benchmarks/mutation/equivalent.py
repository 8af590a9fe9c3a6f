# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Mutants that compute the same numbers, each with the reason. `tests/unit/algorithms/test_mutants.py` finds
stale lines."""

from __future__ import annotations

from benchmarks.mutation.operators import Mutant

# file -> {line of the source, stripped: {before -> after: why no number changes}}
EQUIVALENT: dict[str, dict[str, dict[str, str]]] = {
    "relax/algorithms/importance.py": {
        "gap_N = mean_by_sequence((old_logp_T - logp_T).detach(), keep_T, sequence_T, num_sequences)": {
            "(old_logp_T - logp_T).detach() -> old_logp_T - logp_T": "it is only compared: no gradient",
        },
    },
    "relax/algorithms/policy_gradient.py": {
        "log_ratio_T = (tokens.logp_T - tokens.old_logp_T).detach()": {
            "(tokens.logp_T - tokens.old_logp_T).detach() -> tokens.logp_T - tokens.old_logp_T": "it is only logged",
        },
    },
    "relax/algorithms/policy_loss.py": {
        "dual_clipped_T = (advantage_T < 0) & (loss_T > ceiling_T)": {
            "advantage_T < 0 -> advantage_T <= 0": "at advantage 0 the loss and its ceiling are 0",
        },
    },
    "relax/algorithms/reduce.py": {
        '"token_sum_norm": 1.0 / (max_response_len or 1),': {
            "1 -> 2": "only the other modes, which do not read it, have no length",
        },
    },
    "relax/algorithms/returns.py": {
        "if gamma == 1.0:": {"1.0 -> 2.0": "the loop below adds the same numbers in the same order"},
    },
    "relax/algorithms/sapo.py": {
        "return PolicyLoss(-4.0 / tau_T * gate_T * advantage_T, ratio_T.detach(), "
        "kept_T < OPEN_GATE, never_T, overflow_T)": {
            "kept_T < OPEN_GATE -> kept_T <= OPEN_GATE": "a gate of exactly 0.9 is a rounding of the border",
        },
    },
    "relax/algorithms/m2po.py": {
        "fits = np.flatnonzero(level <= ordered)": {
            "level <= ordered -> level < ordered": "where they are equal the next place has the same level",
        },
    },
}


def why_equivalent(mutant: Mutant, source: str) -> str | None:
    """The reason, None for a mutant that must be killed."""
    line = source.splitlines()[mutant.line - 1].strip()
    return EQUIVALENT.get(mutant.path, {}).get(line, {}).get(f"{mutant.before} -> {mutant.after}")
