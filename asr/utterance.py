"""What the engine is asked to recognise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr.features import FRAMES_PER_SECOND
from asr.transcript import DecodingOptions
from asr.window import Window, window_for


@dataclass(frozen=True)
class Utterance:
    """At most 30 s of audio with what to do with it.

    log_mel: (n_mels, frames) float32, as `asr.features.LogMel` makes it; fallback: whether a result that looks wrong is
    tried again; full_window: encode every position of the 30 s.
    """

    log_mel: NDArray[np.float32]
    options: DecodingOptions = DecodingOptions()
    fallback: bool = True
    full_window: bool = False

    @property
    def frames(self) -> int:
        return int(self.log_mel.shape[1])

    @property
    def duration_s(self) -> float:
        return self.frames / FRAMES_PER_SECOND

    @property
    def window(self) -> Window:
        return window_for(self.frames, full=self.full_window)
