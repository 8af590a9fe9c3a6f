# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The command line of SGLang: what it always has, what it has on a CPU only, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relax.backends.base import EngineConfig
from relax.backends.sglang.spec import SglangEngine
from relax.data.media.processing import MediaOptions
from relax.utils.errors import ConfigError


def command(config: EngineConfig, gpus=(), port=30000, python="py"):
    return SglangEngine(python).command(config, host="h", port=port, gpus=gpus, node_rank=0)


def test_the_command_always_has_the_two_flags_whose_lack_is_silent(tmp_path):
    """An idle scheduler spins on a core without the first; without the second a request's own seed is ignored."""
    for gpus in ((), (0,)):
        assert command(EngineConfig(tmp_path), gpus).env["SGLANG_VLM_CACHE_SIZE_MB"] == "0"
        assert {"--sleep-on-idle", "--enable-deterministic-inference"} <= set(
            command(EngineConfig(tmp_path), gpus).argv
        )


def test_with_gpus_sglang_is_started_as_it_is_published(tmp_path):
    config = EngineConfig(
        tmp_path, dtype="bf16", tensor_parallel=2, extra_args=("--sglang-mem-fraction-static", "0.7")
    )
    argv = list(command(config, gpus=(2, 3)).argv)
    assert argv[:3] == ["py", "-m", "sglang.launch_server"]
    assert argv[argv.index("--tp-size") + 1] == "2" and argv[argv.index("--dtype") + 1] == "bfloat16"
    assert argv[argv.index("--mem-fraction-static") + 1] == "0.7"
    assert "cpu" not in argv


def test_without_gpus_the_launcher_and_the_flags_of_a_cpu_are_used(tmp_path):
    started = command(EngineConfig(tmp_path, tensor_parallel=2))
    python, launcher, *argv = started.argv
    assert python == "py" and Path(launcher).is_file()
    assert argv[argv.index("--attention-backend") + 1] == "torch_native"
    assert argv[argv.index("--sampling-backend") + 1] == "pytorch"
    assert started.env["OMP_NUM_THREADS"] == "1"
    assert started.env["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1"


def test_the_interpreter_is_the_given_one_then_the_environments(tmp_path, monkeypatch):
    monkeypatch.setenv("RELAX_SGLANG_PYTHON", "/env/python")
    assert command(EngineConfig(tmp_path), python=None).argv[0] == "/env/python"
    assert command(EngineConfig(tmp_path), python="/given/python").argv[0] == "/given/python"


def test_films_are_read_as_the_trainer_reads_them_unless_the_user_says_how(tmp_path):
    """By itself SGLang enlarges small frames twice."""
    size = {"shortest_edge": 1024, "longest_edge": 16384}
    (tmp_path / "processor_config.json").write_text(json.dumps({"video_processor": {"size": size}}))
    config = EngineConfig(tmp_path, media_options=MediaOptions(video_fps=1.5, video_min_frames=6))
    argv = list(command(config).argv)
    film = json.loads(argv[argv.index("--mm-process-config") + 1])["video"]
    assert (film["fps"], film["min_frames"], film["size"]) == (1.5, 6, size)
    assert film["min_pixels"] == 28 * 28
    own = EngineConfig(tmp_path, extra_args=("--sglang-mm-process-config", "{}"))
    assert list(command(own).argv).count("--mm-process-config") == 1


def test_a_port_that_sglang_would_have_to_report_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--port"):
        command(EngineConfig(tmp_path), port=0)


def test_ids_that_are_never_sampled_are_told_to_the_server_itself(tmp_path):
    """In requests the router would drop them."""
    argv = list(command(EngineConfig(tmp_path, suppressed_ids=(5, 6))).argv)
    told = json.loads(argv[argv.index("--preferred-sampling-params") + 1])
    assert told == {"logit_bias": {"5": -1e9, "6": -1e9}}
    assert "--preferred-sampling-params" not in command(EngineConfig(tmp_path)).argv


@pytest.mark.parametrize(
    "flag", ["--sglang-preferred-sampling-params", "--sglang-model-path", "--port", "--sglang-tp-size=4"]
)
def test_flags_that_relax_sets_itself_are_refused(tmp_path, flag):
    with pytest.raises(ConfigError, match="remove it"):
        command(EngineConfig(tmp_path, extra_args=(flag,)))


def test_a_thinker_alone_is_refused_with_what_to_give_instead(tmp_path):
    names = ["Qwen3OmniMoeThinkerForConditionalGeneration"]
    (tmp_path / "config.json").write_text(json.dumps({"architectures": names}))
    with pytest.raises(ConfigError, match=r"--hf-checkpoint .* thinker_config"):
        command(EngineConfig(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3OmniMoeForConditionalGeneration"]}))
    assert command(EngineConfig(tmp_path)).argv


@pytest.mark.parametrize("dense", [{"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}])
def test_dense_layers_among_experts_are_refused(tmp_path, dense):
    """SGLang answers with random experts in their place; an all-dense or all-sparse model passes."""
    config = tmp_path / "config.json"
    for name in ("Qwen3MoeForCausalLM", "Qwen3OmniMoeForConditionalGeneration"):
        for text, wrong in ((dense, True), ({"mlp_only_layers": [], "decoder_sparse_step": 1}, False)):
            whole = {"thinker_config": {"text_config": text}} if "Omni" in name else text
            config.write_text(json.dumps({"architectures": [name], **whole}))
            if wrong:
                with pytest.raises(ConfigError, match="dense layers"):
                    command(EngineConfig(tmp_path))
            else:
                assert command(EngineConfig(tmp_path)).argv
    config.write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], **dense}))
    assert command(EngineConfig(tmp_path)).argv


def test_adapters_are_multiplied_by_torch_where_there_is_no_gpu(tmp_path):
    config = EngineConfig(tmp_path, extra_args=("--enable-lora", "--max-lora-rank", "8"))
    argv = command(config).argv
    assert argv[argv.index("--lora-backend") + 1] == "torch_native"
    assert argv[-3:] == ("--enable-lora", "--max-lora-rank", "8")
    assert "--lora-backend" not in command(EngineConfig(tmp_path)).argv
