"""Silero's network as products of matrices beside its own graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from silero_vad import load_silero_vad

from asr.features import SAMPLE_RATE
from asr.vad_network import BLOCK_SAMPLES, FRAME_SAMPLES, SpeechNetwork, as_matrix

TOLERANCE = 1e-4
"""Of a probability. Each is some 1e-5 at most from what the network gives in 64 bits."""


@pytest.fixture(scope="module")
def network() -> SpeechNetwork:
    return SpeechNetwork()


@pytest.fixture(scope="module")
def silero() -> Any:
    return load_silero_vad(sequence=True)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("samples", [1, FRAME_SAMPLES - 1, FRAME_SAMPLES, FRAME_SAMPLES + 1, 3 * SAMPLE_RATE])
def test_speech_of_any_length(network: SpeechNetwork, silero: Any, speech: NDArray[np.float32], samples: int) -> None:
    excerpt = speech[3 * SAMPLE_RATE :][:samples]
    probabilities = network(excerpt)

    assert probabilities.shape == (-(-samples // FRAME_SAMPLES),)
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities, silero.audio_forward(excerpt), atol=TOLERANCE)


def test_a_recording_of_several_blocks_is_heard_as_one(
    network: SpeechNetwork, silero: Any, speech: NDArray[np.float32]
) -> None:
    assert len(speech) > 2 * BLOCK_SAMPLES
    probabilities = network(speech)

    np.testing.assert_allclose(probabilities, silero.audio_forward(speech), atol=TOLERANCE)
    whole = silero.audio_forward(speech, max_frames=len(probabilities))
    np.testing.assert_allclose(probabilities, whole, atol=TOLERANCE)


def test_a_recording_that_ends_with_a_block(network: SpeechNetwork, silero: Any, speech: NDArray[np.float32]) -> None:
    excerpt = speech[: 2 * BLOCK_SAMPLES]

    np.testing.assert_allclose(network(excerpt), silero.audio_forward(excerpt), atol=TOLERANCE)


@pytest.mark.parametrize("level", [0.0, 1e-6, 0.1, 1.0])
def test_sound_that_is_no_speech(network: SpeechNetwork, silero: Any, level: float) -> None:
    noise = np.random.default_rng(0).uniform(-level, level, 5 * SAMPLE_RATE).astype(np.float32)

    np.testing.assert_allclose(network(noise), silero.audio_forward(noise), atol=TOLERANCE)


def test_of_nothing_there_is_nothing(network: SpeechNetwork) -> None:
    assert network(np.zeros(0, np.float32)).shape == (0,)


@pytest.mark.parametrize(("positions", "stride"), [(4, 1), (4, 2), (2, 2), (1, 1), (5, 2)])
def test_a_convolution_is_the_product_with_a_matrix(positions: int, stride: int) -> None:
    values = torch.randn(7, 3, positions, generator=torch.Generator().manual_seed(0))
    kernel = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(1))
    expected = torch.nn.functional.conv1d(values, kernel, stride=stride, padding=1)

    rows = values.transpose(1, 2).flatten(1).numpy() @ as_matrix(kernel.numpy(), positions, stride)

    np.testing.assert_allclose(rows, expected.transpose(1, 2).flatten(1).numpy(), rtol=1e-5, atol=1e-5)
