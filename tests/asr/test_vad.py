"""Where speech is found, and that nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from asr.features import SAMPLE_RATE, WINDOW_SAMPLES
from asr.vad import Span, SpeechDetector, pack

TOLERANCE_S = 0.5  # padding of 0.2 s, and words do not end at once


@pytest.fixture(scope="module")
def detect_speech() -> SpeechDetector:
    return SpeechDetector()


@pytest.fixture(scope="module")
def words(speech: NDArray[np.float32]) -> NDArray[np.float32]:
    """3 s of speech without a pause."""
    return speech[round(13.5 * SAMPLE_RATE) : round(16.5 * SAMPLE_RATE)]


@pytest.fixture(scope="module")
def gapless(speech: NDArray[np.float32]) -> NDArray[np.float32]:
    """90 s of speech without any pause that it could be cut at: only what is loud of the recording, over and over."""
    frames = speech[: len(speech) // 160 * 160].reshape(-1, 160)
    loud: NDArray[np.float32] = frames[np.sqrt(np.mean(np.square(frames), axis=1)) > 0.02].reshape(-1)
    return np.resize(loud, 90 * SAMPLE_RATE)


def silence(seconds: float) -> NDArray[np.float32]:
    return np.zeros(round(seconds * SAMPLE_RATE), np.float32)


def noise(seconds: float, level: float) -> NDArray[np.float32]:
    return level * np.random.default_rng(0).standard_normal(round(seconds * SAMPLE_RATE), np.float32)


def check_order(spans: list[Span], samples: int) -> None:
    """Spans are within the waveform, apart from each other, and fit the model's window."""
    edges = [edge for span in spans for edge in (span.start, span.end)]
    assert edges == sorted(edges)
    assert all(0 < span.samples <= WINDOW_SAMPLES for span in spans)
    assert all(0 <= edge <= samples for edge in edges)


@pytest.mark.parametrize("level", [0.001, 0.1, 0.3])
def test_noise_is_no_speech(detect_speech: SpeechDetector, level: float) -> None:
    assert detect_speech(noise(10, level)) == []


@pytest.mark.parametrize("seconds", [0, 1 / SAMPLE_RATE, 0.05, 10])
def test_silence_is_no_speech(detect_speech: SpeechDetector, seconds: float) -> None:
    assert detect_speech(silence(seconds)) == []


@pytest.mark.parametrize("between", [silence(2), noise(2, 0.001)], ids=["silence", "faint noise"])
def test_speech_between_pauses(
    detect_speech: SpeechDetector, words: NDArray[np.float32], between: NDArray[np.float32]
) -> None:
    spans = detect_speech(np.concatenate([between, words, between, words, between]))

    starts_s, ends_s = zip(*((span.start / SAMPLE_RATE, span.end / SAMPLE_RATE) for span in spans), strict=True)
    assert starts_s == pytest.approx((2, 7), abs=TOLERANCE_S)
    assert ends_s == pytest.approx((5, 10), abs=TOLERANCE_S)


@pytest.mark.parametrize("seconds", [0.5, 1.0])
def test_a_short_word_is_speech(detect_speech: SpeechDetector, words: NDArray[np.float32], seconds: float) -> None:
    samples = round(seconds * SAMPLE_RATE)
    spans = detect_speech(words[:samples])

    assert sum(span.samples for span in spans) > 0.8 * samples
    check_order(spans, samples)


def test_what_was_heard_before_does_not_matter(
    detect_speech: SpeechDetector, speech: NDArray[np.float32], words: NDArray[np.float32]
) -> None:
    before = detect_speech(words)
    detect_speech(speech)

    assert detect_speech(words) == before


def test_spans_of_a_recording_are_in_order(detect_speech: SpeechDetector, speech: NDArray[np.float32]) -> None:
    spans = detect_speech(speech)

    check_order(spans, len(speech))
    assert sum(span.samples for span in spans) > 0.8 * len(speech)


def test_speech_without_pauses_is_cut_to_the_window(
    detect_speech: SpeechDetector, gapless: NDArray[np.float32]
) -> None:
    spans = detect_speech(gapless)

    check_order(spans, len(gapless))
    assert len(spans) <= 5
    assert sum(span.samples for span in spans) > 0.98 * len(gapless)


@pytest.mark.parametrize(
    ("spans", "packed"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([(5, 9)], [(5, 9)], id="one"),
        pytest.param([(0, 4), (5, 9), (9, 10)], [(0, 10)], id="all fit, exactly"),
        pytest.param([(0, 4), (5, 11)], [(0, 4), (5, 11)], id="one sample too many"),
        pytest.param([(2, 6), (7, 12), (13, 14), (15, 18)], [(2, 12), (13, 18)], id="two and two"),
        pytest.param([(0, 10), (10, 20), (20, 21)], [(0, 10), (10, 20), (20, 21)], id="each next to full"),
        pytest.param([(0, 1), (30, 31), (33, 35)], [(0, 1), (30, 35)], id="a long pause"),
    ],
)
def test_pack(spans: list[tuple[int, int]], packed: list[tuple[int, int]]) -> None:
    assert pack([Span(*span) for span in spans], 10) == [Span(*span) for span in packed]


def test_pack_leaves_its_argument_alone() -> None:
    spans = [Span(0, 4), Span(5, 9)]
    pack(spans, 10)

    assert spans == [Span(0, 4), Span(5, 9)]
