"""How clips become batches and texts become those of clips again, for peers that leave this to their caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from asr.audio import decode_audio
from asr.features import WINDOW_SAMPLES
from asr.scheduler import BatchLimits, next_batch
from asr.transcribe import LANGUAGES_WITHOUT_BLANKS
from asr.vad import SpeechDetector, pack
from benchmarks.peers.peer import Transcribe
from benchmarks.speech_set import Clip

RowT = TypeVar("RowT")


@dataclass(frozen=True)
class Window:
    """At most 30 s of a clip. clip: its place among the clips; waveform: (samples,) float32 at 16 kHz."""

    clip: int
    language: str | None
    waveform: NDArray[np.float32]


class Cutter:
    """Clips → windows: clips of up to 30 s whole, longer ones cut in their pauses, as Rayscribe cuts them."""

    def __init__(self) -> None:
        self._detect_speech = SpeechDetector()

    def __call__(self, clips: Sequence[Clip]) -> list[Window]:
        return [
            Window(place, clip.language, waveform)
            for place, clip in enumerate(clips)
            for waveform in self._cut(decode_audio(clip.path.read_bytes()))
            if len(waveform)
        ]

    def _cut(self, waveform: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        if len(waveform) <= WINDOW_SAMPLES:
            return [waveform]
        spans = pack(self._detect_speech(waveform), WINDOW_SAMPLES)
        return [waveform[span.start : span.end] for span in spans]


def by_language(windows: Sequence[Window], rows: int | None = None) -> list[list[int]]:
    """Places of the windows in batches of one language, of any number of rows or at most so many.

    The shortest come first: a batch lasts as long as the longest of its texts, so those should be of similar length.
    """
    groups: dict[str | None, list[int]] = {}
    for place in sorted(range(len(windows)), key=lambda place: len(windows[place].waveform)):
        groups.setdefault(windows[place].language, []).append(place)
    return [
        places[start : start + (rows or len(places))]
        for places in groups.values()
        for start in range(0, len(places), rows or len(places))
    ]


def similar_batches(frames: Sequence[int], limits: BatchLimits) -> list[list[int]]:
    """Places of rows of so many frames, in the batches that `asr.scheduler` makes where all of them wait at once."""
    batches: list[list[int]] = []
    waiting = sorted(range(len(frames)), key=lambda row: frames[row])
    while waiting:
        batch = [waiting[place] for place in next_batch([frames[row] for row in waiting], limits)]
        batches.append(batch)
        waiting = [row for row in waiting if row not in batch]
    return batches


def over_windows(recognize: Callable[[Sequence[Window]], Sequence[str]], rows: int | None = None) -> Transcribe:
    """Transcribes clips window by window, in batches of one language, of any number of rows or at most so many."""
    cut = Cutter()

    def transcribe(clips: Sequence[Clip]) -> list[str]:
        windows = cut(clips)
        texts = in_batches(windows, by_language(windows, rows), recognize)
        return joined(clips, (window.clip for window in windows), texts)

    return transcribe


def in_batches(
    rows: Sequence[RowT], batches: Iterable[Sequence[int]], recognize: Callable[[Sequence[RowT]], Sequence[str]]
) -> list[str]:
    """Texts of the rows, in their order. batches: places of the rows that are recognised together."""
    texts = [""] * len(rows)
    for batch in batches:
        for place, text in zip(batch, recognize([rows[place] for place in batch]), strict=True):
            texts[place] = text
    return texts


def joined(clips: Sequence[Clip], places: Iterable[int], texts: Iterable[str]) -> list[str]:
    """Texts of the clips. places, texts: of every part, in the order in which they were said, its clip and its text."""
    parts: list[list[str]] = [[] for _ in clips]
    for place, text in zip(places, texts, strict=True):
        parts[place].append(text.strip())
    return [
        ("" if clip.language in LANGUAGES_WITHOUT_BLANKS else " ").join(filter(None, said))
        for clip, said in zip(clips, parts, strict=True)
    ]
