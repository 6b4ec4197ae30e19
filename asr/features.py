"""Log-mel features, as Whisper was trained on them (openai/whisper, audio.py)."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torchaudio.transforms import MelSpectrogram

SAMPLE_RATE = 16_000  # Hz
FFT_SAMPLES = 400  # 25 ms
HOP_SAMPLES = 160  # 10 ms
FRAMES_PER_SECOND = SAMPLE_RATE // HOP_SAMPLES  # 100
WINDOW_S = 30  # the model's context
WINDOW_FRAMES = WINDOW_S * FRAMES_PER_SECOND  # 3000
WINDOW_SAMPLES = WINDOW_S * SAMPLE_RATE  # 480,000

DYNAMIC_RANGE = 8.0  # powers of ten below the loudest value that are kept
SMALLEST_POWER = 1e-10


class LogMel:
    """Waveform → log-mel. One instance may be shared by threads."""

    def __init__(self, n_mels: int) -> None:
        self.n_mels = n_mels
        self._mel_spectrogram = MelSpectrogram(
            SAMPLE_RATE, FFT_SAMPLES, hop_length=HOP_SAMPLES, n_mels=n_mels, norm="slaney", mel_scale="slaney"
        )

    def __call__(self, waveform: NDArray[np.float32]) -> NDArray[np.float32]:
        """waveform: (samples,) float32 at 16 kHz, at most 30 s → (n_mels, frames) float32, 100 frames a second.

        The result ends with the last frame that hears the waveform, one or two beyond its end: a frame hears 12.5 ms on
        either side of its middle. What the model is padded with after it is silence: `padded`.
        """
        edge = FFT_SAMPLES // 2
        frames = min(WINDOW_FRAMES, (len(waveform) + edge - 2) // HOP_SAMPLES + 1)  # the window function begins with 0
        # Silence follows the waveform, as in a padded window, rather than its mirror image.
        samples = torch.nn.functional.pad(torch.from_numpy(waveform), (0, frames * HOP_SAMPLES - len(waveform) + edge))
        with torch.inference_mode():
            power = self._mel_spectrogram(samples)[:, :frames]
            log_mel = power.clamp_(min=SMALLEST_POWER).log10_()
            log_mel = torch.maximum(log_mel, log_mel.max() - DYNAMIC_RANGE)
            scaled: NDArray[np.float32] = ((log_mel + 4.0) / 4.0).numpy()
        return scaled


def silence_level(log_mel: NDArray[np.float32]) -> float:
    """The value that digital silence has in the same window as these features."""
    floor = (math.log10(SMALLEST_POWER) + 4.0) / 4.0
    return max(float(log_mel.max()) - DYNAMIC_RANGE / 4.0, floor)


def padded(log_mel: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
    """The features followed by digital silence up to `frames`: (n_mels, frames) float32."""
    missing = max(0, frames - log_mel.shape[1])
    return np.pad(log_mel, ((0, 0), (0, missing)), constant_values=silence_level(log_mel))
