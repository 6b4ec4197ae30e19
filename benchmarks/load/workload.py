"""What is sent, in which order and when."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from benchmarks.speech_set import Clip, read_speech_set

LONGEST_S = 16.0
"""Of the clips that are sent: utterances, as a live service gets them."""
SEED = 0


def utterance_clips(folder: Path) -> list[Clip]:
    """Clips of up to 16 s in English with a certain text: what every model can do, and one unit to count errors by.

    Raises:
        SpeechSetError: the folder is no speech set, or has no such clips.
    """
    clips = read_speech_set(folder)
    return [clip for clip in clips if clip.language == "en" and len(clip.groups) > 1 and clip.duration_s <= LONGEST_S]


def spread(clips: Sequence[Clip], count: int) -> list[Clip]:
    """So many of the clips, of all lengths alike."""
    by_length = sorted(clips, key=lambda clip: (clip.duration_s, clip.id))
    if count >= len(by_length):
        return by_length
    return [by_length[int((place + 0.5) * len(by_length) / count)] for place in range(count)]


def shuffled(count: int, passes: int = 1) -> list[int]:
    """Places of so many clips, each once a pass, every pass in an order of its own that never changes."""
    generator = np.random.default_rng(SEED)
    return [int(place) for _ in range(passes) for place in generator.permutation(count)]


def poisson_arrivals(per_second: float, count: int) -> list[float]:
    """Seconds from the start at which so many requests arrive that know nothing of each other, always the same."""
    return list(accumulate(np.random.default_rng(SEED).exponential(1 / per_second, count).tolist()))
