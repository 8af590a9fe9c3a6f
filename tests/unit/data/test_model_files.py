# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import threading

import pytest

from relax.data import model_files
from relax.data.model_files import load_processor, load_tokenizer, tokenizer_lock
from relax.utils.errors import ConfigError
from tests.builders import tiny_omni_processor, tiny_tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    tiny_tokenizer().save_pretrained(root / "qwen-text")
    tiny_omni_processor().save_pretrained(root / "qwen-omni")
    (root / "weights-only").mkdir()
    return root


def test_saved_folders_give_the_same_ids_and_the_processor(folders):
    text = "<|im_start|>user\nWhat is 3 plus 4?"
    expected = tiny_tokenizer()(text)["input_ids"]
    for name in ("qwen-text", "qwen-omni"):
        assert load_tokenizer(folders / name)(text)["input_ids"] == expected
    assert type(load_processor(folders / "qwen-omni")).__name__ == "Qwen3OmniMoeProcessor"
    assert load_processor(folders / "qwen-text") is None


@pytest.mark.parametrize("load", [load_tokenizer, load_processor])
def test_a_folder_that_does_not_exist_names_flag_and_near_forms(folders, load):
    with pytest.raises(ConfigError, match=r"--ref-load .*qwen-txt' does not exist; near it are .*qwen-text"):
        load(folders / "qwen-txt", flag="--ref-load")


def test_a_folder_without_tokenizer_or_a_file_is_refused(folders):
    with pytest.raises(ConfigError, match="has no tokenizer"):
        load_tokenizer(folders / "weights-only")
    with pytest.raises(ConfigError, match="is a file, not a model folder"):
        load_tokenizer(folders / "qwen-text" / "tokenizer.json")


def test_a_broken_tokenizer_is_told(folders, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="its tokenizer cannot be loaded"):
        load_tokenizer(tmp_path)


def test_a_hub_name_that_cannot_be_reached_fails_at_once(folders, monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: refused
    monkeypatch.chdir(folders)
    with pytest.raises(ConfigError, match=r"Qwen/Qwen3-4B' is no local folder.*127.0.0.1:9 cannot be reached"):
        load_tokenizer("Qwen/Qwen3-4B")
    with pytest.raises(ConfigError, match="near it are qwen-text"):
        load_tokenizer("qwen-test")


def test_an_offline_run_does_not_ask_the_hub(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(model_files, "HUB_TIMEOUT_S", -1.0)  # any attempt to connect would raise ValueError
    with pytest.raises(ConfigError, match="is not in the Hugging Face cache"):
        load_tokenizer("some/model")


def test_A27_threads_share_a_tokenizer_under_its_lock():
    tokenizer = tiny_tokenizer()
    expected = {
        limit: tokenizer("1 2 3 4 5 6 7 8 9", truncation=True, max_length=limit)["input_ids"] for limit in (3, 5)
    }
    errors: list[BaseException] = []

    def work(limit: int) -> None:
        try:
            for _ in range(300):
                with tokenizer_lock(tokenizer):
                    ids = tokenizer("1 2 3 4 5 6 7 8 9", truncation=True, max_length=limit)["input_ids"]
                assert ids == expected[limit]
        except BaseException as error:  # handed to the test below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(limit,)) for limit in (3, 5) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert tokenizer_lock(tokenizer) is not tokenizer_lock(tiny_tokenizer())
