"""Which positions of the model's 30 s window are computed.

Whisper was trained on windows of 30 s, 1500 encoder positions, filled up with silence. Simply leaving the silence out
changes what the model hears: attention loses what it used to spend on the silence, and short clips come out repeated or
cut. So every position of speech is kept, with the first second of silence after it, and of the rest every sixteenth
position stands for its neighbours: it has the positional embedding of its place and counts as often as it stands for
others, by adding the logarithm of that number to its attention scores (as merged tokens do in Bolya et al. 2022,
arXiv:2210.09461, section 3). An utterance of 5 s costs 376 positions instead of 1500 and reads nearly as if all had
been there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from asr.features import WINDOW_FRAMES

FRAMES_PER_POSITION = 2  # the encoder's second convolution has stride 2
WINDOW_POSITIONS = WINDOW_FRAMES // FRAMES_PER_POSITION  # 1500
DENSE_SILENCE_POSITIONS = 50  # 1 s
STRIDE_POSITIONS = 16


@dataclass(frozen=True)
class Window:
    """The positions that are computed for one utterance.

    position_ids: (positions,) int64, places in the window; attention_bias: (positions,) float32, natural logarithm of
    how many positions each stands for.
    """

    position_ids: NDArray[np.int64]
    attention_bias: NDArray[np.float32]

    @property
    def positions(self) -> int:
        return len(self.position_ids)

    @property
    def frames(self) -> int:
        """Log-mel frames that the positions are computed from: the speech, then silence."""
        return self.positions * FRAMES_PER_POSITION


@lru_cache(maxsize=2 * WINDOW_FRAMES)
def window_for(frames: int, *, full: bool = False) -> Window:
    """The window of an utterance of so many frames; full: with every position, as the model was trained."""
    speech = -(-frames // FRAMES_PER_POSITION)
    last = WINDOW_POSITIONS - 1  # next to the edge of the window, which looks different: kept, and only for itself
    dense = WINDOW_POSITIONS if full else min(speech + DENSE_SILENCE_POSITIONS, WINDOW_POSITIONS)
    starts = np.arange(dense, last, STRIDE_POSITIONS)
    counts = np.minimum(STRIDE_POSITIONS, last - starts)
    edge = [last] if dense < WINDOW_POSITIONS else []
    return Window(
        position_ids=np.concatenate((np.arange(dense), starts + counts // 2, edge)).astype(np.int64),
        attention_bias=np.log(np.concatenate((np.ones(dense), counts, np.ones(len(edge))))).astype(np.float32),
    )
