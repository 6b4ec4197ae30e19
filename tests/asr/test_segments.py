"""From a recording to what the model hears of it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from asr.features import SAMPLE_RATE, WINDOW_FRAMES, LogMel
from asr.segments import Segment, Segmenter


@pytest.fixture(scope="module", params=[80, 128])
def n_mels(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def segmenter() -> Segmenter:
    return Segmenter(80)


@pytest.fixture(scope="module")
def long_recording(speech: NDArray[np.float32]) -> NDArray[np.float32]:
    """142 s: the reading three times, with pauses of 5 s."""
    pause = np.zeros(5 * SAMPLE_RATE, np.float32)
    return np.concatenate([speech, pause, speech, pause, speech])


def excerpt(waveform: NDArray[np.float32], segment: Segment) -> NDArray[np.float32]:
    return waveform[round(segment.start_s * SAMPLE_RATE) : round(segment.end_s * SAMPLE_RATE)]


def test_a_long_recording_in_order(segmenter: Segmenter, long_recording: NDArray[np.float32]) -> None:
    segments = segmenter(long_recording)

    edges_s = [edge for segment in segments for edge in (segment.start_s, segment.end_s)]
    assert edges_s == sorted(edges_s)
    assert edges_s[0] >= 0
    assert edges_s[-1] <= len(long_recording) / SAMPLE_RATE
    assert all(segment.end_s - segment.start_s <= 30 for segment in segments)
    assert all(0 < segment.log_mel.shape[1] <= WINDOW_FRAMES for segment in segments)


def test_a_long_recording_in_few_segments(segmenter: Segmenter, long_recording: NDArray[np.float32]) -> None:
    """Windows are filled as far as the pauses between words allow."""
    segments = segmenter(long_recording)

    lengths_s = sorted(segment.end_s - segment.start_s for segment in segments)
    assert 5 <= len(segments) <= 6
    assert all(length_s > 20 for length_s in lengths_s[-4:])
    assert 3 * 40 < sum(lengths_s) <= len(long_recording) / SAMPLE_RATE


def test_features_are_those_of_the_stretch(speech: NDArray[np.float32], n_mels: int) -> None:
    segments = Segmenter(n_mels)(speech)

    assert len(segments) == 2
    for segment in segments:
        np.testing.assert_array_equal(segment.log_mel, LogMel(n_mels)(excerpt(speech, segment)))
        assert segment.log_mel.shape[0] == n_mels


def test_positions_are_those_in_the_recording(segmenter: Segmenter, speech: NDArray[np.float32]) -> None:
    words = speech[round(13.5 * SAMPLE_RATE) : round(16.5 * SAMPLE_RATE)]
    pause = np.zeros(40 * SAMPLE_RATE, np.float32)
    segments = segmenter(np.concatenate([pause, words, pause, words]))

    assert [segment.start_s for segment in segments] == pytest.approx([40, 83], abs=0.3)
    assert [segment.end_s for segment in segments] == pytest.approx([43, 86], abs=0.3)


@pytest.mark.parametrize("samples", [0, 1, 800])
def test_what_is_too_short_to_be_speech(segmenter: Segmenter, speech: NDArray[np.float32], samples: int) -> None:
    assert segmenter(speech[14 * SAMPLE_RATE :][:samples]) == []


def test_half_a_second_of_speech(segmenter: Segmenter, speech: NDArray[np.float32]) -> None:
    (segment,) = segmenter(speech[14 * SAMPLE_RATE :][: SAMPLE_RATE // 2])

    assert segment.end_s - segment.start_s == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("level", [0.0, 0.1])
def test_without_speech_there_is_nothing_to_recognise(segmenter: Segmenter, level: float) -> None:
    sound = np.random.default_rng(0).standard_normal(10 * SAMPLE_RATE, np.float32) * np.float32(level)

    assert segmenter(sound) == []
