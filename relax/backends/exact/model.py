# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""An HF causal language model (text or omni) behind the exact forward that engine and trainer share."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from relax.backends.additions import ClassHead
from relax.backends.exact import attention, experts, heads, media, recurrent, windows
from relax.backends.exact.logprobs import distribution, head_logits, token_log_probs
from relax.backends.exact.media import EncodedItem, PlacedItem
from relax.backends.exact.segments import AttentionPlan, query_multiple
from relax.utils.errors import ConfigError, DataError, InternalError
from relax.utils.types import MediaFeatures

T = TypeVar("T")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
AttentionName = Literal["exact", "sdpa"]
KNOWN_LAYOUTS = 2048  # prompts whose rotary positions and placeholder rows are kept
_ATTENTION = {"exact": attention.EXACT, "sdpa": attention.SDPA}
# Configs that hold a thinker beside other models; the thinker is what is trained and served.
_THINKERS = {
    "Qwen3OmniMoeForConditionalGeneration": "Qwen3OmniMoeThinkerForConditionalGeneration",
    "Qwen2_5OmniForConditionalGeneration": "Qwen2_5OmniThinkerForConditionalGeneration",
}


def model_class_name(path: Path) -> str:
    """The transformers class that `load_model` builds for the folder."""
    config_path = Path(path) / "config.json"
    if not config_path.is_file():
        raise ConfigError(f"--hf-checkpoint {path}: no config.json there; give a folder in Hugging Face form")
    names = json.loads(config_path.read_text()).get("architectures") or []
    if not names:
        raise ConfigError(f'--hf-checkpoint {path}: config.json names no architecture; add "architectures"')
    return _THINKERS.get(names[0], names[0])


def load_hf(path: Path, dtype: str = "fp32", head: ClassHead | None = None) -> nn.Module:
    """The HF model of the folder, in `dtype`, with every weight present. `head` takes the vocabulary head's place."""
    import transformers

    from relax.utils.torchvision_shim import ensure_torchvision

    ensure_torchvision()
    name = model_class_name(path)
    if head is None:
        heads.refuse_class_model(name, path)
    else:
        name = heads.class_model_name(name, path)
    model_class = heads.class_model(name, path) if head else getattr(transformers, name, None)
    if model_class is None or not hasattr(model_class, "from_pretrained"):
        raise ConfigError(f"--hf-checkpoint {path}: transformers {transformers.__version__} has no class {name}")
    with _no_progress_bar():
        model, info = model_class.from_pretrained(
            path,
            dtype=DTYPES[dtype],
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below, in one error with what is missing
            **(heads.head_arguments(head) if head else {}),
        )
    missing = sorted(info["missing_keys"])
    if head is not None:
        missing = heads.finish_head(model, head, missing, path)
    missing += [str(m) for m in info.get("mismatched_keys", ())]
    if missing:
        raise ConfigError(f"--hf-checkpoint {path}: weights miss {len(missing)} tensors of {name}: {missing[:5]}")
    for parameter in model.parameters():
        # Tensors mapped from a file lie at any address, and the bits of a matrix product follow the alignment.
        parameter.data = parameter.data.clone()
    return model


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Loading bars of many workers would drown the log."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def load_model(path: Path, dtype: str = "fp32", attn: AttentionName = "exact", device: str = "cpu") -> ExactModel:
    """Load an HF folder for computing with the shared forward."""
    return ExactModel(load_hf(path, dtype), attn=attn).to(device)


class ExactModel(nn.Module):
    """The shared forward over packed token rows. Parameters are those of `hf`; nothing is copied."""

    trains = False  # a subclass that only trains also takes layers that no engine of ours computes
    has_recurrent = False

    def __init__(self, hf: nn.Module, *, attn: AttentionName = "exact", value_head: bool = False) -> None:
        super().__init__()
        attention.register_attention()
        experts.register_experts()
        self.hf = hf
        self.config = hf.config
        self.text_config = hf.config.get_text_config()
        self.attn = attn
        self._check()
        self._install(self.text_model)
        self.has_recurrent = bool(recurrent.recurrent_layers(self.text_model))
        self.value_head = nn.Linear(self.text_config.hidden_size, 1, bias=False) if value_head else None
        if self.value_head is not None:
            nn.init.zeros_(self.value_head.weight)
        self.placeholder_ids = media.placeholder_ids(self.config) if self.towers else {}
        self._marks = media.MediaMarks(self.config, self.text_config.vocab_size) if self.towers else None
        self.encode_together = True  # False: one encoder call an item, where the probe finds that company matters
        self._positions: dict[Hashable, np.ndarray] = {}
        self._rows: dict[Hashable, list[np.ndarray]] = {}

    # ------------------------------------------------------------------ structure

    @property
    def text_model(self) -> nn.Module:
        """The stack of decoder layers with its embedding and final norm."""
        return getattr(self.hf.model, "language_model", self.hf.model)

    @property
    def head(self) -> nn.Module:
        """Of the vocabulary, or of classes."""
        return self.hf.lm_head if hasattr(self.hf, "lm_head") else self.hf.score

    @property
    def has_vocabulary(self) -> bool:
        return hasattr(self.hf, "lm_head")

    @property
    def towers(self) -> dict[str, nn.Module]:
        """Encoders by name: `visual` (images and videos), `audio_tower`."""
        return {n: getattr(self.hf.model, n) for n in ("visual", "audio_tower") if hasattr(self.hf.model, n)}

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    @property
    def num_layers(self) -> int:
        return self.text_config.num_hidden_layers

    @property
    def num_kv_heads(self) -> int:
        return getattr(self.text_config, "num_key_value_heads", None) or self.text_config.num_attention_heads

    @property
    def head_dim(self) -> int:
        config = self.text_config
        return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    @property
    def query_multiple(self) -> int:
        """Argument `multiple` of `build_plan` and `engine_plan`."""
        return query_multiple(self.text_config.num_attention_heads, self.num_kv_heads, self.head_dim)

    def _check(self) -> None:
        name = type(self.hf).__name__
        if not hasattr(self.hf, "model") or not (hasattr(self.hf, "lm_head") or hasattr(self.hf, "score")):
            raise ConfigError(f"{name} is not a causal language model with `model` and `lm_head`: not supported")
        if not hasattr(self.text_model, "layers") or not hasattr(self.text_model, "embed_tokens"):
            raise ConfigError(f"{name} has no plain stack of decoder layers: not supported")
        kinds = set(getattr(self.text_config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
        if kinds == {recurrent.KIND} and self.trains and recurrent.recurrent_layers(self.text_model):
            kinds = set()
        if kinds:
            raise ConfigError(f"{name} has layers of kind {sorted(kinds)}, which the packed forward cannot compute")
        for field in ("attn_logit_softcapping", "final_logit_softcapping", "kv_lora_rank"):
            if getattr(self.text_config, field, None) is not None:
                raise ConfigError(f"{name}: its config sets {field}, which the packed forward does not compute")
        for field in ("logits_scaling", "logit_scale"):
            if getattr(self.text_config, field, 1.0) not in (None, 1.0):
                raise ConfigError(f"{name}: its config scales logits by {field}, which the head does not compute")
        audio_tower = self.towers.get("audio_tower")
        if audio_tower is not None and not hasattr(audio_tower, "conv2d1"):
            raise ConfigError(f"{name}: an audio encoder of class {type(audio_tower).__name__} is not supported")
        for module in self.text_model.modules():
            if hasattr(module, "gate_up_proj") and hasattr(module, "is_transposed"):
                experts.check_experts(module)

    def _install(self, text_model: nn.Module) -> None:
        """Point the text model at our attention and experts, the towers at their own attention in fewer calls."""
        for module in text_model.modules():
            config = getattr(module, "config", None)
            if config is not None:
                config._attn_implementation = _ATTENTION[self.attn]
                config._experts_implementation = experts.NAME
        windows.install(self.towers.values())
        recurrent.install(text_model)

    # ------------------------------------------------------------------ media and positions

    def encode_media(self, features: Sequence[MediaFeatures]) -> list[EncodedItem]:
        """Encode items, in order. One call a tower; the bits of an item do not depend on the others."""
        encoded: list[EncodedItem | None] = [None] * len(features)
        for name, kinds in (("visual", ("image", "video")), ("audio_tower", ("audio",))):
            places = [i for i, f in enumerate(features) if f.kind in kinds]
            if not places:
                continue
            if name not in self.towers:
                raise ConfigError(f"{type(self.hf).__name__} has no {name}: it cannot read {features[places[0]].kind}")
            for place, item in zip(places, self.encode_tower(name, [features[i] for i in places]), strict=False):
                encoded[place] = item
        return [item for item in encoded if item is not None]

    def encode_tower(self, name: str, features: Sequence[MediaFeatures]) -> list[EncodedItem]:
        """Items of one tower and, last, the dummy. With no features: the dummy alone."""
        encode = media.encode_visual if name == "visual" else media.encode_audio
        if self.encode_together or len(features) < 2:
            return encode(self.towers[name], features)
        calls = [encode(self.towers[name], [item]) for item in features]
        return [*(items[0] for items in calls), calls[-1][-1]]

    def holds_media(self, tokens: np.ndarray) -> bool:
        """Whether a placeholder of any kind is among `tokens`."""
        return self._marks is not None and self._marks.any_placeholder(tokens)

    def plain_positions(self, tokens: np.ndarray) -> int:
        """How many leading tokens have the positions 0, 1, 2, ... whatever follows: those before the first media."""
        return len(tokens) if self._marks is None else self._marks.before_media(tokens)

    def media_rows(self, tokens: np.ndarray, features: Sequence[MediaFeatures]) -> list[np.ndarray]:
        """Rows of `tokens` that each item fills; raises DataError when placeholders and features differ."""
        if self._marks is None:
            return media.media_rows(tokens, features, self.placeholder_ids)
        return _remember(
            self._rows,
            self._marks.layout(tokens, features),
            lambda: media.media_rows(tokens, features, self.placeholder_ids),
        )

    def positions(self, tokens: np.ndarray, features: Sequence[MediaFeatures] = ()) -> np.ndarray:
        """Rotary positions of one sequence alone: `[T]`, or `[3, T]` when it holds media. int64, not to be changed.

        The token after the sequence has position `positions.max() + 1` in every row.
        """
        tokens = np.asarray(tokens, np.int64)
        if not features or self._marks is None:
            return np.arange(len(tokens))
        key = self._marks.layout(tokens, features)
        return _remember(self._positions, key, lambda: self._media_positions(tokens, features))

    def _media_positions(self, tokens: np.ndarray, features: Sequence[MediaFeatures]) -> np.ndarray:
        ids = torch.from_numpy(tokens)[None]
        mask = torch.ones_like(ids)
        grids = {k: _stack(features, f"{k}_grid_thw", k) for k in ("image", "video")}
        seconds = _seconds_per_grid(features)
        if "audio_tower" in self.towers:
            frames = [f.tensors["input_features"].shape[1] for f in features if f.kind == "audio"]
            places, _ = self.hf.model.get_rope_index(
                ids, grids["image"], grids["video"], mask, False, torch.tensor(frames) if frames else None, seconds
            )
        else:
            kinds = torch.zeros_like(ids)
            for number, kind in ((1, "image"), (2, "video")):
                kinds[ids == self.placeholder_ids.get(kind, -1)] = number
            places, _ = self.hf.model.get_rope_index(
                ids,
                mm_token_type_ids=kinds,
                image_grid_thw=grids["image"],
                video_grid_thw=grids["video"],
                attention_mask=mask,
                second_per_grid_ts=seconds,
            )
        return places[:, 0].long().numpy()

    # ------------------------------------------------------------------ forward

    def hidden(
        self, tokens: Tensor, positions: Tensor, plan: AttentionPlan, placed: Sequence[PlacedItem] = ()
    ) -> Tensor:
        """`[T, D]` after the final norm, for packed rows `tokens [T]` padded as the plan says.

        `positions` is `[T]` or `[3, T]`; `placed` are the encoded items and the packed rows that they fill.
        """
        if len(tokens) != plan.num_rows:
            tokens, positions = _pad_rows(tokens, plan.num_rows), _pad_rows(positions, plan.num_rows)
        embeds = self.text_model.embed_tokens(tokens)
        extra: dict[str, Any] = {}
        if placed:
            embeds, extra = fill_media(embeds, placed)
        where = positions[:, None] if positions.ndim == 2 else positions[None]
        out = self.text_model(
            inputs_embeds=embeds[None], position_ids=where, use_cache=False, relax_plan=plan, **extra
        )
        return out.last_hidden_state[0]

    def logits(self, hidden_rows: Tensor) -> Tensor:
        """`[R, D]` -> `[R, V]`."""
        return head_logits(hidden_rows, self.head.weight, self.head.bias)

    def distribution(
        self, hidden_rows: Tensor, temperature: Tensor | None = None, suppressed: Tensor | None = None
    ) -> Tensor:
        """`[R, V]` float32 log-probs that the engine samples from; `temperature [R, 1]` float32."""
        return distribution(self.logits(hidden_rows), temperature, suppressed)

    def log_probs(
        self,
        hidden_rows: Tensor,
        targets: Tensor,
        temperature: float = 1.0,
        suppressed: Tensor | None = None,
        *,
        chunk: int = 1024,
        entropy: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs of `targets [R]` (and entropies), float32, without keeping logits."""
        return token_log_probs(
            hidden_rows,
            self.head.weight,
            self.head.bias,
            targets,
            temperature=temperature,
            suppressed=suppressed,
            chunk=chunk,
            entropy=entropy,
        )

    def values(self, hidden_rows: Tensor) -> Tensor:
        """`[R]` float32 of the value head."""
        if self.value_head is None:
            raise InternalError("the model was opened without a value head")
        return head_logits(hidden_rows, self.value_head.weight)[:, 0].float()

    def gradient_checkpointing(self) -> None:
        """Recompute each text layer in the backward instead of keeping its activations."""
        checkpoint_layers(self.text_model.layers)


def checkpoint_layers(layers: Iterable[nn.Module]) -> None:
    """Recompute each of transformers' decoder layers in the backward."""
    for layer in layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = _checkpoint


def _remember(known: dict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """The value of a layout seen before; the oldest half of many is forgotten."""
    found = known.get(key)
    if found is None:
        found = known[key] = make()
        if len(known) > KNOWN_LAYOUTS:
            for old in list(known)[: KNOWN_LAYOUTS // 2]:
                known.pop(old, None)
    return found


def _checkpoint(function: Any, *args: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False)


def _pad_rows(rows: Tensor, total: int) -> Tensor:
    return nn.functional.pad(rows, (0, total - rows.shape[-1]))


def _stack(features: Sequence[MediaFeatures], name: str, kind: str) -> Tensor | None:
    chosen = [f for f in features if f.kind == kind]
    if not chosen:
        return None
    absent = [f.sha256[:12] for f in chosen if name not in f.tensors]
    if absent:
        raise DataError(f"{kind} {absent[0]}: features hold no {name}")
    # arrays that came over the bus are read-only, which torch warns of: these few numbers are copied
    return torch.stack([torch.tensor(f.tensors[name]).squeeze() for f in chosen])


def _seconds_per_grid(features: Sequence[MediaFeatures]) -> Tensor | None:
    """Seconds between time steps of each video, one where its processor gives none."""
    videos = [f.tensors for f in features if f.kind == "video"]
    names = ("video_second_per_grid", "second_per_grid_ts")
    found = [next((float(np.squeeze(v[n])) for n in names if n in v), 1.0) for v in videos]
    return torch.tensor(found) if found else None


def fill_media(embeds: Tensor, placed: Sequence[PlacedItem]) -> tuple[Tensor, dict[str, Any]]:
    """Put encoded rows in place; returns the embeddings and the arguments for visual features of deeper layers."""
    for part in placed:
        if len(part.rows) != len(part.item.embeds):
            raise DataError(f"{part.item.kind}: {len(part.rows)} placeholder rows for {len(part.item.embeds)} tokens")
    rows = torch.from_numpy(np.concatenate([p.rows for p in placed])).to(embeds.device)
    values = torch.cat([p.item.embeds for p in placed]).to(embeds.dtype)
    embeds = embeds.index_copy(0, rows, values)
    visual = [p for p in placed if p.item.deepstack]
    if not visual:
        return embeds, {}
    places = torch.from_numpy(np.concatenate([p.rows for p in visual])).to(embeds.device)
    order = places.argsort()
    mask = torch.zeros(1, len(embeds), dtype=torch.bool, device=embeds.device)
    mask[0, places] = True
    layers = [
        torch.cat([p.item.deepstack[depth] for p in visual]).index_select(0, order)
        for depth in range(len(visual[0].item.deepstack))
    ]
    return embeds, {"visual_pos_masks": mask, "deepstack_visual_embeds": layers}
