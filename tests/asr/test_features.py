"""Log-mel against the two implementations that Whisper models are used with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import whisper.audio
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor

from asr.features import SAMPLE_RATE, WINDOW_FRAMES, WINDOW_SAMPLES, LogMel, padded, silence_level

TOLERANCE = 1e-4
SECONDS = [0.05, 1.0, 7.3, 7.30004, 29.99, 30.0]
START = 3 * SAMPLE_RATE  # in the middle of a word, so that nothing fades at the cut


@pytest.fixture(scope="module", params=[80, 128])
def n_mels(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def window(waveform: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    return padded(LogMel(n_mels)(waveform), WINDOW_FRAMES)


def openai_window(waveform: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    """As `whisper.transcribe` does it: 30 s of silence follow the waveform."""
    log_mel = whisper.audio.log_mel_spectrogram(waveform, n_mels, padding=WINDOW_SAMPLES)
    features: NDArray[np.float32] = whisper.audio.pad_or_trim(log_mel, WINDOW_FRAMES).numpy()
    return features


def transformers_window(waveform: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    extractor: Any = WhisperFeatureExtractor(feature_size=n_mels)  # type: ignore[no-untyped-call]
    extracted = extractor(waveform, sampling_rate=SAMPLE_RATE, return_tensors="np")["input_features"][0]
    features: NDArray[np.float32] = extracted
    return features


@pytest.mark.parametrize("seconds", SECONDS)
def test_speech_in_a_window_equals_openai(speech: NDArray[np.float32], n_mels: int, seconds: float) -> None:
    excerpt = speech[START : START + round(seconds * SAMPLE_RATE)]

    np.testing.assert_allclose(window(excerpt, n_mels), openai_window(excerpt, n_mels), atol=TOLERANCE)


@pytest.mark.parametrize("seconds", SECONDS)
def test_speech_in_a_window_equals_transformers(speech: NDArray[np.float32], n_mels: int, seconds: float) -> None:
    excerpt = speech[START : START + round(seconds * SAMPLE_RATE)]
    ours, theirs = window(excerpt, n_mels), transformers_window(excerpt, n_mels)

    # Their last frame hears the window's end mirrored, not followed by silence: another value if speech goes on there.
    np.testing.assert_allclose(ours[:, :-1], theirs[:, :-1], atol=TOLERANCE)


def test_digital_silence_equals_both(n_mels: int) -> None:
    silence = np.zeros(SAMPLE_RATE, np.float32)
    ours = window(silence, n_mels)

    np.testing.assert_array_equal(ours, np.full((n_mels, WINDOW_FRAMES), -1.5, np.float32))
    np.testing.assert_allclose(ours, openai_window(silence, n_mels), atol=TOLERANCE)
    np.testing.assert_allclose(ours, transformers_window(silence, n_mels), atol=TOLERANCE)


@pytest.mark.parametrize(
    ("samples", "frames"),
    [(1, 2), (121, 2), (122, 3), (160, 3), (16_000, 102), (WINDOW_SAMPLES - 400, 2999)]
    + [(samples, WINDOW_FRAMES) for samples in (WINDOW_SAMPLES - 160, WINDOW_SAMPLES)],
)
def test_there_are_as_many_frames_as_hear_the_waveform(samples: int, frames: int) -> None:
    """Frame k hears the 25 ms around sample 160 k; the window function is zero at the first sample of them."""
    noise = np.random.default_rng(0).standard_normal(samples, np.float32)

    assert LogMel(80)(noise).shape == (80, frames)


def test_the_waveform_stays_untouched(speech: NDArray[np.float32]) -> None:
    excerpt = speech[:SAMPLE_RATE].copy()
    LogMel(80)(excerpt)

    np.testing.assert_array_equal(excerpt, speech[:SAMPLE_RATE])


def test_silence_level_is_what_silence_has_in_the_same_window(speech: NDArray[np.float32]) -> None:
    half = speech[START : START + SAMPLE_RATE]
    with_silence = LogMel(80)(np.concatenate([half, np.zeros(SAMPLE_RATE, np.float32)]))

    assert silence_level(LogMel(80)(half)) == pytest.approx(float(with_silence[:, -10:].max()), abs=1e-6)


def test_silence_level_of_quiet_sound_is_the_floor() -> None:
    assert silence_level(np.full((80, 10), -1.4, np.float32)) == -1.5


def test_padding_adds_silence_behind_and_never_cuts() -> None:
    features = torch.linspace(-0.9, 1.0, 20).reshape(2, 10).numpy()

    np.testing.assert_array_equal(padded(features, 12)[:, :10], features)
    np.testing.assert_array_equal(padded(features, 12)[:, 10:], np.full((2, 2), -1.0, np.float32))
    np.testing.assert_array_equal(padded(features, 10), features)
    np.testing.assert_array_equal(padded(features, 4), features)
