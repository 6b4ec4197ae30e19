"""Audio files that tests send."""

from __future__ import annotations

import io
import wave

import numpy as np
from numpy.typing import NDArray

from asr.features import SAMPLE_RATE


def wav(waveform: NDArray[np.float32]) -> bytes:
    """(samples,) float32 at 16 kHz → a 16-bit WAV file."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(np.round(np.clip(waveform, -1, 1) * 32767).astype("<i2").tobytes())
    return content.getvalue()
