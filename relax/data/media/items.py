# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""One medium of a prompt as bytes: what the engine is sent, what the trainer decodes, what the journal hashes.

Every accepted form of a value becomes the bytes of an ordinary file, so one hash names the medium everywhere:

    str             http(s) URL, `data:` URI, `file://` URL, path (absolute, or relative to the data file), or bare
                    base64 of a known file type
    bytes           the file's content
    dict            {bytes, path} (either may be null), {url}, {data, format} (base64), {array, sampling_rate}
    PIL image       encoded as PNG
    numpy array     image [H, W, 3] or [H, W] uint8 as PNG; audio [samples] as WAV of 32-bit floats; video
                    [frames, H, W, 3] uint8 as lossless FFV1
    list (video)    frames, each in any form an image may have, as lossless FFV1

Images are normalised once: EXIF rotation applied, alpha composed over white, other modes to RGB. Clips shorter than
one analysis window are lengthened with silence. A medium that needs none of it keeps its own bytes.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import ipaddress
import os
import re
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relax.data.media import decode
from relax.utils.errors import ConfigError, DataError
from relax.utils.types import MODALITIES

AUDIO_RATE = 16_000  # Hz, of audio arrays that state none
VIDEO_FPS = 2.0  # of frame lists that state none

_BASE64 = re.compile(r"[A-Za-z0-9+/_\-\s]+={0,2}\s*")
_SHOWN = 80  # characters of a value that an error shows


@dataclass(frozen=True)
class MediaAccess:
    """What a media value may reach. The defaults trust the run's own data set; a public door must tighten them."""

    files: bool = True  # paths and file:// URLs
    urls: bool = True  # http and https
    private_hosts: bool = True  # loopback, link-local and private addresses
    max_bytes: int = 1 << 30  # of one fetched medium


@dataclass(frozen=True)
class FetchPolicy:
    """Retries of a URL, from ROLLOUT_IMAGE_FETCH_ATTEMPTS, _TIMEOUT_S and _BACKOFF_S."""

    attempts: int = 3
    timeout_s: float = 10.0
    backoff_s: float = 0.5  # doubled after each failure
    sleep: Callable[[float], None] = time.sleep

    @classmethod
    def from_environment(cls) -> FetchPolicy:
        return cls(max(1, int(_setting("ATTEMPTS", "3"))), _setting("TIMEOUT_S", "10"), _setting("BACKOFF_S", "0.5"))


@dataclass(frozen=True)
class MediaItem:
    """One medium, already read. Equal items have equal hashes."""

    kind: str  # one of MODALITIES
    data: bytes  # content of an ordinary media file
    sha256: str  # of `data`, hex
    uri: str  # where it came from, for messages; "" when it was in the row

    @classmethod
    def of(cls, kind: str, data: bytes, uri: str = "") -> MediaItem:
        return cls(kind, data, hashlib.sha256(data).hexdigest(), uri)

    @functools.cached_property
    def mime(self) -> str:
        return decode.sniff(self.data) or f"{self.kind}/octet-stream"

    def data_uri(self) -> str:
        """The form in which an engine takes it over HTTP. Encoded once for all samples of a group."""
        return self._data_uri

    @functools.cached_property
    def _data_uri(self) -> str:
        return f"data:{self.mime};base64,{base64.b64encode(self.data).decode('ascii')}"


def load_media(
    kind: str,
    value: Any,
    *,
    folder: Path,
    where: str,
    access: MediaAccess | None = None,
    fetch: FetchPolicy | None = None,
) -> MediaItem:
    """Read one medium; every failure is a DataError that names the row and the value.

    `folder` is where relative paths start. Blocking: call it off the event loop.
    """
    if kind not in MODALITIES:
        raise ValueError(f"kind {kind!r} is not one of {MODALITIES}")
    if isinstance(value, MediaItem):
        return value
    reader = _Reader(kind, folder, where, access or MediaAccess(), fetch or FetchPolicy.from_environment())
    data, uri = reader.read(value)
    if not data:
        raise DataError(f"the {kind} {uri or 'in the row'} is empty", where=where)
    if kind == "image":
        data = decode.normal_image(data, where=where, name=uri)
    elif kind == "audio":
        data = decode.normal_audio(data, where=where, name=uri)
    return MediaItem.of(kind, data, uri)


@dataclass(frozen=True)
class _Reader:
    kind: str
    folder: Path
    where: str
    access: MediaAccess
    fetch: FetchPolicy

    def read(self, value: Any) -> tuple[bytes, str]:
        """(content, origin) of any accepted form."""
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value), ""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, os.PathLike):
            return self._file(os.fspath(value))
        if isinstance(value, np.ndarray):
            return self._array(value, {}), ""
        if isinstance(value, (list, tuple)):
            return self._sequence(list(value)), ""
        if hasattr(value, "save") and hasattr(value, "convert"):  # a PIL image
            return decode.encode_png(value), ""
        raise self._error(f"a value of type {type(value).__name__} is no {self.kind}")

    def _mapping(self, value: Mapping[str, Any]) -> tuple[bytes, str]:
        if value.get("array") is not None:
            return self._array(np.asarray(value["array"]), value), str(value.get("path") or "")
        if value.get("bytes") is not None:
            return self.read(value["bytes"])[0], str(value.get("path") or "")
        for key in ("path", "url", self.kind, f"{self.kind}_url"):
            if value.get(key) is not None:
                return self.read(value[key])
        if isinstance(value.get("data"), str):  # {data, format} of an OpenAI input_audio part
            return self._base64(value["data"], "data"), ""
        if value.get("data") is not None:
            return self.read(value["data"])
        keys = ", ".join(map(str, value)) or "none"
        raise self._error(f"the {self.kind} has neither bytes, path, url, data nor array; its keys are: {keys}")

    def _array(self, array: np.ndarray, about: Mapping[str, Any]) -> bytes:
        try:
            if self.kind == "audio":
                rate = about.get("sampling_rate") or about.get("sample_rate") or AUDIO_RATE
                return decode.encode_wav(array, int(rate))
            if self.kind == "video":
                return decode.encode_frames(array, float(about.get("fps") or VIDEO_FPS))
            return decode.encode_png(array)
        except (TypeError, ValueError) as error:
            what = f"an array of shape {array.shape} and type {array.dtype}"
            raise self._error(f"{what} is no {self.kind}: {error}") from error

    def _sequence(self, values: list[Any]) -> bytes:
        if self.kind == "audio" and values and all(isinstance(value, (int, float)) for value in values):
            return self._array(np.asarray(values, np.float32), {})
        if self.kind != "video" or not values:
            raise self._error(f"a list of {len(values)} values is no single {self.kind}")
        still = _Reader("image", self.folder, self.where, self.access, self.fetch)
        frames = []
        for value in values:
            data, uri = still.read(value)
            frames.append(np.asarray(decode.decode_image(data, where=self.where, name=uri)))
        if len({frame.shape for frame in frames}) > 1:
            raise self._error(f"the video's frames differ in size: {sorted({frame.shape for frame in frames})}")
        return self._array(np.stack(frames), {})

    def _text(self, text: str) -> tuple[bytes, str]:
        head = text[:12].lower()
        if head.startswith("data:"):
            comma = text.find(",")
            if comma < 0 or ";base64" not in text[:comma].lower():
                raise self._error(f"only data:...;base64,... URIs are read, got {_shown(text)}")
            return self._base64(text[comma + 1 :], "the data URI"), ""
        if head.startswith(("http://", "https://")):
            return self._url(text), text
        if head.startswith("file://"):
            parts = urllib.parse.urlsplit(text)
            return self._file(urllib.request.url2pathname(parts.path))
        if re.match(r"[a-z][a-z0-9+.\-]+://", text, re.IGNORECASE):
            raise self._error(f"the scheme of {_shown(text)} is not http, https, file or data")
        return self._path_or_base64(text)

    def _path_or_base64(self, text: str) -> tuple[bytes, str]:
        if not _is_file(self.folder / text) and len(text) >= 32 and _BASE64.fullmatch(text):
            try:
                data = self._base64(text, "bare base64")
            except DataError:
                data = b""
            if decode.sniff(data):
                return data, ""
        return self._file(text)

    def _file(self, name: str) -> tuple[bytes, str]:
        if not self.access.files:
            raise self._error(f"reading files is not allowed here, got the path {_shown(name)}")
        path = self.folder / Path(name).expanduser()
        try:
            return path.read_bytes(), str(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise self._error(
                f"cannot read the {self.kind} file {_shown(str(path))}: {reason}. A relative path starts at the data "
                f"file's folder; base64 needs the prefix data:{self.kind}/...;base64,"
            ) from error

    def _base64(self, text: str, what: str) -> bytes:
        plain = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
        try:
            return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        except (binascii.Error, ValueError) as error:
            message = f"{what} of the {self.kind} is not base64: {error}; it starts with {_shown(text)}"
            raise self._error(message) from error

    def _url(self, url: str) -> bytes:
        if not self.access.urls:
            raise self._error(f"fetching URLs is not allowed here, got {_shown(url)}")
        opener = urllib.request.build_opener(_Redirects(self))
        pause, last = self.fetch.backoff_s, "no attempt was made"
        for attempt in range(self.fetch.attempts):
            if attempt:
                self.fetch.sleep(pause)
                pause *= 2
            self.check_host(url)
            try:
                with opener.open(url, timeout=self.fetch.timeout_s) as answer:
                    data = answer.read(self.access.max_bytes + 1)
                if len(data) > self.access.max_bytes:
                    raise self._error(f"{_shown(url)} is larger than {self.access.max_bytes} bytes")
                return data
            except DataError:
                raise
            except urllib.error.HTTPError as error:
                last = f"HTTP {error.code} {error.reason}"
                if error.code < 500 and error.code not in (408, 425, 429):
                    break
            except (OSError, urllib.error.URLError, ValueError) as error:
                last = str(error)
        raise self._error(
            f"cannot fetch the {self.kind} {_shown(url)} ({last}); tried up to {self.fetch.attempts} times with "
            f"{self.fetch.timeout_s:g} s each (ROLLOUT_IMAGE_FETCH_ATTEMPTS, _TIMEOUT_S, _BACKOFF_S)"
        )

    def check_host(self, url: str) -> None:
        """Refuse private addresses where `MediaAccess` says so; called for each redirect too."""
        if self.access.private_hosts:
            return
        host = urllib.parse.urlsplit(url).hostname or ""
        try:
            found = {str(entry[4][0]).split("%")[0] for entry in socket.getaddrinfo(host, None)}
        except OSError as error:
            raise self._error(f"cannot resolve the host of {_shown(url)}: {error}") from error
        for address in found:
            if not ipaddress.ip_address(address).is_global:
                raise self._error(f"{_shown(url)} points to the private address {address}, which is not allowed here")

    def _error(self, message: str) -> DataError:
        return DataError(message, where=self.where)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http(s) only and checks each target's host."""

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        if not newurl.lower().startswith(("http://", "https://")):
            raise DataError(f"{_shown(req.full_url)} redirects to {_shown(newurl)}", where=self._reader.where)
        self._reader.check_host(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _setting(name: str, default: str) -> float:
    text = os.environ.get(f"ROLLOUT_IMAGE_FETCH_{name}", default)
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"ROLLOUT_IMAGE_FETCH_{name}={text!r} is not a number") from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name longer than names may be, or with a NUL
        return False


def _shown(text: str) -> str:
    """Its beginning and, because a file's name is there, its end."""
    return repr(text if len(text) <= 2 * _SHOWN else f"{text[:_SHOWN]}...{text[-_SHOWN:]}")
