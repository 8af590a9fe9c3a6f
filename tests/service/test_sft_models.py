# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Every task of supervised training as a whole run in one process: classes, preferences, adapters, MTP."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from examples.seq_cls_sft.tools import export_classifier
from tests.builders import build_tiny_model_folder, tiny_tokenizer, write_jsonl
from tests.service.training_run import Finished, checkpoint_weights, inline
from tests.unit.backends.fsdp.recurrent_models import recurrent_folder

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
SINGLE, MULTI = "single_label_classification", "multi_label_classification"
WORDS = ("plus", "digit", "shown")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model_folder(tmp_path_factory.mktemp("model"))


def flags(model: Path, data: Path, save: Path, **changed: object) -> list[str]:
    values: dict[str, object] = {
        "loss_type": "sft",
        "hf_checkpoint": model,
        "prompt_data": data,
        "global_batch_size": 4,
        "num_epoch": 2,
        "max_tokens_per_gpu": 96,
        "lr": 5e-3,
        "save": save,
        **changed,
    }
    words = ["--no-use-tensorboard", "--use-dynamic-batch-size"]
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        words += [] if value is None else [option] if value is True else [option, *map(str, _listed(value))]
    return words


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, tuple) else [value]


def texts(folder: Path, problem: str) -> Path:
    """Texts that name some of three words; the label says which (the first one, for a single label)."""
    generator, rows = np.random.default_rng(0), []
    for number in range(24):
        taken = [n for n in range(3) if generator.random() < 0.5] or [number % 3]
        taken = taken if problem == MULTI else taken[:1]
        text = " ".join(WORDS[n] for n in taken)
        messages = [{"role": "user", "content": f"What is {text}?"}]
        rows.append({"messages": messages, "label": taken if problem == MULTI else taken[0]})
    return write_jsonl(folder / f"{problem}.jsonl", rows)


def classified(model: Path, folder: Path, problem: str, **changed: object) -> Finished:
    columns = {"input_key": "messages", "label_key": "label", "task_type": "seq_cls", "num_labels": 3}
    data = texts(folder, problem)
    evaluated = {"eval_prompt_data": ("texts", data), "eval_interval": 6}
    run = flags(model, data, folder / "run", problem_type=problem, num_epoch=9, **columns, **evaluated, **changed)
    return inline(run).ok()


@pytest.mark.parametrize("lora", [{}, {"lora_rank": 8, "lora_alpha": 64, "lora_merge_mode": True}])
@pytest.mark.parametrize("problem", [SINGLE, MULTI])
def test_classes_are_learned_told_exported_and_read_by_transformers(model, tmp_path, problem, lora, capsys):
    done = classified(model, tmp_path, problem, **lora)
    names = ("loss", "accuracy")
    if problem == MULTI:
        names = ("loss", "micro_precision", "micro_recall", "micro_f1", "subset_accuracy")
    found = {name: done.metrics(f"eval/texts/{name}") for name in names}
    assert all(len(values) == 10 for values in found.values())
    assert found["loss"][-1] < 0.3 * found["loss"][0]
    assert all(values[-1] > 0.9 for name, values in found.items() if name != "loss")
    output = tmp_path / "export"
    words = ["--run-dir", str(done.folder), "--output-dir", str(output), "--label-names", *WORDS]
    assert export_classifier.main(words) == 0
    assert "3 classes" in capsys.readouterr().out
    own = transformers.AutoModelForSequenceClassification.from_pretrained(output, dtype=torch.float32)
    assert (own.config.problem_type, own.config.id2label[2]) == (problem, "shown")
    assert getattr(own.config, "classification_threshold", None) == (0.5 if problem == MULTI else None)
    rows = [json.loads(line) for line in texts(tmp_path, problem).read_text().splitlines()]
    right = 0
    for row in rows:
        ids = transformers.AutoTokenizer.from_pretrained(output).apply_chat_template(
            row["messages"], return_tensors="pt", return_dict=True
        )
        with torch.no_grad():
            logits = own(**ids).logits[0]
        taken = torch.nonzero(logits.sigmoid() >= 0.5)[:, 0].tolist() if problem == MULTI else int(logits.argmax())
        right += taken == row["label"]
    # the folder gives the very decisions of the run's last evaluation
    assert right / len(rows) == pytest.approx(found[names[-1]][-1])


def test_the_export_tool_says_what_is_wrong(model, tmp_path, capsys):
    done = classified(model, tmp_path, SINGLE)
    run, output = str(done.folder), str(tmp_path / "out")
    cases = (
        (["--run-dir", str(tmp_path), "--output-dir", output], "there is no config.json"),
        (
            ["--run-dir", run, "--output-dir", output, "--iteration", "7"],
            "--iteration 7: iter_0000007: it is not there",
        ),
        (["--run-dir", run, "--output-dir", run], "exists: name a new folder"),
        (["--run-dir", run, "--output-dir", output, "--label-names", "a"], "has 1 names for --num-labels 3"),
    )
    for words, text in cases:
        assert export_classifier.main(words) == 2
        assert text in capsys.readouterr().err


def pairs(folder: Path) -> Path:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"What is {a} plus {b}?"}],
            "chosen": [{"role": "assistant", "content": f"The answer is {a + b}."}],
            "rejected": [{"role": "assistant", "content": f"Which digit is {a}?"}],
        }
        for a in range(4)
        for b in range(4)
    ]
    return write_jsonl(folder / "pairs.jsonl", rows)


@pytest.mark.parametrize("more", [{}, {"dpo_reference_free": True}, {"lora_rank": 4, "lora_merge_mode": True}])
def test_dpo_learns_to_prefer_and_starts_at_its_reference(model, tmp_path, more):
    run = flags(model, pairs(tmp_path), tmp_path / "run", loss_type="dpo", input_key="prompt", lr=2e-3, **more)
    done = inline(run).ok()
    losses, accuracy = done.metrics("train/dpo/loss"), done.metrics("train/dpo/strict_accuracy")
    assert len(losses) == 8
    assert losses[-1] < losses[0] and accuracy[-1] == 1.0
    if not more.get("dpo_reference_free"):
        assert losses[0] == pytest.approx(np.log(2), rel=1e-9)
        assert (done.metrics("train/dpo/reward_margin")[0], done.metrics("train/dpo/tie_rate")[0]) == (0.0, 1.0)


def test_a_dpo_run_that_goes_on_compares_with_the_same_reference(model, tmp_path):
    data = pairs(tmp_path)
    shared = {"loss_type": "dpo", "input_key": "prompt", "lr": 2e-3, "save_interval": 4}
    whole = inline(flags(model, data, tmp_path / "whole", **shared)).ok()
    inline(flags(model, data, tmp_path / "half", **shared, num_rollout=4)).ok()
    again = inline(flags(model, data, tmp_path / "half", **shared, load=tmp_path / "half")).ok()
    assert again.metrics("train/dpo/loss") == whole.metrics("train/dpo/loss")
    first, second = (checkpoint_weights(done.folder / "iter_0000007/model") for done in (whole, again))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_reward_model_ranks_and_exports(model, tmp_path):
    from relax.core.export import export_checkpoint

    run = flags(
        model,
        pairs(tmp_path),
        tmp_path / "run",
        loss_type="reward_model",
        input_key="prompt",
        eval_size=4,
        eval_interval=4,
    )
    done = inline(run).ok()
    assert done.metrics("train/reward_model/strict_accuracy")[-1] == 1.0
    assert done.metrics("eval/eval/reward_model_strict_accuracy")[-1] == 1.0
    interval = [done.metrics(f"eval/eval/reward_model_tie_aware_accuracy_{end}")[-1] for end in ("low", "high")]
    assert interval == [1.0, 1.0]  # all four pairs are ranked right, in every resample too
    export_checkpoint(done.folder, tmp_path / "export")
    own = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "export", dtype=torch.float32)
    tokenizer = tiny_tokenizer()
    scores = []
    for answer in ("The answer is 5.", "Which digit is 2?"):
        messages = [{"role": "user", "content": "What is 2 plus 3?"}, {"role": "assistant", "content": answer}]
        ids = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            scores.append(float(own(**ids).logits[0, 0]))
    assert scores[0] > scores[1]


@pytest.mark.parametrize("only", [False, True])
def test_a_tiny_qwen3_5_learns_with_its_mtp_layer_or_that_layer_alone(tmp_path, only):
    folder = recurrent_folder(tmp_path / "model", "Qwen3_5ForConditionalGeneration")
    rows = [{"problem": f"What is {a} plus 1?", "answer": f"The answer is {a + 1}."} for a in range(12)]
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    mtp = {"enable_mtp_training": True, "mtp_num_layers": 1, **({"mtp_only_training": True} if only else {})}
    columns = {"input_key": "problem", "label_key": "answer"}
    done = inline(flags(folder, data, tmp_path / "run", **columns, **mtp, num_epoch=3)).ok()
    nll, loss = done.metrics("train/mtp_nll"), done.metrics("train/sft_loss")
    assert len(nll) == 9 and nll[-1] < nll[0]
    assert (loss[-1] < 0.9 * loss[0]) is not only
    assert "mtp.fc.weight" in json.loads((done.folder / "iter_0000008/model/relax.json").read_text())["shapes"]
