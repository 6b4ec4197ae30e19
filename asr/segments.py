"""A recording → the segments that the model hears."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr.features import SAMPLE_RATE, WINDOW_SAMPLES, LogMel
from asr.vad import SpeechDetector, pack


@dataclass(frozen=True)
class Segment:
    """A stretch of speech of at most 30 s. start_s, end_s: in the recording; log_mel: (n_mels, frames) float32."""

    start_s: float
    end_s: float
    log_mel: NDArray[np.float32]


class Segmenter:
    """Waveform → segments. One instance may be shared by threads."""

    def __init__(self, n_mels: int) -> None:
        self._log_mel = LogMel(n_mels)
        self._detect_speech = SpeechDetector()

    def warm_up(self) -> None:
        """Hear a second of silence, so that no recording pays for what is set up on first use."""
        silence = np.zeros(SAMPLE_RATE, np.float32)
        self._detect_speech(silence)
        self._log_mel(silence)

    def __call__(self, waveform: NDArray[np.float32]) -> list[Segment]:
        """waveform: (samples,) float32 at 16 kHz → its speech in order; nothing if there is none."""
        spans = pack(self._detect_speech(waveform), WINDOW_SAMPLES)
        return [
            Segment(span.start / SAMPLE_RATE, span.end / SAMPLE_RATE, self._log_mel(waveform[span.start : span.end]))
            for span in spans
        ]
