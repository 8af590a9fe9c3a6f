# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Tokenizer and processor of a model folder, with errors that come in seconds and say what is missing."""

from __future__ import annotations

import difflib
import json
import os
import socket
import threading
import urllib.parse
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax.utils.errors import ConfigError
from relax.utils.torchvision_shim import ensure_torchvision

HUB_TIMEOUT_S = 3.0  # to reach the hub before giving up

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.txt",
)
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")

_locks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_locks_guard = threading.Lock()


def tokenizer_lock(tokenizer: Any) -> threading.RLock:
    """The lock of this tokenizer object: fast tokenizers raise "Already borrowed" when two threads enter them."""
    with _locks_guard:
        return _locks.setdefault(tokenizer, threading.RLock())


def has_tokenizer(folder: Path) -> bool:
    return any((folder / file).exists() for file in _TOKENIZER_FILES)


def has_processor(folder: Path) -> bool:
    return any((folder / file).exists() for file in _PROCESSOR_FILES)


def has_chat_template(folder: Path) -> bool:
    """A template file, or a `chat_template` in the tokenizer's or processor's configuration."""
    if any((folder / name).exists() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    return any(
        "chat_template" in json.loads((folder / name).read_text("utf-8"))
        for name in ("tokenizer_config.json", "processor_config.json")
        if (folder / name).is_file()
    )


def load_tokenizer(path: str | os.PathLike[str], *, flag: str = "--hf-checkpoint") -> Any:
    """The folder's tokenizer. Raises ConfigError when the folder or its tokenizer is missing or broken."""
    ensure_torchvision()
    name = _located(path, flag)
    folder = Path(name)
    if folder.is_dir() and not has_tokenizer(folder):
        raise ConfigError(
            f"{flag} {name!r} has no tokenizer (none of {', '.join(_TOKENIZER_FILES)}); copy the tokenizer files of "
            "the base model into it"
        )
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"{flag} {name!r}: its tokenizer cannot be loaded: {error}") from error


def load_processor(path: str | os.PathLike[str], *, flag: str = "--hf-checkpoint") -> Any | None:
    """The folder's image, video and audio processor, or None for a text-only model."""
    ensure_torchvision()
    name = _located(path, flag)
    folder = Path(name)
    if folder.is_dir() and not has_processor(folder):
        return None
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(name)
    except (OSError, ValueError, KeyError, ImportError, AttributeError) as error:
        raise ConfigError(f"{flag} {name!r}: its processor cannot be loaded: {error}") from error
    parts = ("image_processor", "video_processor", "feature_extractor")
    return processor if any(getattr(processor, part, None) is not None for part in parts) else None


def saved_processor(folder: Path, kind: str) -> Mapping[str, Any]:
    """The settings of the folder's image or video processor; empty where no file states them."""
    nested, flat = (
        f"{kind}_processor",
        {"image": "preprocessor_config.json", "video": "video_preprocessor_config.json"},
    )
    for name, key in (("processor_config.json", nested), (flat[kind], None)):
        path = folder / name
        if path.is_file():
            found = json.loads(path.read_text("utf-8"))
            found = found.get(key) if key else found
            if found:
                return found
    return {}


def _located(path: str | os.PathLike[str], flag: str) -> str:
    """The local folder, or the hub name when the hub or its cache can give it; else ConfigError at once."""
    name = os.path.expanduser(os.fspath(path))
    if os.path.isdir(name):
        return name
    looks_like_hub = name.count("/") <= 1 and not name.startswith((".", "/")) and not os.path.exists(name)
    if not looks_like_hub:
        what = "is a file, not a model folder" if os.path.exists(name) else "does not exist"
        raise ConfigError(f"{flag} {name!r} {what}{_near(name)}")
    if _in_cache(name):
        return name
    if os.environ.get("HF_HUB_OFFLINE") == "1" or not _hub_answers():
        raise ConfigError(
            f"{flag} {name!r} is no local folder, is not in the Hugging Face cache, and {_endpoint()} cannot be "
            f"reached; download the model and give its folder{_near(name)}"
        )
    return name


def _in_cache(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def _hub_answers() -> bool:
    """Whether a connection to the hub (or the proxy in front of it) opens within `HUB_TIMEOUT_S`."""
    target = urllib.parse.urlsplit(os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or _endpoint())
    port = target.port or (443 if target.scheme == "https" else 80)
    try:
        with socket.create_connection((target.hostname or "", port), timeout=HUB_TIMEOUT_S):
            return True
    except OSError:
        return False


def _near(name: str) -> str:
    parent = Path(name).parent
    try:
        folders = [entry.name for entry in parent.iterdir() if entry.is_dir()]
    except OSError:
        return f" (nor does the folder {str(parent)!r})"
    near = difflib.get_close_matches(Path(name).name, folders, n=3)
    return f"; near it are {', '.join(str(parent / entry) for entry in near)}" if near else ""
