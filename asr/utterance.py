"""What the engine is asked to recognise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr.features import FRAMES_PER_SECOND, WINDOW_FRAMES
from asr.transcript import DecodingOptions

MARGIN_FRAMES = 2 * FRAMES_PER_SECOND
"""Silence that is encoded after the speech. Below 2 s the models begin to repeat themselves."""
FLOOR_FRAMES = 6 * FRAMES_PER_SECOND
"""The least that is encoded."""


@dataclass(frozen=True)
class Utterance:
    """At most 30 s of audio with what to do with it.

    log_mel: (n_mels, frames) float32, as `asr.features.LogMel` makes it; fallback: whether a result that looks wrong is
    tried again at higher temperatures; full_window: encode 30 s however short it is.
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
    def encoded_frames(self) -> int:
        """How many frames the encoder sees: the speech, a margin of silence, and no less than the floor; even."""
        if self.full_window:
            return WINDOW_FRAMES
        wanted = max(FLOOR_FRAMES, self.frames + MARGIN_FRAMES)
        return min(WINDOW_FRAMES, wanted + wanted % 2)
