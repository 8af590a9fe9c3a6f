# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Every training feature on a tiny model with the product's own roles, loop, engine and backend, in one process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from relax.utils.errors import Stuck
from tests.builders import build_tiny_model_folder, write_jsonl
from tests.service.training_run import ASYNC, HOOKS, Finished, Inputs, checkpoint_weights, inline

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture
def run(inputs: Inputs, tmp_path: Path):
    """run("--colocate", num_rollout=3) -> the finished run, which must have succeeded."""

    def go(*words: object, name: str = "run", **changed: object) -> Finished:
        return inline([*inputs.flags(tmp_path / name, **changed), *words]).ok()

    return go


def same_weights(first: Path, second: Path) -> bool:
    import torch

    a, b = checkpoint_weights(first), checkpoint_weights(second)
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)


# ------------------------------------------------------------------ modes


def test_colocate_takes_turns_and_trains_what_the_current_weights_sampled(run):
    done = run("--colocate", num_rollout=3)
    assert done.reason == "finished"
    assert done.ages() == [0] * 6
    # the trainer's forward gives the very log-probs that the engine sampled with
    assert done.metrics("train/log_prob_difference_abs") == [0.0] * 3
    assert [e["version"] for e in done.events("installed")] == [1, 2, 3]
    for rollout_id in range(3):
        assert {s["first_version"] for s in done.samples(rollout_id)} == {rollout_id}


def test_a_run_says_whether_it_is_exact_in_its_manifest_and_once_on_the_console(run):
    done = run("--colocate", num_rollout=1)
    manifest = json.loads((done.folder / "manifest.json").read_text())
    assert manifest["exact"] is True
    assert done.out.count(f"exact: true ({manifest['exact_reason']})") == done.out.count("exact: ") == 1
    assert "exactness exact=True" in done.log()


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_async_ages_never_pass_the_limit(run, staleness):
    """A8."""
    done = run(*ASYNC, staleness, num_rollout=4)
    assert len(done.ages()) == 8
    assert max(done.ages()) <= staleness
    admitted = {e["group"] for e in done.events("admitted")}
    trained = [g for e in done.events("bound") for g in e["groups"]]
    assert len(trained) == len(set(trained)) == 8
    assert set(trained) <= admitted


def test_async_without_staleness_gives_the_weights_of_colocate(run):
    first = run("--colocate", name="colocate", num_rollout=2)
    second = run("--fully-async", "--max-staleness", "0", name="async", num_rollout=2)
    assert same_weights(first.folder / "iter_0000001/model", second.folder / "iter_0000001/model")


def test_U2_two_runs_with_one_seed_give_the_same_bits_and_another_seed_does_not(run):
    same = [run("--colocate", name=name, num_rollout=2, rollout_seed=5) for name in ("first", "second")]
    other = run("--colocate", name="other", num_rollout=2, rollout_seed=6)
    weights = [done.folder / "iter_0000001/model" for done in (*same, other)]
    assert same_weights(weights[0], weights[1])
    assert not same_weights(weights[0], weights[2])


def test_the_kl_to_the_kept_reference_starts_at_zero_and_grows(run):
    done = run("--colocate", "--use-kl-loss", num_rollout=3, kl_loss_coef=0.1, kl_loss_type="k3")
    kl = done.metrics("train/kl_loss")
    assert kl[0] == pytest.approx(0.0, abs=1e-9)  # the policy is its own reference
    assert all(value > 1e-9 for value in kl[1:])


def test_a_refreshed_reference_is_the_policy_of_the_last_rollout(run):
    done = run(
        "--colocate", "--use-kl-loss", num_rollout=3, kl_loss_coef=0.1, kl_loss_type="k3", ref_update_interval=1
    )
    assert done.metrics("train/kl_loss") == pytest.approx([0.0] * 3, abs=1e-9)


def test_one_process_hosts_reference_and_actor_fwd_too(run):
    roles = '{"actor":[1,1],"rollout":[1,1],"reference":[1,1],"actor_fwd":[1,1]}'
    done = run(
        "--fully-async", "--use-kl-loss", "--max-staleness", 1, "--use-tis",
        resource=roles, num_rollout=3, kl_loss_coef=0.1, n_samples_per_prompt=4,
    )  # fmt: skip
    assert done.metrics("train/ratio") == pytest.approx([1.0] * 3)  # actor_fwd holds the weights of the trainer
    assert done.metrics("train/kl_loss")[0] == pytest.approx(0.0, abs=1e-9)
    assert done.metrics("train/kl_loss")[2] != 0.0


def test_P11_outliers_train_nothing_and_stay_in_trace_and_results(run):
    """A bf16 engine is never within 1e-9 nats of an fp32 trainer, so every response is an outlier."""
    words = ("--colocate", "--rollout-dtype", "bf16", "--parity-policy", "warn", "--logprob-outlier-limit", "1e-9")
    done = run(*words, num_rollout=1)
    assert done.metrics("train/logprob_outlier_fraction") == [1.0]
    assert done.metrics("train/grad_norm") == [0.0]
    assert done.metrics("train/advantage_abs")[0] > 0  # there was something to learn
    assert len(done.samples(0)) == 4
    kept = (done.folder / "trace" / "0.jsonl").read_text().splitlines()
    assert sum(len(json.loads(line)["rows"]) for line in kept) == 4


# ------------------------------------------------------------------ stacks


def test_U11_a_run_in_one_process_tells_what_it_is_doing(run):
    done = run("--colocate", num_rollout=1, custom_rm_path=HOOKS + "reward_asking_for_stacks")
    told = (done.folder / "asked.txt").read_text()
    first, second, *_ = told.splitlines()
    assert (first.split()[0], first.split()[-1], second) == ("controller", "answered", "")
    assert "task controller.collect" in told
    assert "task rollout.collect" in told
    assert "in reward_asking_for_stacks" in told  # the thread that asks


# ------------------------------------------------------------------ rollout


def test_filtered_groups_are_replaced_and_counted(run):
    done = run(
        *ASYNC,
        1,
        over_sampling_batch_size=4,
        dynamic_sampling_filter_path=HOOKS + "keep_even_groups",
        num_rollout=2,
    )
    trained = [g for e in done.events("bound") for g in e["groups"]]
    assert len(trained) == 4
    assert all(g % 2 == 0 for g in trained)
    dropped = [e for e in done.events("dropped") if e["group"] % 2]
    assert dropped
    assert {g for g in (e["group"] for e in dropped)}.isdisjoint(trained)


def test_the_documented_multi_turn_function_trains_on_sampled_tokens_only(run, tmp_path):
    config = tmp_path / "custom.yaml"
    config.write_text("dice_turns: 2\n")
    done = run(
        "--colocate",
        custom_generate_function_path=HOOKS + "generate",
        custom_config_path=config,
        max_turns=3,
        num_rollout=2,
        rollout_max_response_len=8,
    )
    for sample in done.samples(1):
        assert "observed 1" in sample["response"]
        assert 0 < sample["sampled_tokens"] < sample["response_tokens"]
    assert done.metrics("train/log_prob_difference_abs") == [0.0, 0.0]


def test_a_dict_reward_scores_by_its_key(run):
    done = run("--colocate", custom_rm_path=HOOKS + "dict_reward", reward_key="half", num_rollout=1)
    for sample in done.samples(0):
        assert sample["reward"]["half"] == sample["reward"]["score"] / 2
    halves = [sample["reward"]["half"] for sample in done.samples(0)]
    assert done.metrics("rollout/reward/mean") == pytest.approx([sum(halves) / 4])


def test_a_sample_without_a_reward_trains_nothing_and_a_rollout_without_any_ends_the_run(run, inputs, tmp_path):
    done = run("--colocate", custom_rm_path=HOOKS + "reward_raising_once", num_rollout=1)
    removed = [(s["group"], s["index"]) for s in done.samples(0) if s["removed"]]
    assert removed == [(1, 1)]
    everything = inline([*inputs.flags(tmp_path / "all", custom_rm_path=HOOKS + "raising_reward"), "--colocate"])
    assert everything.code == 3
    assert "no sample of rollout 0 has a reward" in everything.err
    assert everything.reason == "failed"


def test_a_reward_that_must_not_fail_ends_the_run_with_its_own_error(inputs, tmp_path):
    flags = inputs.flags(tmp_path / "run", custom_rm_path=HOOKS + "reward_raising_once", reward_failure_policy="fail")
    done = inline([*flags, "--colocate"])
    assert done.code == 3
    assert "the judge dislikes sample 1.1" in done.err
    assert "reward_raising_once" in done.log()
    assert "ExceptionGroup" not in done.err + done.log()
    assert str(done.folder / "logs/controller-0.log") in done.err


@pytest.mark.parametrize(
    ("flag", "function", "told"),
    [
        ("custom_generate_function_path", "generate_raising", "(user_error 16)"),  # 8 rollouts of 2 prompts
        ("dynamic_sampling_filter_path", "turn_all_down", "24 groups in a row"),  # twice the 12 rows
    ],
)
def test_a_run_that_would_drop_every_group_for_ever_ends_and_says_why(inputs, tmp_path, flag, function, told):
    done = inline([*inputs.flags(tmp_path / "run", **{flag: HOOKS + function}), "--colocate"])
    assert done.code == Stuck.exit_code
    assert "were dropped and none was accepted" in done.err
    assert told in done.err, done.err


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("generate_raising", "the tool server is down"),
        ("generate_hanging", "did not return within 0.3 s"),
        ("generate_wrong_length", "loss_mask has"),
    ],
)
def test_a_generate_function_that_misbehaves_is_named_with_its_sample(inputs, tmp_path, function, said):
    config = tmp_path / "custom.yaml"
    config.write_text("dice_turns: 1\n")
    flags = inputs.flags(
        tmp_path / "run",
        custom_generate_function_path=HOOKS + function,
        custom_config_path=config,
        rollout_failure_policy="fail",
        generate_timeout_s=0.3 if function == "generate_hanging" else 60,
    )
    done = inline([*flags, "--colocate"])
    assert done.code == 3
    assert said in done.err
    assert HOOKS + function in done.err
    assert "sample 0.0" in done.err or "sample 0.1" in done.err or "sample 1." in done.err


def test_a_loss_that_is_not_a_number_ends_the_run_and_the_old_checkpoint_stays(run, inputs, tmp_path):
    good = run("--colocate", num_rollout=1)
    weights = good.folder / "iter_0000000/model"
    before = {path.name: path.read_bytes() for path in weights.iterdir()}
    flags = inputs.flags(good.folder, num_rollout=3, load=good.folder, custom_rm_path=HOOKS + "nan_reward")
    done = inline([*flags, "--colocate", "--disable-rewards-normalization"])
    assert done.code == 4, done.err + done.log()
    assert done.reason == "failed"
    assert (good.folder / "latest_checkpointed_iteration.txt").read_text() == "0"
    assert {path.name: path.read_bytes() for path in weights.iterdir()} == before
    assert not list(good.folder.glob("*.partial"))


# ------------------------------------------------------------------ evaluation, checkpoints


def test_U10_evaluation_sees_the_version_that_it_reports_on_the_axis_of_training(run, inputs):
    done = run("--colocate", "--eval-prompt-data", "sums", inputs.prompts, eval_interval=2, num_rollout=3)
    # before training, after rollout 1 (interval 2) and after the last one
    assert done.metrics("eval/weight_version") == [0.0, 2.0, 3.0]
    assert len(done.metrics("eval/sums/reward/mean")) == 3
    assert {s["first_version"] for s in done.samples(2, "eval")} == {2}
    # U10: one axis. A row of version v is at step v when it evaluates v, and at v when v sampled what it trained on.
    rows = [json.loads(line) for line in (done.folder / "metrics/metrics.jsonl").read_text().splitlines()]
    assert all(("eval/weight_version" in row) != ("train/weight_version" in row) for row in rows)
    for row in rows:
        assert row.get("eval/weight_version", row.get("train/weight_version", 0.0) - 1) == row["step"]
        assert row.get("rollout/staleness_steps/max", 0.0) == 0.0


@pytest.mark.parametrize(
    "mode",
    [
        ("--colocate",),
        ("--fully-async", "--max-staleness", "0", "--global-batch-size", "2", "--micro-batch-size", "1"),
    ],
    ids=["colocate", "async-two-steps-of-two-micro-batches"],
)
def test_two_rollouts_and_a_resume_of_two_give_the_weights_of_four(run, mode):
    """R3, R4."""
    whole = run(*mode, name="whole", num_rollout=4)
    run(*mode, name="half", num_rollout=2)
    half = whole.folder.parent / "half"
    resumed = run(*mode, name="half", num_rollout=4, load=half)
    assert "resumed from" in resumed.out
    assert [e["rollout_id"] for e in resumed.events("stepped")] == [0, 1, 2, 3]
    assert resumed.metrics("rollout/reward/mean") == whole.metrics("rollout/reward/mean")
    assert same_weights(whole.folder / "iter_0000003/model", half / "iter_0000003/model")


def test_a_resume_under_staleness_trains_every_admitted_group_once(run):
    run(*ASYNC, 2, name="half", num_rollout=4, save_interval=1)
    folder = run(*ASYNC, 2, name="other", num_rollout=4, save_interval=1).folder
    (folder / "latest_checkpointed_iteration.txt").write_text("1")
    resumed = run(*ASYNC, 2, name="other", num_rollout=4, load=folder)
    events = resumed.events()
    cut = max(i for i, e in enumerate(events) if e["kind"] == "resumed")
    first = [g for e in events[:cut] if e["kind"] == "bound" and e["rollout_id"] < 2 for g in e["groups"]]
    second = [g for e in events[cut:] if e["kind"] == "bound" for g in e["groups"]]
    assert len(first + second) == len(set(first + second)) == 8


def test_the_exported_model_loads_in_transformers_with_the_trained_weights(run, tmp_path):
    import torch
    import transformers

    done = run("--colocate", save_hf=tmp_path / "hf-{rollout_id}", num_rollout=2)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf-1", dtype="float32")
    trained = checkpoint_weights(done.folder / "iter_0000001/model")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, trained[f"model.{name}"]), name
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "hf-1").eos_token == "<|im_end|>"


# ------------------------------------------------------------------ training


def test_two_optimizer_steps_share_one_rollout(run):
    done = run("--colocate", global_batch_size=2, num_rollout=2)
    assert done.metrics("train/optimizer_steps") == [2.0, 4.0]
    # the second step's policy has left the one that sampled: its ratios are not one
    assert done.metrics("train/approx_kl")[0] != 0.0
    assert [e["version"] for e in done.events("published")] == [0, 1, 2]


def test_batches_and_checkpointing_change_memory_but_not_the_result(run):
    import torch

    plain = run("--colocate", name="plain", num_rollout=2)
    variants = {
        "static": ["--no-use-dynamic-batch-size", "--micro-batch-size", 1],
        "dynamic": ["--use-dynamic-batch-size", "--max-tokens-per-gpu", 20],
        "recompute": [
            "--recompute-granularity",
            "full",
            "--recompute-method",
            "uniform",
            "--recompute-num-layers",
            "1",
        ],
    }
    expected = checkpoint_weights(plain.folder / "iter_0000001/model")
    for name, words in variants.items():
        done = run("--colocate", *words, name=name, num_rollout=2)
        found = checkpoint_weights(done.folder / "iter_0000001/model")
        assert done.metrics("rollout/reward/mean") == plain.metrics("rollout/reward/mean")
        for key, tensor in expected.items():
            # Adam's first steps are +-lr a weight, so a gradient near zero may turn its sign: two steps of 1e-3
            torch.testing.assert_close(found[key], tensor, atol=4.1e-3, rtol=0)
            assert (found[key] - tensor).abs().mean() < 1e-5, (name, key)


def test_bf16_on_both_sides_stays_on_policy(run):
    done = run("--colocate", "--train-dtype", "bf16", "--rollout-dtype", "bf16", num_rollout=2)
    assert done.metrics("train/log_prob_difference_abs")[0] < 0.02
    assert done.metrics("train/grad_norm")[0] > 0


# ------------------------------------------------------------------ media


def test_limits_of_images_reach_engine_and_trainer_alike(tmp_path):
    """The saved processor would give 36 tokens; both sides see 4, so log-probs are equal to the bit."""
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    rows = [{"input": f"<image> Which digit is {i}?", "label": str(i), "images": ["noise.png"]} for i in range(4)]
    model = build_tiny_model_folder(tmp_path / "model", "qwen3_omni")
    inputs = Inputs(model, write_jsonl(tmp_path / "prompts.jsonl", rows))
    media = ["--apply-chat-template", "--multimodal-keys", '{"image": "images"}', "--image-max-tokens", 4]
    done = inline([*inputs.flags(tmp_path / "run", num_rollout=1), "--colocate", *media]).ok()
    assert done.metrics("train/log_prob_difference_abs") == [0.0]
    text = inline([*inputs.flags(tmp_path / "usual", num_rollout=1), "--colocate", *media[:-2]]).ok()
    assert text.samples(0)[0]["prompt_tokens"] - done.samples(0)[0]["prompt_tokens"] == 36 - 4
