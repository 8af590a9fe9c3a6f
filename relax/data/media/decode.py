# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""Bytes of media files to arrays and back. Pure functions of their arguments; failures are DataError with the row."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from relax.utils.errors import DataError

MAX_PIXELS = 256_000_000  # of one image; above it a file is taken for a decompression bomb

MIN_SECONDS = 0.025  # of audio: one analysis window; feature extractors fail on less

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\x1aE\xdf\xa3", "video/x-matroska"),
)
_RIFF = {b"WAVE": "audio/wav", b"WEBP": "image/webp", b"AVI ": "video/x-msvideo"}


def sniff(data: bytes) -> str | None:
    """MIME type by the first bytes, None when unknown."""
    for magic, mime in _MAGIC:
        if data.startswith(magic):
            return mime
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    if data[4:8] == b"ftyp":
        return {b"M4A ": "audio/mp4", b"avif": "image/avif", b"heic": "image/heic"}.get(data[8:12], "video/mp4")
    return None


# --------------------------------------------------------------------------- images


def decode_image(data: bytes, *, where: str, name: str = "") -> Any:
    """An RGB PIL image: upright by EXIF, alpha composed over white."""
    from PIL import Image, ImageOps

    try:
        image = Image.open(io.BytesIO(data))
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels are more than {MAX_PIXELS}")
        image.load()
        return _flat(ImageOps.exif_transpose(image))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"cannot decode the image{_named(name)}: {error}", where=where) from error


def normal_image(data: bytes, *, where: str, name: str = "") -> bytes:
    """The same bytes when they are an upright RGB or grey image, else a PNG of the normalised pixels.

    Engines and trainers then see one picture even where their loaders treat EXIF and alpha differently.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            plain = image.mode in ("RGB", "L") and "transparency" not in image.info
            upright = image.getexif().get(0x0112, 1) == 1
            single = getattr(image, "n_frames", 1) == 1
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"cannot decode the image{_named(name)}: {error}", where=where) from error
    return data if plain and upright and single else encode_png(decode_image(data, where=where, name=name))


def encode_png(image: Any) -> bytes:
    """PNG of a PIL image or of an array [H, W, 3], [H, W, 4], [H, W, 1] or [H, W] uint8."""
    from PIL import Image

    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8:
            raise ValueError("pixels must be uint8")
        image = Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image)
    sink = io.BytesIO()
    _flat(image).save(sink, "PNG", compress_level=1)
    return sink.getvalue()


def _flat(image: Any) -> Any:
    """RGB without alpha; transparent pixels become white."""
    from PIL import Image

    if image.mode == "RGB":
        return image
    if image.mode in ("I;16", "I", "F"):  # more than 8 bits a pixel: scale, or everything bright is clipped to white
        pixels = np.asarray(image, np.float64)
        top = 65535.0 if image.mode.startswith("I") else max(1.0, float(pixels.max(initial=0.0)))
        image = Image.fromarray((pixels / top * 255.0).clip(0, 255).round().astype(np.uint8))
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        layer = image.convert("RGBA")
        page = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(page, layer).convert("RGB")
    return image.convert("RGB")


# --------------------------------------------------------------------------- audio


def decode_audio(data: bytes, *, where: str, rate: int = 16_000, name: str = "") -> np.ndarray:
    """Mono float32 samples at `rate` Hz, channels averaged."""
    import soundfile
    import soxr

    try:
        samples, source_rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError):
        samples, source_rate = _decode_audio_container(data, where=where, name=name)
    mono = samples.mean(axis=1, dtype=np.float32)
    if len(mono) == 0:
        raise DataError(f"the audio{_named(name)} has no samples", where=where)
    if not np.isfinite(mono).all():
        raise DataError(f"the audio{_named(name)} holds NaN or infinite samples", where=where)
    if source_rate != rate:
        mono = soxr.resample(mono, source_rate, rate, quality="HQ").astype(np.float32)
    if len(mono) == 0:
        raise DataError(f"the audio{_named(name)} is shorter than one sample at {rate} Hz", where=where)
    return mono


def normal_audio(data: bytes, *, where: str, name: str = "") -> bytes:
    """The same bytes, or for a clip below `MIN_SECONDS` a WAV lengthened to it with silence."""
    import soundfile

    if len(data) > 1 << 16:  # too large to be that short, even as 192 kHz stereo
        return data
    try:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError):
        return data  # another container; `decode_audio` tells what is wrong with it, if anything
    missing = math.ceil(MIN_SECONDS * rate) - len(samples)
    return data if missing <= 0 or len(samples) == 0 else encode_wav(np.pad(samples, ((0, missing), (0, 0))), rate)


def at_rate(data: bytes, rate: int, *, where: str, name: str = "") -> bytes:
    """The same bytes when they are a mono WAV of `rate` Hz, else such a WAV of what `decode_audio` hears."""
    import soundfile

    with contextlib.suppress(soundfile.LibsndfileError):  # another container
        about = soundfile.info(io.BytesIO(data))
        if (about.format, about.samplerate, about.channels) == ("WAV", rate, 1):
            return data
    return encode_wav(decode_audio(data, where=where, rate=rate, name=name), rate)


def _decode_audio_container(data: bytes, *, where: str, name: str) -> tuple[np.ndarray, int]:
    """Samples [N, channels] of a container that libsndfile does not read (mp4, webm, aac)."""
    import av
    import av.error

    try:
        with av.open(io.BytesIO(data), "r") as container:
            if not container.streams.audio:
                raise DataError(f"the file{_named(name)} has no audio stream", where=where)
            stream = container.streams.audio[0]
            resampler = av.AudioResampler(format="fltp", layout=stream.layout, rate=stream.rate)
            blocks = [
                piece.to_ndarray()
                for frame in [*container.decode(stream), None]
                for piece in resampler.resample(frame)
            ]
            rate = int(stream.rate)
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise DataError(f"cannot decode the audio{_named(name)}: {error}", where=where) from error
    return (np.concatenate(blocks, axis=1).T if blocks else np.zeros((0, 1), np.float32)), rate


def encode_wav(samples: np.ndarray, rate: int) -> bytes:
    """WAV of 32-bit floats; samples [N], [N, channels] or [channels, N]; integers are scaled to [-1, 1)."""
    import soundfile

    if samples.ndim == 2 and samples.shape[0] < samples.shape[1]:
        samples = samples.T
    if samples.ndim not in (1, 2) or samples.size == 0:
        raise ValueError("audio has one or two dimensions and at least one sample")
    if np.issubdtype(samples.dtype, np.signedinteger):
        samples = samples / float(-np.iinfo(samples.dtype).min)
    sink = io.BytesIO()
    soundfile.write(sink, np.asarray(samples, np.float32), rate, format="WAV", subtype="FLOAT")
    return _without_peak_time(sink.getvalue())


def _without_peak_time(wav: bytes) -> bytes:
    """Zero the time stamp of the PEAK chunk, so that equal samples are equal bytes."""
    place = wav.find(b"PEAK", 12, 200)
    return wav if place < 0 else wav[: place + 12] + b"\0\0\0\0" + wav[place + 16 :]


# --------------------------------------------------------------------------- video


@dataclass(frozen=True)
class VideoFrames:
    """Sampled frames with what is needed to place them in time."""

    frames: np.ndarray  # uint8 [T, H, W, 3]
    indices: tuple[int, ...]  # [T] of the source frames
    total: int  # frames in the source
    source_fps: float

    @property
    def sampled_fps(self) -> float:
        """Frames kept per second of the source."""
        return len(self.indices) / self.total * self.source_fps


def sample_indices(
    total: int, source_fps: float, *, fps: float, min_frames: int, max_frames: int, factor: int
) -> tuple[int, ...]:
    """Evenly spaced frames, first and last included: about `fps` a second, a multiple of `factor` where possible."""
    wanted = min(max(total / source_fps * fps, min_frames), max_frames, total)
    count = max(1, int(wanted // factor) * factor) if wanted >= factor else min(total, factor)
    return tuple(np.linspace(0, total - 1, count).round().astype(int).tolist())


def decode_video(
    data: bytes,
    *,
    where: str,
    fps: float = 2.0,
    min_frames: int = 4,
    max_frames: int = 768,
    factor: int = 2,
    sample: Callable[..., tuple[int, ...]] = sample_indices,
    name: str = "",
) -> VideoFrames:
    """Decode and sample once. Two passes, so memory holds the sampled frames only. `sample` has `sample_indices`'s
    arguments."""
    import av
    import av.error

    try:
        total, source_fps = _count_frames(data)
        if total == 0:
            raise DataError(f"the video{_named(name)} has no frames", where=where)
        indices = sample(total, source_fps, fps=fps, min_frames=min_frames, max_frames=max_frames, factor=factor)
        if not indices:
            raise DataError(f"the video{_named(name)} has too few frames for the engine: {total}", where=where)
        wanted = set(indices)
        kept: dict[int, np.ndarray] = {}
        with av.open(io.BytesIO(data), "r") as container:
            for place, frame in enumerate(container.decode(video=0)):
                if place in wanted:
                    kept[place] = frame.to_ndarray(format="rgb24")
                if len(kept) == len(wanted):
                    break
    except (av.error.FFmpegError, OSError, ValueError, IndexError) as error:
        raise DataError(f"cannot decode the video{_named(name)}: {error}", where=where) from error
    return VideoFrames(np.stack([kept[index] for index in indices]), indices, total, source_fps)


def _count_frames(data: bytes) -> tuple[int, float]:
    """(decodable frames, frames a second); containers lie about the count, so it is decoded."""
    import av

    with av.open(io.BytesIO(data), "r") as container:
        stream = container.streams.video[0]
        rate = stream.average_rate or stream.guessed_rate
        return sum(1 for _ in container.decode(stream)), float(rate) if rate else 24.0


def encode_frames(frames: np.ndarray, fps: float) -> bytes:
    """Lossless FFV1 in Matroska of uint8 [T, H, W, 3]; equal frames give equal bytes."""
    import av
    from av.codec.context import Flags

    if frames.ndim == 4 and frames.shape[1] == 3 and frames.shape[-1] != 3:
        frames = frames.transpose(0, 2, 3, 1)
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8 or len(frames) == 0:
        raise ValueError("a video is uint8 [frames, height, width, 3]")
    sink = io.BytesIO()
    with av.open(sink, "w", format="matroska", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("ffv1", rate=Fraction(fps).limit_denominator(1001))
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], "bgr0"
        stream.codec_context.flags |= Flags.bitexact
        stream.codec_context.thread_count = 1
        for array in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(array), format="rgb24")))
        container.mux(stream.encode(None))
    return sink.getvalue()


def _named(name: str) -> str:
    return f" {name}" if name else ""
