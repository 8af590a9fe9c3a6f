# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The losses beside TRL's, on the same tensors: value and derivative by every log-prob, float64.

Runs in an environment that has TRL: without one, the command makes it in `.bench/trl-losses` (TRL without its
dependencies, on top of this interpreter's packages) and starts itself there. TRL's own `GRPOTrainer._compute_loss` is
called on padded tensors, with the log-probs given instead of computed. Where a definition differs, the table says so
and shows what follows when the difference is taken away.

python -m benchmarks.trl_losses [--seeds 5]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / ".bench" / "trl-losses"
TRL = "trl==1.16.0"
OTHERS = ("datasets", "dill", "multiprocess", "xxhash", "pandas", "python-dateutil", "pytz", "tzdata", "six")
PAD = 3.0  # what stands in TRL's padding; nothing of it may matter


def trl_interpreter() -> Path:
    """The Python of an environment with TRL, made once."""
    python = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / ".installed").exists():
        print(f"installing {TRL} into {ENVIRONMENT.relative_to(ROOT)} (once)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        here = sysconfig.get_paths()["purelib"]
        site = next((ENVIRONMENT / "lib").glob("python*/site-packages"))
        (site / "beneath.pth").write_text(f"{here}\n")
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-qq", "--no-deps"]
        subprocess.run([*pip, TRL, *OTHERS], check=True)
        (ENVIRONMENT / ".installed").touch()
    return python


@dataclass(frozen=True)
class Pair:
    """One formula in both: our options, TRL's arguments."""

    ours: dict[str, Any]
    theirs: dict[str, Any]
    note: str = ""  # how the definitions differ
    equal: bool = True  # whether the numbers must agree all the same
    trl_old: str | None = "rollout_logprobs"  # None: the current ones


PAIRS: dict[str, Pair] = {
    "grpo": Pair({}, {"loss_type": "grpo"}),
    "grpo, true on-policy": Pair({"old_log_probs": "current"}, {"loss_type": "grpo"}, trl_old=None),
    "dapo": Pair({"eps_clip_high": 0.28, "loss_reduction": "token_mean"}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    "bnpo is the token mean": Pair({"loss_reduction": "token_mean"}, {"loss_type": "bnpo"}),
    "dr_grpo": Pair({"advantage_estimator": "dr_grpo"}, {"loss_type": "dr_grpo"}),
    "gspo": Pair(
        {"advantage_estimator": "gspo", "eps_clip": 0.05, "eps_clip_high": 0.08},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 0.05, "epsilon_high": 0.08},
    ),
    "sapo": Pair(
        {"advantage_estimator": "sapo", "sapo_tau_pos": 1.0, "sapo_tau_neg": 1.05},
        {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05},
    ),
    "cispo, positive advantages": Pair(
        {"advantage_estimator": "cispo", "eps_clip_high": 0.3, "loss_reduction": "token_mean"},
        {"loss_type": "cispo", "epsilon_high": 1.3, "positive": True},
        note="TRL's epsilon_high is the bound itself, ours is added to 1",
    ),
    "cispo": Pair(
        {"advantage_estimator": "cispo", "eps_clip_high": 0.3, "loss_reduction": "token_mean"},
        {"loss_type": "cispo", "epsilon_high": 1.3},
        note="where A < 0 TRL bounds the ratio from above, we from below by 1 - eps",
        equal=False,
    ),
    "cispo, A < 0 bounded as TRL does": Pair(
        {
            "advantage_estimator": "cispo",
            "eps_clip": 0.999999,
            "eps_clip_high": 0.3,
            "eps_clip_c": 1.3,
            "loss_reduction": "token_mean",
        },
        {"loss_type": "cispo", "epsilon_high": 1.3},
        note="--eps-clip-c 1.3 and no lower bound: the difference is gone",
    ),
    "two-sided clip": Pair(
        {"eps_clip_c": 1.3},
        {"loss_type": "grpo", "delta": 1.3},
        note="TRL's delta bounds every ratio, our dual clip those of A < 0; A > 0 is held at 1 + eps before",
    ),
    "k3 KL": Pair(
        {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "k3"}, {"loss_type": "grpo", "beta": 0.1}
    ),
    "k3 KL, unbiased": Pair(
        {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "k3", "use_unbiased_kl": True},
        {"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": True},
    ),
    "opsm": Pair(
        {"use_opsm": True, "opsm_delta": 0.05},
        {"loss_type": "grpo", "off_policy_mask_threshold": 0.05},
    ),
    "tis": Pair(
        {"old_log_probs": "old", "use_tis": True, "tis_clip": 1.2},
        {"loss_type": "grpo", "tis": 1.2},
        note="TRL computes the weight beforehand: the same clamp(exp(old - engine), max=cap)",
        trl_old="old_logprobs",
    ),
    "entropy bonus, token mean": Pair(
        {"entropy_coef": 0.1, "loss_reduction": "token_mean"},
        {"loss_type": "bnpo", "entropy_coef": 0.1},
        note="TRL's bonus is always a mean over tokens, ours follows --loss-reduction",
    ),
}


@dataclass
class _Fake:
    """What `_compute_loss` reads of a trainer, and nothing else."""

    logp: Any
    entropy: Any
    settings: dict[str, Any]
    _metrics: dict[str, Any] = field(default_factory=dict)

    def trainer(self, cls: type) -> Any:
        from collections import defaultdict

        given = self.settings
        trainer = object.__new__(cls)
        identity = SimpleNamespace(
            gather=lambda tensor: tensor,
            reduce=lambda tensor, reduction="sum": tensor,
            num_processes=1,
            sync_gradients=True,
            gather_for_metrics=lambda tensor: tensor,
        )
        values = {
            "_get_per_token_logps_and_entropies": lambda *args, **kwargs: (self.logp, self.entropy, None),
            "aux_loss_enabled": False,
            "top_entropy_quantile": 1.0,
            "off_policy_mask_threshold": given.get("off_policy_mask_threshold"),
            "importance_sampling_level": given.get("importance_sampling_level", "token"),
            "beta": given.get("beta", 0.0),
            "loss_type": given["loss_type"],
            "epsilon_low": given.get("epsilon_low", 0.2),
            "epsilon_high": given.get("epsilon_high", 0.2),
            "use_vllm": "tis" in given,
            "vllm_importance_sampling_correction": "tis" in given,
            "current_gradient_accumulation_steps": 1,
            "max_completion_length": 9,
            "_entropy_bonus_enabled": "entropy_coef" in given,
            "use_adaptive_entropy": False,
            "entropy_coef": given.get("entropy_coef", 0.0),
            "accelerator": identity,
            "model": SimpleNamespace(training=True),
            "_metrics": {"train": defaultdict(list)},
            "args": SimpleNamespace(
                delta=given.get("delta"),
                use_bias_correction_kl=given.get("use_bias_correction_kl", False),
                sapo_temperature_pos=given.get("sapo_temperature_pos", 1.0),
                sapo_temperature_neg=given.get("sapo_temperature_neg", 1.05),
                steps_per_generation=1,
            ),
        }
        for name, value in values.items():
            object.__setattr__(trainer, name, value)
        return trainer


def compared(pair: Pair, seed: int, trainer: type) -> tuple[float, float]:
    """(difference of the losses, largest difference of a derivative) on the responses of one made-up step."""
    import numpy as np
    import torch

    from benchmarks.papers.responses import example_step
    from relax.algorithms.options import AlgorithmOptions
    from tests.unit.algorithms.theta import prepared, run_step

    torch.set_default_dtype(torch.float64)  # `torch.where` of two floats in TRL's SAPO follows it
    options = AlgorithmOptions(**{"rollout_max_response_len": 9, **pair.ours})
    # TRL counts every response of the batch, so those that do not train are left out beforehand
    step = [r for place, r in enumerate(example_step(seed)) if place not in (3, 5, 6)]
    if pair.theirs.get("positive"):
        step = [r for r, own in zip(step, prepared(step, options)[0], strict=True) if own["advantages"][0] > 0]
    columns = prepared(step, options)
    if pair.theirs.get("positive"):  # alone in their groups they would have no advantage
        for place, own in enumerate(columns[0]):
            own["advantages"] = np.full(len(own["advantages"]), 0.5 + place)
    ours = run_step(step, options, [range(len(step))], columns=columns)
    longest = max(len(r.mask) for r in step)

    def padded(rows: list[Any]) -> Any:
        full = [np.concatenate([row, np.full(longest - len(row), PAD)]) for row in rows]
        return torch.as_tensor(np.stack(full))

    mask = torch.as_tensor(np.stack([np.pad(r.mask, (0, longest - len(r.mask))) for r in step])).double()
    logp = padded([r.logp for r in step]).requires_grad_()
    entropy = padded([r.entropy for r in step]).requires_grad_()
    inputs = {
        "prompt_ids": torch.zeros(len(step), 1).long(),
        "prompt_mask": torch.ones(len(step), 1).long(),
        "completion_ids": torch.zeros(len(step), longest).long(),
        "completion_mask": mask,
        "advantages": torch.tensor([float(own["advantages"][0]) for own in columns[0]]),
        "ref_per_token_logps": padded([r.ref_logprobs for r in step]),
        "num_items_in_batch": mask.sum(),
    }
    if pair.trl_old is not None:
        inputs["old_per_token_logps"] = padded([getattr(r, pair.trl_old) for r in step])
    if "tis" in pair.theirs:
        engine = padded([r.rollout_logprobs for r in step])
        inputs["importance_sampling_ratio"] = (
            (inputs["old_per_token_logps"] - engine).exp().clamp(max=pair.theirs["tis"])
        )
    theirs = trainer._compute_loss(_Fake(logp, entropy, pair.theirs).trainer(trainer), None, inputs)
    theirs.backward()
    worst = 0.0
    for place, response in enumerate(step):
        row = logp.grad[place, : len(response.mask)].numpy()
        worst = max(worst, float(np.abs(row - ours.by_logp[place]).max()))
        if entropy.grad is not None:
            row = entropy.grad[place, : len(response.mask)].numpy()
            worst = max(worst, float(np.abs(row - ours.by_entropy[place]).max()))
    return abs(float(theirs.detach()) - ours.loss), worst


def inside(seeds: int) -> None:
    """In the environment with TRL."""
    import relax.utils.torchvision_shim as shim

    shim.install_hook()
    from trl import GRPOTrainer

    lines, wrong = [], []
    print(f"{'formula':<36}{'loss':>12}{'derivatives':>14}  note")
    for name, pair in PAIRS.items():
        found = [compared(pair, seed, GRPOTrainer) for seed in range(seeds)]
        loss, slope = (max(values) for values in zip(*found, strict=True))
        agrees = loss < 1e-12 and slope < 1e-12
        wrong += [name] * (agrees != pair.equal)
        lines.append(agrees)
        print(f"{name:<36}{loss:>12.1e}{slope:>14.1e}  {pair.note}")
    print("RESULT", json.dumps({"formulas": len(lines), "equal": sum(lines), "not_as_explained": wrong}))
    sys.exit(bool(wrong))


def main() -> None:
    parser = argparse.ArgumentParser(prog="trl_losses", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    if importlib.util.find_spec("trl") is not None:
        inside(options.seeds)
        return
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [str(trl_interpreter()), "-m", "benchmarks.trl_losses", "--seeds", str(options.seeds)]
    sys.exit(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
