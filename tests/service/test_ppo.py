# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""PPO with its critic on the tiny model, by the product's own roles, in one process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from relax.entrypoints.replay import main as replay
from relax.entrypoints.why import main as why
from tests.service.training_run import HOOKS, Finished, Inputs, checkpoint_weights, inline

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
ROLES = '{"actor":[1,1],"critic":[1,1],"rollout":[1,1]}'
ASYNC = ("--fully-async", "--use-rollout-logprobs", "--max-staleness", "1")


@pytest.fixture
def run(inputs: Inputs, tmp_path: Path):
    def go(*words: object, name: str = "run", ok: bool = True, **changed: object) -> Finished:
        own: dict[str, object] = {"advantage_estimator": "ppo", "resource": ROLES, "critic_lr": 3e-3, **changed}
        done = inline([*inputs.flags(tmp_path / name, **own), *words])
        return done.ok() if ok else done

    return go


def same(first: Path, second: Path) -> bool:
    import torch

    a, b = checkpoint_weights(first), checkpoint_weights(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def colocated(inputs: Inputs, tmp_path_factory) -> Finished:
    """Four rollouts of two optimizer steps each, with every table dumped and a checkpoint after each."""
    folder = tmp_path_factory.mktemp("ppo")
    flags = inputs.flags(
        folder / "run", advantage_estimator="ppo", resource=ROLES, num_rollout=4, global_batch_size=2,
        critic_lr=3e-3, gamma=0.9, lambd=0.8, dump_details=folder / "details", save_interval=1,
        custom_rm_path=HOOKS + "text_reward",
    )  # fmt: skip
    return inline([*flags, "--colocate"]).ok()


def groups_of(done: Finished, rollout_id: int) -> dict[str, dict[str, np.ndarray]]:
    """{group: columns of all tables}"""
    found: dict[str, dict[str, np.ndarray]] = {}
    file = done.folder.parent / "details" / "train_data" / f"{rollout_id}.safetensors"
    for name, values in load_file(file).items():
        group, _, column = name.split("/")
        found.setdefault(group, {})[column] = values
    return found


def test_advantages_and_returns_are_the_discounted_sums_of_the_critics_errors(colocated):
    for rollout_id in range(4):
        for columns in groups_of(colocated, rollout_id).values():
            end = 0
            for place, length in enumerate(columns["response_len"].tolist()):
                start, end = end, end + length
                values = columns["values"][start:end].astype(float)
                rewards = np.zeros(length)
                rewards[-1] = columns["reward"][place]
                errors = rewards + 0.9 * np.append(values[1:], 0.0) - values
                right = [sum((0.9 * 0.8) ** (j - k) * errors[j] for j in range(k, length)) for k in range(length)]
                assert columns["advantages"][start:end] == pytest.approx(right, abs=1e-5)
                assert columns["returns"][start:end] == pytest.approx(np.asarray(right) + values, abs=1e-5)


def test_the_first_values_are_zero_and_later_ones_have_learnt(colocated):
    assert all((columns["values"] == 0).all() for columns in groups_of(colocated, 0).values())
    assert all((columns["values"] != 0).any() for columns in groups_of(colocated, 1).values())
    assert len(colocated.metrics("train/value_loss")) == 4
    assert colocated.metrics("train/explained_variance")[0] == pytest.approx(0.0, abs=1e-6)  # one number explains none
    assert len(colocated.metrics("train/critic_grad_norm")) == len(colocated.metrics("train/grad_norm")) == 4
    assert colocated.metrics("train/critic_lr") == [3e-3] * 4


def test_replay_computes_values_returns_and_both_updates_again(colocated, capsys):
    assert replay(["--run", str(colocated.folder), "--step", "2-3"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out.splitlines()[-1].removeprefix("RESULT "))["identical"] is True
    assert "critic values" in out
    assert "critic gradient" in out


def test_why_explains_the_actor_and_refuses_the_critics_numbers_by_name(colocated, capsys):
    arguments = ["--run", str(colocated.folder), "--step", "1", "--metric"]
    assert why([*arguments, "train/policy_loss"]) == 0
    assert why([*arguments, "train/value_loss"]) == 2
    assert "comes from the critic's values" in capsys.readouterr().err


def test_the_critic_learns_the_return_and_the_actor_the_task(run):
    done = run(
        "--colocate", num_rollout=30, rollout_batch_size=8, n_samples_per_prompt=4, lr=2e-3, critic_lr=1e-2,
        custom_rm_path=HOOKS + "share_of_even_tokens", rollout_max_response_len=8, save_interval=None,
        lambd=0.95, num_critic_only_steps=3,
    )  # fmt: skip
    rewards, losses = done.metrics("rollout/reward/mean"), done.metrics("train/value_loss")
    assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.25, rewards
    assert np.mean(losses[-5:]) < 0.5 * losses[0], losses


def test_a_critic_learns_to_tell_a_reward_that_the_prompt_decides(run):
    done = run(
        "--colocate", "--critic-train-only", num_rollout=24, rollout_batch_size=12, n_samples_per_prompt=1,
        critic_lr=1e-2, custom_rm_path=HOOKS + "label_reward", rollout_max_response_len=4, save_interval=None,
    )  # fmt: skip
    explained = done.metrics("train/explained_variance")
    assert explained[0] == pytest.approx(0.0, abs=1e-6)
    assert np.mean(explained[-4:]) > 0.5, explained
    assert np.mean(done.metrics("train/value_loss")[-4:]) < 0.3 * done.metrics("train/value_loss")[0]


def test_the_actor_stays_as_it_is_while_the_critic_warms_up(run, inputs):
    done = run("--colocate", num_rollout=3, num_critic_only_steps=2, save_interval=1)
    assert same(done.folder / "iter_0000000/model", done.folder / "iter_0000001/model")
    assert not same(done.folder / "iter_0000001/model", done.folder / "iter_0000002/model")
    assert not same(done.folder / "iter_0000000/critic", done.folder / "iter_0000001/critic")
    assert len(done.metrics("train/value_loss")) == 3
    assert len(done.metrics("train/policy_loss")) == 1
    assert done.metrics("train/optimizer_steps") == [0.0, 0.0, 1.0]
    only = run("--colocate", "--critic-train-only", name="only", num_rollout=2, save_interval=1)
    assert same(only.folder / "iter_0000001/model", done.folder / "iter_0000000/model")
    assert only.metrics("train/policy_loss") == []


def test_async_without_staleness_gives_the_weights_of_colocate(run):
    first = run("--colocate", name="colocate", num_rollout=3)
    second = run("--fully-async", "--max-staleness", "0", name="async", num_rollout=3)
    for role in ("model", "critic"):
        assert same(first.folder / "iter_0000002" / role, second.folder / "iter_0000002" / role)


def test_async_with_staleness_and_parts_values_a_rollout_under_one_version(run):
    """In parts of one group: later parts are valued by the weights before the rollout's first update."""
    done = run(*ASYNC, "--num-iters-per-train-update", "2", num_rollout=4)
    whole = run(*ASYNC, "--deterministic", name="whole", num_rollout=2, rollout_seed=9)
    parts = run(
        *ASYNC, "--deterministic", "--num-iters-per-train-update", "2", name="parts", num_rollout=2, rollout_seed=9
    )
    assert len(done.metrics("train/value_loss")) == 4
    assert max(done.ages()) <= 1
    for role in ("model", "critic"):
        assert same(whole.folder / "iter_0000001" / role, parts.folder / "iter_0000001" / role)


@pytest.mark.parametrize(
    "mode", [("--colocate",), ("--fully-async", "--max-staleness", "0")], ids=["colocate", "async"]
)
def test_two_rollouts_and_a_resume_of_two_give_both_models_of_four(run, mode):
    whole = run(*mode, name="whole", num_rollout=4)
    half = run(*mode, name="half", num_rollout=2).folder
    run(*mode, name="half", num_rollout=4, load=half)
    for role in ("model", "critic"):
        assert same(whole.folder / "iter_0000003" / role, half / "iter_0000003" / role)


def test_a_critic_saved_apart_is_found_by_its_iteration_or_the_run_is_refused(run, tmp_path):
    whole = run("--colocate", name="whole", num_rollout=3)
    apart = tmp_path / "critics"
    half = run("--colocate", name="half", num_rollout=2, critic_save=apart).folder
    assert not (half / "iter_0000001/critic").exists()
    run("--colocate", name="half", num_rollout=3, load=half, critic_save=apart, critic_load=apart)
    assert same(whole.folder / "iter_0000002/critic", apart / "iter_0000002/critic")
    lost = run("--colocate", name="half", ok=False, num_rollout=4, load=half)
    assert lost.code == 2
    assert "which holds no critic" in lost.err
    (apart / "iter_0000002").rename(apart / "iter_0000009")
    other = run("--colocate", name="half", ok=False, num_rollout=4, load=half, critic_load=apart)
    assert other.code == 2
    assert "holds iter_0000001, iter_0000009: actor and critic must be of the same iteration" in other.err
    cold = run("--colocate", name="cold", ok=False, num_rollout=1, critic_load=apart)
    assert cold.code == 2
    assert "the actor starts anew" in cold.err
    # its weights alone are named by the folder of one checkpoint
    start = apart / "iter_0000001/critic"
    warm = run("--colocate", name="warm", num_rollout=1, critic_load=start, critic_lr=0)
    assert same(warm.folder / "iter_0000000/critic", start)


def test_the_kl_to_a_reference_is_taken_off_the_reward_of_each_token(run, tmp_path, capsys):
    roles = '{"actor":[1,1],"critic":[1,1],"rollout":[1,1],"reference":[1,1]}'
    words, settings = ("--fully-async", "--max-staleness", "0"), {"num_rollout": 3, "kl_coef": 0.5, "lr": 1e-2}
    apart = run(*words, name="apart", resource=roles, **settings)
    done = run("--colocate", save_interval=1, dump_details=tmp_path / "details", **settings)
    for role in ("model", "critic"):  # the actor as its own reference, in turns with the critic, makes no difference
        assert same(apart.folder / "iter_0000002" / role, done.folder / "iter_0000002" / role)
    assert replay(["--run", str(done.folder), "--step", "1-2"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1].removeprefix("RESULT "))["identical"] is True
    for columns in groups_of(done, 2).values():
        gap = columns["rollout_logprobs"].astype(float) - columns["ref_logprobs"]
        assert np.abs(gap).max() > 1e-3
        end = 0
        for place, length in enumerate(columns["response_len"].tolist()):
            start, end = end, end + length
            to_go = np.cumsum((-0.5 * gap[start:end])[::-1])[::-1] + columns["reward"][place]  # gamma = lambda = 1
            assert columns["returns"][start:end] == pytest.approx(to_go, abs=1e-4)


def test_observations_are_no_step_of_the_chain(run, tmp_path):
    config = tmp_path / "custom.yaml"
    config.write_text("dice_turns: 2\n")
    done = run(
        "--colocate", custom_generate_function_path=HOOKS + "generate", custom_config_path=config, max_turns=3,
        num_rollout=2, rollout_max_response_len=8, lambd=0.5, dump_details=tmp_path / "details",
    )  # fmt: skip
    for columns in groups_of(done, 1).values():
        observed = columns["weight_version"] < 0
        assert observed.any()
        assert (columns["advantages"][observed] == 0).all()
        assert (columns["returns"][observed] == 0).all()
        assert (columns["returns"][~observed] != 0).any()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--resource", '{"actor":[1,1],"rollout":[1,1]}'], "needs 'critic' in --resource, which has actor, rollout"),
        (["--critic-train-only", "--num-critic-only-steps", "2"], "keep one"),
        (["--advantage-estimator", "grpo"], 'has no critic, so the cards of "critic" in --resource would stand idle'),
        (
            ["--advantage-estimator", "grpo", "--resource", '{"actor":[1,1],"rollout":[1,1]}', "--value-clip", "0.5"],
            "--value-clip and --critic-lr have no effect",
        ),
        (["--critic-load", "nowhere"], "--critic-load nowhere is not a folder"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_anything_starts(run, words, said):
    done = run("--colocate", *words, ok=False)
    assert done.code == 2
    assert said in done.err
    assert not (done.folder / "journal").exists()
