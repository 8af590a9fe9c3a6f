# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The loss of every policy-gradient algorithm as a backend sees it: columns in, additive terms out.

    total = sum_t weight_t * (w_t * policy_loss_t + kl_loss_coef * kl_t - entropy_coef * entropy_t)

`weight_t` is the column `loss_weight` of `reduce.step_reduction`; the backend divides by its divisor. `w_t` is the
importance weight (1 without TIS). `policy_loss_t` is the objective that the algorithm's spec names, or the function of
--custom-loss-function-path; the other formulas stand in `kl.py` and `importance.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from relax.algorithms import importance
from relax.algorithms.custom_loss import custom_objective
from relax.algorithms.diagnostics import gradient_terms, mismatch_values, policy_values
from relax.algorithms.kl import kl_per_token
from relax.algorithms.loss import Term, TokenBatch
from relax.algorithms.options import AlgorithmOptions, build_statistic
from relax.algorithms.policy_loss import PolicyLoss, PolicyTokens, safe_ratio
from relax.algorithms.reduce import masked
from relax.algorithms.statistic import old_column
from relax.utils.errors import InternalError
from relax.utils.imports import load_callable


class Tokens(NamedTuple):
    """The inputs of one micro-batch with masked tokens made harmless: log-probs 0, so every ratio there is 1."""

    keep_T: Tensor  # [T] bool, sampled and trained
    logp_T: Tensor  # with gradient
    engine_logp_T: Tensor
    old_logp_T: Tensor
    ref_logp_T: Tensor | None  # only with a KL in the loss or in the reward
    advantage_T: Tensor
    weight_T: Tensor
    policy_weight_T: Tensor  # of the policy loss; another one than `weight_T` with a reducer of the user's
    heard_T: Tensor  # [T] bool, kept and with a loss weight
    num_tokens: float  # kept tokens
    total_weight: float


class TokenTerm(NamedTuple):
    """A term before its sum."""

    value_T: Tensor  # [T], 0 where a token is not kept (or, in the objective, has no weight)
    count: float  # as in `Term`


class PolicyGradientLoss:
    """LossFunction of `--advantage-estimator`. Only `batch.log_probs` and `batch.entropy` carry a gradient."""

    def __init__(self, options: AlgorithmOptions) -> None:
        self.options = options
        self._statistic = build_statistic(options)
        self.columns = options.columns | ({self._statistic.column} if self._statistic else frozenset())
        own_loss = options.loss_type == "custom_loss"
        self._objective = None if own_loss else options.function(options.spec.policy)
        self._custom = custom_objective(options) if own_loss else None
        self._importance = _importance_function(options)
        entropy = options.entropy_coef != 0.0 or options.log_entropy
        self.needs = frozenset({"log_probs"} | ({"entropy"} if entropy else set()))
        objective = ["policy_loss"]
        if options.use_kl_loss:
            objective.append("kl_loss")
        if options.entropy_coef != 0.0:
            objective.append("entropy_loss")
        self.objective = tuple(objective)

    def __call__(self, batch: TokenBatch) -> dict[str, Term]:
        terms = {name: Term(term.value_T.sum(), term.count) for name, term in self.per_token(batch).items()}
        return terms | gradient_terms(terms, self.objective, batch)

    def per_token(self, batch: TokenBatch) -> dict[str, TokenTerm]:
        """The terms before their sum: what each token adds."""
        options, tokens = self.options, self._tokens(batch)
        masking: dict[str, TokenTerm] = {}
        if options.logprob_outlier_limit is not None:
            tokens, masking = self._without_outliers(tokens, batch, options.logprob_outlier_limit)
        policy, own = self._policy(tokens, batch)
        weighted_T, terms = self._corrected(policy.loss_T, tokens, batch)
        heard = tokens._replace(weight_T=tokens.policy_weight_T)
        log_ratio_T = (tokens.logp_T - tokens.old_logp_T).detach()
        terms |= {"policy_loss": _weighted(weighted_T, heard)} | masking | own
        terms |= _means(policy_values(policy, log_ratio_T, tokens.advantage_T), tokens)
        if tokens.ref_logp_T is not None:
            terms |= self._kl_terms(tokens, tokens.ref_logp_T)
        if "entropy" in self.needs:
            terms |= self._entropy_terms(batch, tokens)
        whole_T = torch.stack([terms[name].value_T.detach() for name in self.objective]).sum(0)
        return terms | {"loss": TokenTerm(whole_T, terms["policy_loss"].count)}

    def _policy(self, tokens: Tokens, batch: TokenBatch) -> tuple[PolicyLoss, dict[str, TokenTerm]]:
        """The objective of each token, and the metrics of a user's own."""
        if self._custom is not None:
            policy, values = self._custom(_harmless(batch, tokens), tokens.old_logp_T)
            return policy, _means({f"custom/{name}": value_T for name, value_T in values.items()}, tokens)
        assert self._objective is not None
        columns = {}
        if self._statistic is not None:
            name = self._statistic.column
            columns[name] = masked(self._column(batch, name), tokens.keep_T)
        given = PolicyTokens(
            logp_T=tokens.logp_T,
            old_logp_T=tokens.old_logp_T,
            advantage_T=tokens.advantage_T,
            keep_T=tokens.keep_T,
            sequence_T=batch.sequence,
            num_sequences=batch.num_sequences,
            columns=columns,
        )
        return self._objective(given, self.options), {}

    def _tokens(self, batch: TokenBatch) -> Tokens:
        options = self.options
        keep_T = batch.mask > 0
        zero = torch.zeros_like(batch.log_probs)
        clean = lambda column: torch.where(keep_T, column, zero)  # noqa: E731
        logp_T = clean(batch.log_probs)
        old = old_column(options)
        old_logp_T = logp_T.detach() if old is None else clean(self._column(batch, old))
        weight_T = clean(self._column(batch, "loss_weight"))
        has = self.columns
        return Tokens(
            keep_T=keep_T,
            logp_T=logp_T,
            engine_logp_T=clean(self._column(batch, "rollout_logprobs")),
            old_logp_T=old_logp_T,
            ref_logp_T=clean(self._column(batch, "ref_logprobs")) if "ref_logprobs" in has else None,
            advantage_T=clean(self._column(batch, "advantages")) if "advantages" in has else zero,
            weight_T=weight_T,
            policy_weight_T=clean(self._column(batch, "policy_weight")) if "policy_weight" in has else weight_T,
            heard_T=weight_T > 0,
            num_tokens=float(keep_T.sum()),
            total_weight=float(weight_T.sum()),
        )

    def _column(self, batch: TokenBatch, name: str) -> Tensor:
        """A column in the precision of the log-probs, never with a gradient."""
        if name not in batch.columns:
            raise InternalError(f"the loss needs column {name!r}; the micro-batch has {sorted(batch.columns)}")
        return batch.columns[name].detach().to(batch.log_probs.dtype)

    def _without_outliers(
        self, tokens: Tokens, batch: TokenBatch, limit: float
    ) -> tuple[Tokens, dict[str, TokenTerm]]:
        """Leave outlier sequences out of every term of the objective. They still count in its divisor, and in metrics.

        The trainer's log-probs are those before the rollout's first step where there are such, else the current ones.
        """
        trainer_logp_T = tokens.old_logp_T if self.options.old_log_probs == "old" else tokens.logp_T
        sequences = (tokens.keep_T, batch.sequence, batch.num_sequences)
        outlier_N = importance.outlier_sequences(trainer_logp_T, tokens.engine_logp_T, *sequences, limit=limit)
        length_N = importance.tokens_by_sequence(*sequences)
        share_T = (outlier_N / length_N.clamp(min=1)).to(tokens.logp_T.dtype)[batch.sequence]
        fraction = TokenTerm(masked(share_T, tokens.keep_T), float((length_N > 0).sum()))
        heard_T = tokens.heard_T & ~outlier_N[batch.sequence]
        kept = tokens._replace(
            heard_T=heard_T,
            weight_T=masked(tokens.weight_T, heard_T),
            policy_weight_T=masked(tokens.policy_weight_T, heard_T),
        )
        return kept, {"logprob_outlier_fraction": fraction}

    def _corrected(self, loss_T: Tensor, tokens: Tokens, batch: TokenBatch) -> tuple[Tensor, dict[str, TokenTerm]]:
        """The policy loss times the importance weights, and the metrics of the mismatch behind them."""
        options = self.options
        terms = _means(mismatch_values(tokens.logp_T, tokens.engine_logp_T), tokens)
        if self._importance is not None:
            weights = self._importance(
                tokens.old_logp_T, tokens.engine_logp_T, tokens.keep_T, low=options.tis_clip_low, high=options.tis_clip
            )
            terms["tis"] = _mean(weights.raw_T, tokens)
            terms["tis_abs"] = _mean((weights.raw_T - 1.0).abs(), tokens)
            terms["tis_clip_fraction"] = _mean(weights.clipped_T, tokens)
            if options.use_tis:
                loss_T = loss_T * weights.weight_T.detach()
        if options.use_opsm:
            open_T = importance.off_policy_sequence_mask(
                tokens.logp_T,
                tokens.old_logp_T,
                tokens.advantage_T,
                tokens.keep_T,
                batch.sequence,
                batch.num_sequences,
                delta=options.opsm_delta,
            )
            loss_T = loss_T * open_T
            terms["opsm_fraction"] = _mean(1.0 - open_T, tokens)
        return loss_T, terms

    def _kl_terms(self, tokens: Tokens, ref_logp_T: Tensor) -> dict[str, TokenTerm]:
        """The penalised KL of the objective, and the raw one for the log under its own name."""
        options = self.options
        if not options.use_kl_loss:  # it is in the reward
            kl_T = kl_per_token(tokens.logp_T, ref_logp_T, estimator=options.kl_loss_type)
            return {"kl_ref": _mean(kl_T, tokens)}
        ratio_T = safe_ratio(tokens.logp_T, tokens.old_logp_T)[0] if options.use_unbiased_kl else None
        kl_T = kl_per_token(tokens.logp_T, ref_logp_T, estimator=options.kl_loss_type, ratio_T=ratio_T)
        return {
            "kl_loss": _weighted(options.kl_loss_coef * kl_T, tokens),
            "kl_ref": _mean(kl_T, tokens),
        }

    def _entropy_terms(self, batch: TokenBatch, tokens: Tokens) -> dict[str, TokenTerm]:
        if batch.entropy is None:
            raise InternalError("the loss declares that it needs 'entropy', and the backend gave none")
        terms = {"entropy": _mean(batch.entropy, tokens)}
        if self.options.entropy_coef != 0.0:
            terms["entropy_loss"] = _weighted(-self.options.entropy_coef * batch.entropy, tokens)
        return terms


def _harmless(batch: TokenBatch, tokens: Tokens) -> TokenBatch:
    """What a user's function sees: 0 under the mask, in every column, and a gradient in log-probs and entropy only."""
    columns = {
        name: masked(column.detach().to(tokens.logp_T.dtype), tokens.keep_T) for name, column in batch.columns.items()
    }
    entropy_T = None if batch.entropy is None else masked(batch.entropy, tokens.keep_T)
    return replace(batch, log_probs=tokens.logp_T, entropy=entropy_T, columns=columns)


def _importance_function(options: AlgorithmOptions) -> Callable[..., importance.ImportanceWeights] | None:
    if options.custom_tis_function_path is not None:
        return load_callable(
            options.custom_tis_function_path,
            flag="--custom-tis-function-path",
            positional=("trainer_logp_T", "engine_logp_T", "mask_T"),
            keywords=("low", "high"),
        )
    return importance.MODES[options.tis_mode] if options.use_tis else None


def _weighted(value_T: Tensor, tokens: Tokens) -> TokenTerm:
    """A term of the objective: weighted, with the sum of weights as what it is a mean over."""
    return TokenTerm(masked(value_T * tokens.weight_T, tokens.heard_T), tokens.total_weight)


def _mean(value_T: Tensor, tokens: Tokens) -> TokenTerm:
    """A metric over the sampled and trained tokens, without gradient."""
    return TokenTerm(masked(value_T.detach().to(tokens.logp_T.dtype), tokens.keep_T), tokens.num_tokens)


def _means(values: Mapping[str, Tensor], tokens: Tokens) -> dict[str, TokenTerm]:
    return {name: _mean(value_T, tokens) for name, value_T in values.items()}
