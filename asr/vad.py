"""Where in a waveform there is speech, by Silero VAD."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from silero_vad import get_speech_timestamps_from_probs

from asr.features import SAMPLE_RATE, WINDOW_SAMPLES
from asr.vad_network import SpeechNetwork

THRESHOLD = 0.35
"""Speech probability that begins speech. Below the usual 0.5: a lost word costs more than a second of noise."""
MIN_SPEECH_MS = 100
MIN_SILENCE_MS = 300
PADDING_MS = 200


@dataclass(frozen=True)
class Span:
    """A stretch of a waveform, in samples, end exclusive."""

    start: int
    end: int

    @property
    def samples(self) -> int:
        return self.end - self.start


class SpeechDetector:
    """Waveform → spans of speech, none longer than the model's window. One instance may be shared by threads."""

    def __init__(self) -> None:
        self._network = SpeechNetwork()

    def __call__(self, waveform: NDArray[np.float32]) -> list[Span]:
        """waveform: (samples,) float32 at 16 kHz → spans in order, apart from each other."""
        found = get_speech_timestamps_from_probs(
            self._network(waveform).tolist(),
            threshold=THRESHOLD,
            min_speech_duration_ms=MIN_SPEECH_MS,
            min_silence_duration_ms=MIN_SILENCE_MS,
            speech_pad_ms=PADDING_MS,
            max_speech_duration_s=WINDOW_SAMPLES / SAMPLE_RATE,
            audio_length_samples=len(waveform),
        )
        return [Span(span["start"], span["end"]) for span in found]


def pack(spans: list[Span], longest: int) -> list[Span]:
    """Join neighbouring spans into as few as fit `longest` samples each, from the first word to the last.

    The model hears words better with what was said around them, and a pause costs less than another window.
    """
    packed: list[Span] = []
    for span in spans:
        if packed and span.end - packed[-1].start <= longest:
            packed[-1] = Span(packed[-1].start, span.end)
        else:
            packed.append(span)
    return packed
