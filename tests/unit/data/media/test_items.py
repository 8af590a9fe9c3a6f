# Copyright (c) 2026 Relax Authors. All Rights Reserved.
import base64
import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from relax.data.media import decode
from relax.data.media.items import FetchPolicy, MediaAccess, MediaItem, load_media
from relax.utils.errors import DataError

PIXELS = np.random.RandomState(0).randint(0, 255, (6, 5, 3), dtype=np.uint8)
PNG = decode.encode_png(PIXELS)
NO_WAIT = FetchPolicy(attempts=3, timeout_s=5.0, sleep=lambda seconds: None)


def load(value, kind: str = "image", folder: Path = Path("/nowhere"), **options) -> MediaItem:
    return load_media(kind, value, folder=folder, where="data.jsonl:7", **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a b.png").write_bytes(PNG)
    return tmp_path


FORMS = {
    "relative path": lambda folder: "sub/a b.png",
    "absolute path": lambda folder: str(folder / "sub/a b.png"),
    "path object": lambda folder: folder / "sub/a b.png",
    "file url": lambda folder: (folder / "sub/a b.png").as_uri(),
    "bytes": lambda folder: PNG,
    "bytearray": lambda folder: bytearray(PNG),
    "bytes struct": lambda folder: {"bytes": PNG, "path": None},
    "path struct": lambda folder: {"bytes": None, "path": "sub/a b.png"},
    "both": lambda folder: {"bytes": PNG, "path": "gone.png"},
    "url struct": lambda folder: {"url": (folder / "sub/a b.png").as_uri()},
    "data uri": lambda folder: "data:image/png;base64," + base64.b64encode(PNG).decode(),
    "data struct": lambda folder: {"data": base64.b64encode(PNG).decode(), "format": "png"},
    "bare base64": lambda folder: base64.b64encode(PNG).decode(),
    "bare url-safe base64 in lines": lambda folder: (
        base64.encodebytes(PNG).decode().replace("+", "-").replace("/", "_")
    ),
    "array": lambda folder: PIXELS,
    "pil": lambda folder: Image.fromarray(PIXELS),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_an_image_is_the_same_bytes_and_hash(folder, form):
    item = load(FORMS[form](folder), folder=folder)
    assert item.data == PNG and item.sha256 == MediaItem.of("image", PNG).sha256
    assert item.data_uri() == "data:image/png;base64," + base64.b64encode(PNG).decode()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("missing.png", ["cannot read the image file", "missing.png", "data file's folder"]),
        ("/nowhere/missing.png", ["No such file"]),
        ("x" * 5000, ["cannot read the image file"]),
        (base64.b64encode(b"no picture at all, only words" * 3).decode(), ["base64 needs the prefix data:image"]),
        ("a\0b", ["cannot read the image file"]),
        ("s3://bucket/a.png", ["the scheme", "not http"]),
        ("data:image/png,abc", ["only data:...;base64"]),
        ("data:image/png;base64,???", ["is not base64"]),
        ({"size": 3}, ["neither bytes, path", "size"]),
        ({"bytes": None, "path": None}, ["neither bytes, path"]),
        (3.5, ["type float is no image"]),
        (b"", ["is empty"]),
        (b"these are no pixels", ["cannot decode the image"]),
        (PNG[:40], ["cannot decode the image"]),
        (np.zeros((2, 2, 3)), ["uint8"]),
        ([PNG], ["no single image"]),
    ],
)
def test_M15_a_value_that_is_no_image_is_told_with_its_row(value, words):
    with pytest.raises(DataError) as error:
        decode.decode_image(load(value).data, where="data.jsonl:7")
    assert all(word in str(error.value) for word in ["data.jsonl:7", *words])


def test_access_to_files_and_urls_can_be_refused(folder):
    for value in ("sub/a b.png", (folder / "sub/a b.png").as_uri()):
        with pytest.raises(DataError, match="reading files is not allowed"):
            load(value, folder=folder, access=MediaAccess(files=False))
    with pytest.raises(DataError, match="fetching URLs is not allowed"):
        load("http://127.0.0.1/x.png", access=MediaAccess(urls=False))


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/x", "http://169.254.169.254/latest", "http://[::1]:9/x", "http://10.0.0.1/x"]
)
def test_private_hosts_can_be_refused(url):
    with pytest.raises(DataError, match="private address"):
        load(url, access=MediaAccess(private_hosts=False), fetch=NO_WAIT)


class Site:
    """A local web site that answers with the given statuses in turn, then with the picture."""

    def __init__(self, *statuses: int, target: str = "") -> None:
        self.requests = 0
        site, left = self, list(statuses)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.requests += 1
                status = left.pop(0) if left else 200
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", target)
                self.end_headers()
                if status == 200:
                    self.wfile.write(PNG)

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/a.png"

    def __enter__(self) -> "Site":
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_a_url_is_tried_again_with_growing_pauses():
    pauses: list[float] = []
    with Site(503, 429) as site:
        item = load(site.url, fetch=FetchPolicy(3, 5.0, 0.5, pauses.append))
        assert (item.data, item.uri, site.requests, pauses) == (PNG, site.url, 3, [0.5, 1.0])


def test_a_url_that_keeps_failing_names_row_url_and_reason():
    with Site(503, 503, 503, 503) as site:
        with pytest.raises(DataError, match=r"data.jsonl:7: cannot fetch the image 'http.*HTTP 503.*3 times"):
            load(site.url, fetch=NO_WAIT)
        assert site.requests == 3


def test_a_missing_page_is_not_tried_again():
    with Site(404) as site:
        with pytest.raises(DataError, match="HTTP 404"):
            load(site.url, fetch=NO_WAIT)
        assert site.requests == 1


def test_a_redirect_to_a_file_is_refused(folder):
    with (
        Site(302, target=(folder / "sub/a b.png").as_uri()) as site,
        pytest.raises(DataError, match=r"HTTP 302 .*not allowed"),
    ):
        load(site.url, fetch=NO_WAIT)


def test_a_page_larger_than_allowed_is_refused_at_once():
    with Site() as site:
        with pytest.raises(DataError, match="larger than 10 bytes"):
            load(site.url, access=MediaAccess(max_bytes=10), fetch=NO_WAIT)
        assert site.requests == 1


def test_retries_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("ROLLOUT_IMAGE_FETCH_ATTEMPTS", "7")
    monkeypatch.setenv("ROLLOUT_IMAGE_FETCH_TIMEOUT_S", "2.5")
    monkeypatch.setenv("ROLLOUT_IMAGE_FETCH_BACKOFF_S", "0.1")
    policy = FetchPolicy.from_environment()
    assert (policy.attempts, policy.timeout_s, policy.backoff_s) == (7, 2.5, 0.1)


# --------------------------------------------------------------------------- images


def encoded(image: Image.Image, form: str, **options) -> bytes:
    sink = io.BytesIO()
    image.save(sink, form, **options)
    return sink.getvalue()


def test_an_upright_rgb_image_keeps_its_own_bytes():
    data = encoded(Image.fromarray(PIXELS), "JPEG")
    assert load(data).data == data and load(data).mime == "image/jpeg"


def test_exif_rotation_is_applied_once():
    exif = Image.Exif()
    exif[0x0112] = 6  # stored on its side: turn by 90 degrees clockwise to see it upright
    item = load(encoded(Image.fromarray(PIXELS), "PNG", exif=exif))
    seen = np.asarray(decode.decode_image(item.data, where=""))
    assert np.array_equal(seen, np.rot90(PIXELS, -1))
    assert load(item.data).data == item.data


def test_alpha_is_composed_over_white():
    pixels = np.zeros((1, 3, 4), np.uint8)
    pixels[0, :, 3] = (0, 255, 128)  # black, fully and half transparent
    seen = np.asarray(decode.decode_image(load(encoded(Image.fromarray(pixels), "PNG")).data, where=""))
    assert seen[0].tolist() == [[255] * 3, [0] * 3, [127] * 3]


def test_grey_palette_and_deep_images_become_rgb():
    grey = np.arange(4, dtype=np.uint8).reshape(2, 2) * 60
    for image in (
        Image.fromarray(grey),
        Image.fromarray(grey).convert("P"),
        Image.fromarray(grey.astype(np.uint16) * 257),
    ):
        seen = decode.decode_image(load(encoded(image, "PNG")).data, where="")
        assert seen.mode == "RGB" and np.array_equal(np.asarray(seen)[..., 0], grey)


# --------------------------------------------------------------------------- audio


def sine(rate: int, seconds: float, hertz: float = 440.0) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)


def test_M12_stereo_at_44100_becomes_mono_at_16000():
    left = sine(44100, 1.0)
    item = load({"array": np.stack([left, np.zeros_like(left)]), "sampling_rate": 44100}, "audio")
    mono = decode.decode_audio(item.data, where="")
    assert mono.dtype == np.float32 and mono.shape == (16000,)
    inside = slice(500, -500)  # away from the filter's edges; half a sine is the mean of a sine and silence
    assert np.abs(mono[inside] - sine(16000, 1.0)[inside] / 2).max() < 1e-3


def test_audio_samples_survive_unchanged_at_the_model_rate():
    samples = np.random.RandomState(0).randn(1000).astype(np.float32)
    for value in (samples, samples.tolist(), {"array": samples, "sampling_rate": 16000, "path": "x.wav"}):
        assert np.array_equal(decode.decode_audio(load(value, "audio").data, where=""), samples)


def test_M12_a_clip_shorter_than_a_window_is_lengthened_with_silence():
    item = load({"array": np.ones(80, np.float32), "sampling_rate": 8000}, "audio")  # 0.01 s
    assert len(decode.decode_audio(item.data, where="")) == 400  # 0.025 s at 16 kHz
    long = decode.encode_wav(np.ones(400), 16000)
    assert load(long, "audio").data == long


def test_integer_samples_are_scaled():
    data = load(np.array([-32768, 16384] + [0] * 400, np.int16), "audio").data
    assert decode.decode_audio(data, where="")[:3].tolist() == [-1.0, 0.5, 0.0]


def test_equal_samples_are_equal_bytes_whenever_they_are_encoded():
    # the PEAK chunk of a float WAV carries the time of writing
    wav = decode.encode_wav(sine(16000, 0.1), 16000)
    place = wav.find(b"PEAK")
    assert place < 0 or wav[place + 12 : place + 16] == b"\0\0\0\0"


def test_audio_of_a_video_container_is_decoded():
    import av

    sink = io.BytesIO()
    with av.open(sink, "w", format="matroska") as container:
        stream = container.add_stream("pcm_s16le", rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(
            (sine(16000, 0.5) * 32000).astype(np.int16)[None], format="s16", layout="mono"
        )
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    mono = decode.decode_audio(sink.getvalue(), where="")
    assert len(mono) == 8000 and np.abs(mono - sine(16000, 0.5) * 32000 / 32768).max() < 1e-4


@pytest.mark.parametrize(
    ("value", "words"),
    [(b"no sound at all", "cannot decode the audio"), (np.array([np.nan, 0.0]), "NaN"), (np.zeros((0,)), "no audio")],
)
def test_unreadable_audio_names_the_row(value, words):
    with pytest.raises(DataError, match=f"data.jsonl:7: .*{words}"):
        decode.decode_audio(load(value, "audio").data, where="data.jsonl:7")


# --------------------------------------------------------------------------- video

FRAMES = np.random.RandomState(1).randint(0, 255, (9, 18, 22, 3), dtype=np.uint8)


def test_video_frames_survive_losslessly_in_every_form():
    of = lambda value: decode.decode_video(load(value, "video").data, where="", fps=99, factor=1).frames  # noqa: E731
    assert np.array_equal(of(FRAMES), FRAMES)
    assert np.array_equal(of(FRAMES.transpose(0, 3, 1, 2)), FRAMES)
    assert np.array_equal(of([Image.fromarray(frame) for frame in FRAMES]), FRAMES)
    assert np.array_equal(of([decode.encode_png(frame) for frame in FRAMES]), FRAMES)


def test_equal_frames_are_equal_bytes():
    assert load(FRAMES, "video").sha256 == load([Image.fromarray(frame) for frame in FRAMES], "video").sha256


def test_frames_of_different_sizes_are_refused():
    with pytest.raises(DataError, match="frames differ in size"):
        load([FRAMES[0], FRAMES[1][:4]], "video")


@pytest.mark.parametrize(
    ("total", "source_fps", "expected"),
    [
        (30, 10.0, (0, 6, 12, 17, 23, 29)),  # 3 s x 2 = 6
        (8, 8.0, (0, 2, 5, 7)),  # 1 s x 2 = 2, raised to the minimum of 4
        (3, 1.0, (0, 2)),  # fewer frames than the minimum: the even part of what there is
        (1, 25.0, (0,)),  # one frame: the processor repeats it
        (10_000, 1.0, tuple(np.linspace(0, 9999, 768).round().astype(int))),  # at most 768
    ],
)
def test_frames_are_sampled_evenly_at_two_a_second(total, source_fps, expected):
    found = decode.sample_indices(total, source_fps, fps=2.0, min_frames=4, max_frames=768, factor=2)
    assert found == expected


def test_an_unreadable_video_names_the_row():
    with pytest.raises(DataError, match=r"data.jsonl:7: cannot decode the video"):
        decode.decode_video(load(b"no frames at all", "video").data, where="data.jsonl:7")
    wav = decode.encode_wav(np.zeros(100), 16000)
    with pytest.raises(DataError, match=r"data.jsonl:7: cannot decode the video"):
        decode.decode_video(wav, where="data.jsonl:7")
