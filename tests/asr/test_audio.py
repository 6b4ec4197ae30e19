"""Bytes → waveform, over files that are written here as users' programs write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from asr.audio import decode_audio, downmix
from asr.errors import AudioDecodeError
from tests.asr.sound_files import CODEC_DELAY_S, SAID_S, encode, float_wav, level, likeness, pcm16, seconds, video, wav
from tests.odd_formats import ENTRIES, FORMATS


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


@pytest.mark.parametrize(("container", "codec"), [("ac3", "ac3"), ("mp3", "libmp3lame")])
def test_a_compressed_stream_that_a_wav_declares_as_samples(
    said: NDArray[np.float32], container: str, codec: str
) -> None:
    heard = decode_audio(wav(encode(said, container, codec, rate=48_000), rate=48_000))

    assert seconds(heard) == pytest.approx(SAID_S, abs=CODEC_DELAY_S)
    assert likeness(heard, said) > 0.9


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
