"""Stretches of the recording, as engines take them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asr.features import SAMPLE_RATE, LogMel
from asr.transcript import DecodingOptions

ENGLISH = DecodingOptions(language="en")

Features = NDArray[np.float32]


class Recording:
    """Features of stretches of the recording."""

    def __init__(self, samples: Features) -> None:
        self._samples = samples
        self._log_mel = LogMel(80)

    def cut(self, start_s: float, end_s: float) -> Features:
        return self._log_mel(self._samples[round(start_s * SAMPLE_RATE) : round(end_s * SAMPLE_RATE)])
