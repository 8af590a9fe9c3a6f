# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Models and data sets that are named as `owner/name` on the Hugging Face Hub instead of by a path.

    owner/name          a model, or the training split of a data set
    owner/name:inside   of a data set: this file, or the files of this folder
    ...@[start:end]     the rows of a data set, as in `relax.data.paths`

What is fetched lies in the cache of `huggingface_hub`, which also answers when the hub cannot be reached.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from relax.config.flags import nearest
from relax.data.paths import SUFFIXES
from relax.utils.errors import ConfigError, InfrastructureError

LOOK_UP_S = 10.0  # for one answer about what there is
SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")  # of a model: all but its weights
SPLIT = re.compile(r"(?:^|[-_./])(train|test|validation|valid|val|dev|eval)(?=$|[-_./])")
NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
MODEL = re.compile(rf"^{NAME}$")
DATASET = re.compile(rf"^(?P<name>{NAME})(?::(?P<inside>[^@\[\]]+))?(?P<rows>@\[[^\]]*\])?$")
# Names that are near to ones in circulation, for when the hub cannot be asked.
COMMON_MODELS = (
    "Qwen/Qwen3-Omni-30B-A3B-Instruct",
    "Qwen/Qwen3-Omni-30B-A3B-Thinking",
    "Qwen/Qwen3-VL-4B-Instruct",
    "Qwen/Qwen3-VL-8B-Instruct",
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-4B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-30B-A3B",
)


def names_a_model(text: str) -> bool:
    """`owner/name` where there is no such path."""
    return bool(MODEL.match(text)) and not Path(text).exists()


def names_a_dataset(text: str) -> bool:
    """`owner/name` and what may follow it, where there is no such path; a name with a file's ending is a path."""
    match = DATASET.match(text)
    return match is not None and not Path(match["name"]).exists() and not match["name"].endswith(SUFFIXES)


@dataclass
class Hub:
    """The hub, or another server with its interface (`HF_ENDPOINT`)."""

    endpoint: str | None = None
    cache: Path | None = None
    _found: dict[tuple[str, str], tuple[str, list[str]]] = field(default_factory=dict)  # (kind, name): commit, files

    def dataset(self, spec: str) -> str:
        """The path specification of the files that `spec` names, which are here then. Any other `spec` as it is."""
        match = DATASET.match(spec)
        if match is None or not names_a_dataset(spec):
            return spec
        name = match["name"]
        commit, files = self._look_up("dataset", name)
        chosen = choose_files(name, files, match["inside"])
        folder = self._fetch("dataset", name, commit, chosen)
        paths = [f"'{folder / file}'" for file in chosen]
        return f"[{','.join(paths)}]{match['rows'] or ''}"

    def model(self, name: str) -> Path:
        """The folder of a model, which has every file except the weights."""
        commit, files = self._look_up("model", name)
        if not any(file.endswith((".safetensors", ".bin")) for file in files):
            raise ConfigError(
                f"{name} has no weights (*.safetensors) on the Hugging Face Hub, nor in its cache where the hub "
                "cannot be asked: it is no model to train"
            )
        return self._fetch("model", name, commit, SMALL_FILES)

    def weights(self, name: str) -> Path:
        """The same folder with the weights."""
        commit, files = self._look_up("model", name)
        best = ".safetensors" if any(file.endswith(".safetensors") for file in files) else ".bin"
        wanted = [file for file in files if file.endswith(best) and "/" not in file]
        return self._fetch("model", name, commit, (*SMALL_FILES, *wanted))

    def _look_up(self, kind: str, name: str) -> tuple[str, list[str]]:
        if (kind, name) not in self._found:
            self._found[kind, name] = self._ask(kind, name)
        return self._found[kind, name]

    def _ask(self, kind: str, name: str) -> tuple[str, list[str]]:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

        api = HfApi(endpoint=self.endpoint)
        try:
            info: Any = api.repo_info(name, repo_type=kind, timeout=LOOK_UP_S)
        except GatedRepoError as error:
            raise ConfigError(
                f"{name} asks for consent: accept its terms on its page of the Hugging Face Hub, then `hf auth login`"
            ) from error
        except (RepositoryNotFoundError, HFValidationError) as error:
            raise ConfigError(self._not_there(kind, name, _near(api, kind, name))) from error
        except _failures() as error:  # no network, or HF_HUB_OFFLINE
            return self._from_cache(kind, name, error)
        return info.sha, [file.rfilename for file in info.siblings or ()]

    def _from_cache(self, kind: str, name: str, error: Exception) -> tuple[str, list[str]]:
        from huggingface_hub import constants

        repository = Path(self.cache or constants.HF_HUB_CACHE) / f"{kind}s--{name.replace('/', '--')}"
        snapshots = sorted(repository.glob("snapshots/*"), key=lambda folder: folder.stat().st_mtime)
        if not snapshots:
            near = _unlike(name, COMMON_MODELS) if kind == "model" else None
            raise InfrastructureError(
                f"{self._not_there(kind, name, near)}\nThe hub cannot be asked ({_first_line(error)}), and its cache "
                f"on this machine has no {name}"
            ) from error
        newest = snapshots[-1]
        return newest.name, [str(file.relative_to(newest)) for file in newest.rglob("*") if file.is_file()]

    def _not_there(self, kind: str, name: str, near: str | None) -> str:
        what = "data set" if kind == "dataset" else "model"
        switch = "--repo-type dataset " if kind == "dataset" else ""
        near = _near_path(name) or near
        hint = f"did you mean {near}? " if near else ""
        return (
            f"{name} is neither a folder here nor a {what} of the Hugging Face Hub: {hint}A private one "
            f"needs `hf auth login`. A folder is given by its path, for example after `hf download {switch}OWNER/NAME "
            "--local-dir DIR`"
        )

    def _fetch(self, kind: str, name: str, commit: str, patterns: Sequence[str]) -> Path:
        from huggingface_hub import snapshot_download

        try:
            path = snapshot_download(
                name,
                repo_type=kind,
                revision=commit,
                cache_dir=self.cache,
                endpoint=self.endpoint,
                allow_patterns=list(patterns),
            )
        except _failures() as error:
            raise InfrastructureError(f"{name} could not be fetched from the hub: {_first_line(error)}") from error
        return Path(path)


def _failures() -> tuple[type[Exception], ...]:
    """What a hub that cannot be asked raises: the base class is that of the HTTP library, which has changed."""
    from huggingface_hub import errors

    return OSError, getattr(errors, "HTTPError", OSError)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no details'}"


def _near(api: Any, kind: str, name: str) -> str | None:
    """The repository that was probably meant, by the hub's own search."""
    owner, _, rest = name.partition("/")
    search = api.list_datasets if kind == "dataset" else api.list_models
    try:
        found = [repository.id for repository in search(author=owner, search=rest, limit=20)]
    except _failures():  # the search is only for a hint
        found = []
    return _unlike(name, [*found, *(COMMON_MODELS if kind == "model" else ())])


def _near_path(name: str) -> str | None:
    """A path here that `name` was probably meant to be."""
    parent = Path(name).parent
    names = [path.name for path in parent.iterdir()] if parent.is_dir() else []
    close = difflib.get_close_matches(Path(name).name, names, n=1)
    return str(parent / close[0]) if close else None


def _unlike(name: str, known: Iterable[str]) -> str | None:
    return nearest(name, [other for other in known if other != name])


def choose_files(name: str, files: Iterable[str], inside: str | None = None) -> list[str]:
    """Of a data set's files those with training rows. Raises ConfigError when they cannot be told without asking."""
    every = sorted(files)
    found = [file for file in every if file.endswith(SUFFIXES)]
    if not found:
        endings = ", ".join(sorted({PurePosixPath(file).suffix for file in every} - {"", ".md"})) or "none"
        raise ConfigError(
            f"{name} on the Hugging Face Hub has no {' or '.join(SUFFIXES)} files (endings: {endings}): convert it, "
            "and give the file"
        )
    if inside is not None:
        below = inside.strip("/")
        found = [file for file in found if file == below or file.startswith(below + "/")]
        if not found:
            raise ConfigError(f"{name} on the Hugging Face Hub has no data in {inside!r}; {_folders(name, every)}")
    splits = {file: match[1] for file in found if (match := SPLIT.search(file.removesuffix(Path(file).suffix)))}
    if splits and inside not in found:
        found = [file for file in found if splits.get(file) == "train"]
        if not found:
            raise ConfigError(f"{name} on the Hugging Face Hub has no training split; {_folders(name, every)}")
    groups = {(str(PurePosixPath(file).parent), PurePosixPath(file).suffix) for file in found}
    if len(groups) > 1:
        raise ConfigError(f"{name} on the Hugging Face Hub has several data sets in one; {_folders(name, every)}")
    return found


def _folders(name: str, files: Iterable[str]) -> str:
    data = [file for file in files if file.endswith(SUFFIXES)]
    shown = ", ".join(data[:8]) + (f" and {len(data) - 8} more" if len(data) > 8 else "")
    return f"choose one folder or file by {name}:PATH, of {shown}"
