"""What is heard of files that are cut short, damaged or odd."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from numpy.typing import NDArray

from asr.audio import decode_audio
from asr.features import SAMPLE_RATE
from tests.asr.sound_files import CODEC_DELAY_S, SAID_S, encode, float_wav, likeness, pcm16, seconds, wav

CONTAINERS = [
    ("wav", "pcm_s16le", 16_000),
    ("flac", "flac", 16_000),
    ("mp3", "libmp3lame", 16_000),
    ("ogg", "libopus", 48_000),
    ("adts", "aac", 16_000),
]
"""Container, codec, rate: the rest is heard where the end is cut, and where the middle is damaged."""


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFFFFF, 3 * 96_000])
def test_a_wav_header_that_claims_more_than_follows(said: NDArray[np.float32], length: int) -> None:
    np.testing.assert_allclose(decode_audio(wav(pcm16(said), length=length)), said, atol=1 / 32768)


@pytest.mark.parametrize(("container", "codec", "rate"), [*CONTAINERS, ("webm", "libopus", 48_000)])
def test_what_is_there_of_a_file_whose_end_is_cut(
    speech: NDArray[np.float32], container: str, codec: str, rate: int
) -> None:
    recording = speech[5 * SAMPLE_RATE : 17 * SAMPLE_RATE]
    content = encode(recording, container, codec, rate=rate)
    heard = decode_audio(content[: len(content) * 2 // 3])

    assert 6 < seconds(heard) < 10
    assert likeness(heard[: 6 * SAMPLE_RATE], recording[: 6 * SAMPLE_RATE]) > 0.95


@pytest.mark.parametrize(("container", "codec", "rate"), [*CONTAINERS, ("ipod", "aac", 16_000)])
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
