"""A peer on the clips, in the process that calls it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from asr.errors import AsrError
from benchmarks.load.loops import Answer, Window
from benchmarks.peers import PEERS
from benchmarks.speech_set import Clip

CLIP_BY_CLIP = ("faster-whisper", "faster-whisper-batched", "ctranslate2-alone", "whisper.cpp", "transformers-alone")
"""Peers that are given one clip after the other, so that each has a latency; the others are given all at once."""
WARM_UP_CLIPS = 2


def run_peer(name: str, model: str, clips: Sequence[Clip], cache_dir: Path | None) -> Window:
    """Have a peer transcribe the clips. All that it was given at once is due at once.

    Raises:
        UnavailableError: it cannot run this model here.
    """
    with PEERS[name](model, cache_dir) as transcribe:
        transcribe(clips[:WARM_UP_CLIPS])  # first-time allocations are not measured
        answers: list[Answer] = []
        together = 1 if name in CLIP_BY_CLIP else len(clips)
        start_s = time.monotonic()
        for first in range(0, len(clips), together):
            due_s = time.monotonic()
            texts = transcribe(clips[first : first + together])
            done_s = time.monotonic()
            answers += [_answer(first + place, due_s, done_s, text) for place, text in enumerate(texts)]
    return Window(tuple(answers), start_s, answers[-1].done_s)


def _answer(place: int, due_s: float, done_s: float, text: str | AsrError) -> Answer:
    if isinstance(text, AsrError):
        return Answer(place, due_s, done_s, None, str(text))
    return Answer(place, due_s, done_s, text)
