# Copyright (c) 2026 Relax Authors. All Rights Reserved.
# ruff: noqa: RUF009 (`flag` makes a dataclass field)
"""Judge models: engines of this run that reward functions ask."""

from __future__ import annotations

from dataclasses import dataclass

from relax.config.flags import Section, above, at_least, flag
from relax.config.frozen import FrozenDict


@dataclass(frozen=True, kw_only=True)
class GenrmConfig(Section):
    """One judge by --genrm-model-path, or several by --genrm-instances."""

    genrm_model_path: str | None = flag(None, help="Hugging Face folder of the judge.")
    genrm_num_gpus: int | None = flag(
        None, help="Cards of all judge engines together.", check=at_least(1), shown="from --resource"
    )
    genrm_num_gpus_per_engine: int = flag(1, help="Cards of one judge engine.", check=at_least(1))
    genrm_engine_config: FrozenDict = flag(
        FrozenDict(), help="JSON: max_context_len, max_total_tokens, max_running_requests of the judge's engines."
    )
    genrm_sampling_config: FrozenDict = flag(
        FrozenDict(),
        help="JSON: temperature (0.1), top_p (1), top_k (-1), max_response_len (4096), chat_template_kwargs.",
    )
    genrm_instances: FrozenDict | None = flag(
        None,
        help="JSON {key: {model_path, num_gpus, num_gpus_per_engine, engine_config, sampling_config}} of several "
        "judges; a request names its key, __default__ is for those that name none.",
    )
    genrm_timeout_s: float = flag(60.0, help="Longest time for one answer of a judge's engine.", check=above(0))
    genrm_retry_attempts: int = flag(3, help="Tries of one request before it fails.", check=at_least(1))
    genrm_max_concurrency: int = flag(
        64, help="Requests in flight to one judge; others wait in its queue.", check=at_least(1)
    )
