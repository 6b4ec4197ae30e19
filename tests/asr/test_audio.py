"""Bytes → waveform, over files that are written here as users' programs write them."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
import torchaudio
from av.audio.stream import AudioStream
from av.video.stream import VideoStream
from numpy.typing import NDArray

from asr.audio import decode_audio, downmix
from asr.errors import AudioDecodeError
from asr.features import SAMPLE_RATE

SAID_S = 3.0
CODEC_DELAY_S = 0.15
"""What a lossy codec may add at the ends of a recording."""

FORMATS = Path(__file__).parents[3] / "shared" / "formats"
MANIFEST = FORMATS / "manifest.jsonl"
SESSION = b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 5004 RTP/AVP 0\r\n"
"""Has FFmpeg listen on a port for what others send."""
NO_FORMATS = pytest.param({}, id="absent", marks=pytest.mark.skip(reason=f"there is no {MANIFEST}"))
ENTRIES = (
    [pytest.param(entry, id=entry["file"]) for entry in map(json.loads, MANIFEST.read_text("utf-8").splitlines())]
    if MANIFEST.is_file()
    else [NO_FORMATS]
)


@pytest.fixture(scope="module")
def said(speech: NDArray[np.float32]) -> NDArray[np.float32]:
    """3 s of speech without a pause, at 16 kHz, no louder than 0.5."""
    excerpt = speech[round(13.4 * SAMPLE_RATE) :][: round(SAID_S * SAMPLE_RATE)]
    scaled: NDArray[np.float32] = excerpt / np.abs(excerpt).max() / 2
    return scaled


@pytest.fixture(scope="module")
def said_as_wav(said: NDArray[np.float32]) -> bytes:
    return encode(said, "wav", "pcm_s16le")


def encode(
    channels: NDArray[np.float32],
    container: str,
    codec: str,
    *,
    rate: int = SAMPLE_RATE,
    layout: str = "mono",
    metadata: dict[str, str] | None = None,
) -> bytes:
    """channels: (samples,) or (channels, samples) at 16 kHz → a file at `rate`."""
    wanted = torchaudio.functional.resample(torch.from_numpy(np.atleast_2d(channels)), SAMPLE_RATE, rate).numpy()
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(wanted), format="fltp", layout=layout)
    frame.sample_rate = rate
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        output.metadata.update(metadata or {})
        stream: AudioStream = output.add_stream(codec, rate=rate, layout=layout)
        sized = av.AudioResampler(stream.format, layout, rate, frame_size=stream.codec_context.frame_size or None)
        for piece in [*sized.resample(frame), *sized.resample(None), None]:
            output.mux(stream.encode(piece))
    return buffer.getvalue()


def wav(samples: bytes, *, rate: int = SAMPLE_RATE, length: int | None = None, chunks: bytes = b"") -> bytes:
    """16-bit mono. length: in bytes, that the header claims; chunks: of their own, before the samples."""
    length = len(samples) if length is None else length
    riff = min(36 + len(chunks) + length, 0xFFFFFFFF)
    header = struct.pack(
        "<4sI4s4sIHHIIHH", b"RIFF", riff, b"WAVE", b"fmt ", 16, 1, 1, rate, min(2 * rate, 2**31), 2, 16
    )
    return header + chunks + struct.pack("<4sI", b"data", length) + samples


def pcm16(waveform: NDArray[np.float32]) -> bytes:
    return np.round(waveform * 32767).astype("<i2").tobytes()


def float_wav(waveform: NDArray[np.float32]) -> bytes:
    samples = waveform.astype("<f4").tobytes()
    header = struct.pack(
        "<4sI4s4sIHHIIHH", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", 16, 3, 1, 16_000, 64_000, 4, 32
    )
    return header + struct.pack("<4sI", b"data", len(samples)) + samples


def video(audio: NDArray[np.float32] | None = None) -> bytes:
    """A second of moving pictures, with this sound if any."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        pictures: VideoStream = output.add_stream("mpeg4", rate=10, width=64, height=48)
        sound: AudioStream | None = (
            output.add_stream("aac", rate=SAMPLE_RATE, layout="mono") if audio is not None else None
        )
        for shade in range(10):
            picture = av.VideoFrame.from_ndarray(np.full((48, 64, 3), shade * 20, np.uint8), format="rgb24")
            output.mux(pictures.encode(picture))
        output.mux(pictures.encode(None))
        if sound is not None and audio is not None:
            frame = av.AudioFrame.from_ndarray(audio[None], format="fltp", layout="mono")
            frame.sample_rate = SAMPLE_RATE
            sized = av.AudioResampler(sound.format, "mono", SAMPLE_RATE, frame_size=sound.codec_context.frame_size)
            for piece in [*sized.resample(frame), *sized.resample(None), None]:
                output.mux(sound.encode(piece))
    return buffer.getvalue()


def seconds(waveform: NDArray[np.float32]) -> float:
    return len(waveform) / SAMPLE_RATE


def level(waveform: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.mean(np.square(waveform))))


def likeness(heard: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The correlation of the two at the delay where they agree best, at most 1."""
    size = len(heard) + len(expected)
    products = np.fft.irfft(np.fft.rfft(heard, size) * np.conj(np.fft.rfft(expected, size)), size)
    return float(products.max() / (np.linalg.norm(heard) * np.linalg.norm(expected)))


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [
        ("wav", "pcm_s16le", 16_000),
        ("wav", "pcm_s16le", 44_100),
        ("wav", "pcm_s24le", 48_000),
        ("wav", "pcm_f32le", 16_000),
        ("wav", "pcm_u8", 22_050),
        ("wav", "pcm_mulaw", 8_000),
        ("wav", "pcm_alaw", 8_000),
        ("flac", "flac", 16_000),
        ("mp3", "libmp3lame", 44_100),
        ("ogg", "libopus", 48_000),
        ("webm", "libopus", 48_000),
        ("ipod", "aac", 44_100),
        ("adts", "aac", 16_000),
    ],
)
def test_a_recording_is_heard_whatever_it_is_encoded_in(
    said: NDArray[np.float32], container: str, codec: str, rate: int
) -> None:
    heard = decode_audio(encode(said, container, codec, rate=rate))

    assert heard.dtype == np.float32
    assert heard.ndim == 1
    assert seconds(heard) == pytest.approx(SAID_S, abs=CODEC_DELAY_S)
    assert likeness(heard, said) > 0.9  # half a sample of delay or 4 kHz of bandwidth cost some of it
    assert level(heard) == pytest.approx(level(said), rel=0.1)


def test_lossless_samples_come_out_as_they_went_in(said: NDArray[np.float32]) -> None:
    np.testing.assert_array_equal(decode_audio(float_wav(said)), said)
    np.testing.assert_allclose(decode_audio(wav(pcm16(said))), said, atol=1 / 32768)


@pytest.mark.parametrize(
    ("layout", "channels"),
    [
        ("stereo", [1, 1]),
        ("stereo", [1, 0]),
        ("stereo", [0, 1]),
        ("stereo", [1, -1]),
        ("5.1", [0, 0, 1, 0, 0, 0]),
        ("5.1", [1, 1, 1, 1, 1, 1]),
    ],
)
def test_speech_is_heard_on_whatever_channels_it_is(
    said: NDArray[np.float32], layout: str, channels: list[int]
) -> None:
    heard = decode_audio(
        encode(np.outer(channels, said).astype(np.float32), "wav", "pcm_s16le", rate=48_000, layout=layout)
    )

    assert seconds(heard) == pytest.approx(SAID_S, abs=0.001)
    assert abs(float(np.corrcoef(heard[: len(said)], said[: len(heard)])[0, 1])) > 0.99
    assert level(heard) == pytest.approx(level(said), rel=0.05)


def test_the_sound_of_a_video(said: NDArray[np.float32]) -> None:
    heard = decode_audio(video(said))

    assert seconds(heard) == pytest.approx(SAID_S, abs=CODEC_DELAY_S)
    assert likeness(heard, said) > 0.97


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFFFFF, 3 * 96_000])
def test_a_wav_header_that_claims_more_than_follows(said: NDArray[np.float32], length: int) -> None:
    np.testing.assert_allclose(decode_audio(wav(pcm16(said), length=length)), said, atol=1 / 32768)


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [
        ("wav", "pcm_s16le", 16_000),
        ("flac", "flac", 16_000),
        ("mp3", "libmp3lame", 16_000),
        ("ogg", "libopus", 48_000),
        ("webm", "libopus", 48_000),
        ("adts", "aac", 16_000),
    ],
)
def test_what_is_there_of_a_file_whose_end_is_cut(
    speech: NDArray[np.float32], container: str, codec: str, rate: int
) -> None:
    recording = speech[5 * SAMPLE_RATE : 17 * SAMPLE_RATE]
    content = encode(recording, container, codec, rate=rate)
    heard = decode_audio(content[: len(content) * 2 // 3])

    assert 6 < seconds(heard) < 10
    assert likeness(heard[: 6 * SAMPLE_RATE], recording[: 6 * SAMPLE_RATE]) > 0.95


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [
        ("wav", "pcm_s16le", 16_000),
        ("flac", "flac", 16_000),
        ("mp3", "libmp3lame", 16_000),
        ("ogg", "libopus", 48_000),
        ("ipod", "aac", 16_000),
        ("adts", "aac", 16_000),
    ],
)
def test_what_is_before_and_after_a_damaged_middle(
    speech: NDArray[np.float32], container: str, codec: str, rate: int
) -> None:
    recording = speech[5 * SAMPLE_RATE : 17 * SAMPLE_RATE]
    content = bytearray(encode(recording, container, codec, rate=rate))
    middle = len(content) // 2
    content[middle : middle + len(content) // 12] = np.random.default_rng(0).bytes(len(content) // 12)
    heard = decode_audio(bytes(content))

    assert seconds(heard) > 9
    assert likeness(heard[: 4 * SAMPLE_RATE], recording[: 4 * SAMPLE_RATE]) > 0.9
    assert likeness(heard[-4 * SAMPLE_RATE :], recording[-4 * SAMPLE_RATE :]) > 0.9


@pytest.mark.parametrize(("container", "codec"), [("mp3", "libmp3lame"), ("adts", "aac")])
@pytest.mark.parametrize(("first", "second"), [((16_000, 1), (44_100, 2)), ((44_100, 2), (16_000, 1))])
def test_a_track_whose_format_changes_on_the_way(
    said: NDArray[np.float32], container: str, codec: str, first: tuple[int, int], second: tuple[int, int]
) -> None:
    parts = [
        encode(np.stack([said] * count), container, codec, rate=rate, layout={1: "mono", 2: "stereo"}[count])
        for rate, count in (first, second)
    ]
    heard = decode_audio(b"".join(parts))

    assert seconds(heard) == pytest.approx(2 * SAID_S, abs=2 * CODEC_DELAY_S)
    assert likeness(heard[: len(heard) // 2], said) > 0.9
    assert likeness(heard[len(heard) // 2 :], said) > 0.9


def test_tags_that_are_not_utf8(said: NDArray[np.float32]) -> None:
    tag = struct.pack("<4sI6s", b"INAM", 6, "café\0".encode("cp1252"))
    tags = struct.pack("<4sI4s", b"LIST", 4 + len(tag), b"INFO") + tag

    assert seconds(decode_audio(wav(pcm16(said), chunks=tags))) == SAID_S


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_samples_that_are_no_sound_do_not_spoil_the_rest(said: NDArray[np.float32], value: float) -> None:
    broken = said.copy()
    broken[1000:1010] = value
    heard = decode_audio(float_wav(broken))

    assert np.abs(heard).max() <= 1.0  # false for NaN, too
    np.testing.assert_array_equal(np.delete(heard, slice(1000, 1010)), np.delete(said, slice(1000, 1010)))


def test_a_recording_without_samples_is_empty() -> None:
    heard = decode_audio(wav(b""))

    assert heard.shape == (0,)
    assert heard.dtype == np.float32


def test_a_wav_header_alone_that_claims_samples_is_empty() -> None:
    assert decode_audio(wav(b"", length=96_000)).shape == (0,)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"", "it is empty", id="nothing"),
        pytest.param(b"R", "not recognised", id="one byte"),
        pytest.param(b"Dear server, please transcribe this.\n" * 50, "not recognised", id="text"),
        pytest.param(b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "not recognised", id="html"),
        pytest.param(b"1\n00:00:01,000 --> 00:00:02,000\nHi\n", "no audio track", id="subtitles"),
        pytest.param(bytes(4096), "not recognised", id="zeros"),
        pytest.param(np.random.default_rng(0).bytes(4096), "not recognised", id="noise"),
        pytest.param(SESSION, "not recognised", id="session description"),
        pytest.param(wav(bytes(1000), rate=0), "not recognised", id="0 Hz"),
        pytest.param(video(), "no audio track", id="silent film"),
    ],
)
def test_what_is_no_audio_is_refused_with_a_reason(content: bytes, reason: str) -> None:
    with pytest.raises(AudioDecodeError, match=f"^The file cannot be transcribed: .*{reason}"):
        decode_audio(content)


def test_a_webm_header_alone_is_refused(said: NDArray[np.float32]) -> None:
    content = encode(said, "webm", "libopus", rate=48_000)
    header = content[: content.index(b"\x1f\x43\xb6\x75")]  # up to the first cluster

    with pytest.raises(AudioDecodeError, match="damaged"):
        decode_audio(header)


def test_a_codec_that_is_not_known_is_refused(said: NDArray[np.float32]) -> None:
    content = encode(said, "webm", "libopus", rate=48_000).replace(b"A_OPUS", b"A_NONE")

    with pytest.raises(AudioDecodeError, match="codec that is not supported"):
        decode_audio(content)


@pytest.mark.parametrize("rate", [1, 400_000_000, 2**31 - 1])
def test_a_forged_sample_rate_is_refused(rate: int) -> None:
    """A second of samples at 1 Hz would become hours; the filter for 400 MHz takes seconds to make."""
    with pytest.raises(AudioDecodeError, match="sample rate"):
        decode_audio(wav(bytes(32_000), rate=rate))


@pytest.mark.parametrize(
    "playlist",
    [
        "ffconcat version 1.0\nfile secret.wav\n",
        "ffconcat version 1.0\nfile '{folder}/secret.wav'\n",
        "ffconcat version 1.0\nfile 'file:{folder}/secret.wav'\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nsecret.wav\n#EXT-X-ENDLIST\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:{folder}/secret.wav\n#EXT-X-ENDLIST\n",
    ],
)
def test_an_upload_cannot_name_a_file_of_the_server(
    playlist: str, said_as_wav: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.wav").write_bytes(said_as_wav)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(AudioDecodeError, match="not recognised"):
        decode_audio(playlist.format(folder=tmp_path).encode())


def test_ffmpeg_left_to_itself_reads_what_an_upload_names(
    said_as_wav: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above would prove nothing otherwise."""
    (tmp_path / "secret.wav").write_bytes(said_as_wav)
    monkeypatch.chdir(tmp_path)

    with av.open(io.BytesIO(b"ffconcat version 1.0\nfile secret.wav\n")) as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) == SAID_S * SAMPLE_RATE


@pytest.mark.parametrize(
    ("channels", "mix"),
    [
        pytest.param([[0.1, -0.2, 0.3]], [0.1, -0.2, 0.3], id="mono"),
        pytest.param([[0.2, 0.4, 0.0], [0.4, 0.0, 0.2]], [0.3, 0.2, 0.1], id="mean of two"),
        pytest.param([[0.2, -0.4, 0.6], [0.0, 0.0, 0.0]], [0.2, -0.4, 0.6], id="right silent"),
        pytest.param([[0.001, 0.001, 0.001], [0.2, -0.4, 0.6]], [0.2, -0.4, 0.6], id="left hums"),
        pytest.param([[0.2, -0.4, 0.6], [-0.2, 0.4, -0.6]], [0.2, -0.4, 0.6], id="antiphase"),
        pytest.param([[0.2, -0.4, 0.6], [-0.21, 0.42, -0.63]], [-0.21, 0.42, -0.63], id="antiphase, right louder"),
        pytest.param([[0, 0], [0, 0], [0.5, -0.5], [0, 0], [0, 0], [0, 0]], [0.5, -0.5], id="centre only"),
        pytest.param([[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0], id="silence"),
        pytest.param([[], []], [], id="no samples"),
    ],
)
def test_downmix(channels: list[list[float]], mix: list[float]) -> None:
    mixed = downmix(np.array(channels, np.float32))

    np.testing.assert_allclose(mixed, np.array(mix, np.float32), rtol=1e-6)
    assert mixed.dtype == np.float32


@pytest.mark.parametrize("entry", ENTRIES)
def test_odd_encodings(entry: dict[str, Any]) -> None:
    content = (FORMATS / entry["file"]).read_bytes()
    if entry["expect"] == "4xx":
        with pytest.raises(AudioDecodeError):
            decode_audio(content)
        return
    try:
        heard = decode_audio(content)
    except AudioDecodeError:
        assert "4xx" in entry["expect"]
        return
    assert np.isfinite(heard).all()
    if entry["expect"] == "text" and entry["base"] == "en-ls-quilter":
        plain = decode_audio((FORMATS / "plain-16k.wav").read_bytes())
        assert seconds(heard) == pytest.approx(seconds(plain), abs=0.7)
        assert level(heard) == pytest.approx(level(plain), rel=0.3)
    elif "text" in entry["expect"]:
        assert level(heard) > 0.005
