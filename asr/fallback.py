"""When a result looks wrong, what to try next.

First every position of the window, in case the ones left out were missed; then sampling at rising temperatures, which
often finds a way out where greedy decoding is lost in repetition or in words that the model does not believe in.
Temperatures and thresholds are those of Radford et al. 2022, section 4.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from asr.transcript import Recognition
from asr.utterance import Utterance
from asr.window import WINDOW_POSITIONS

TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0)
MAX_COMPRESSION_RATIO = 2.4
MIN_AVG_LOGPROB = -1.0
MAX_NO_SPEECH_PROB = 0.6


def next_attempt(utterance: Utterance, recognition: Recognition) -> Utterance | None:
    """The utterance to try after this result, or None if the result stands or nothing is left to try."""
    if not utterance.fallback or not looks_wrong(recognition):
        return None
    if utterance.window.positions < WINDOW_POSITIONS:
        return replace(utterance, full_window=True)
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
