"""When a result looks wrong, what to try next.

Two things go wrong with Whisper. A window that is shorter than the 30 s of its training may make it say the same thing again;
the whole window cures that. And greedy decoding may get lost in repetition or in words it does not believe in; sampling at
rising temperatures often finds a way out (Radford et al. 2022, section 4.5), whose thresholds these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from asr.features import WINDOW_FRAMES
from asr.transcript import Recognition
from asr.utterance import Utterance

TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0)
MAX_COMPRESSION_RATIO = 2.4
MIN_AVG_LOGPROB = -1.0
MAX_NO_SPEECH_PROB = 0.6


def next_attempt(utterance: Utterance, recognition: Recognition) -> Utterance | None:
    """The utterance to try after this result, or None if the result stands or nothing is left to try."""
    if utterance.encoded_frames < WINDOW_FRAMES and (looks_wrong(recognition) or repeats_itself(recognition.tokens)):
        return replace(utterance, full_window=True)
    if not utterance.fallback or not looks_wrong(recognition):
        return None
    warmer = [temperature for temperature in TEMPERATURES if temperature > utterance.options.temperature]
    return replace(utterance, options=replace(utterance.options, temperature=warmer[0])) if warmer else None


def best(attempts: Sequence[Recognition]) -> Recognition:
    """The result that stands: the last if it looks right, else the one that the model believes in most."""
    last = attempts[-1]
    chosen = max(attempts, key=lambda attempt: attempt.avg_logprob) if looks_wrong(last) else last
    return replace(chosen, text="", tokens=()) if is_silence(chosen) else chosen


def is_silence(recognition: Recognition) -> bool:
    """Whether the model says that nobody spoke, and does not believe in what it wrote down nevertheless."""
    return recognition.no_speech_prob > MAX_NO_SPEECH_PROB and recognition.avg_logprob < MIN_AVG_LOGPROB


def looks_wrong(recognition: Recognition) -> bool:
    if is_silence(recognition):
        return False
    return (
        not recognition.complete
        or recognition.compression_ratio > MAX_COMPRESSION_RATIO
        or recognition.avg_logprob < MIN_AVG_LOGPROB
    )


def repeats_itself(tokens: Sequence[int], shortest: int = 3) -> bool:
    """Whether these tokens end in the same sequence, of `shortest` tokens or more, twice."""
    count = len(tokens)
    return any(
        tokens[count - length :] == tokens[count - 2 * length : count - length]
        for length in range(shortest, count // 2 + 1)
    )
