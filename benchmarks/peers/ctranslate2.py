"""CTranslate2 itself, in int8, behind Rayscribe's own front end: the strictest peer.

It gets what Rayscribe's engine gets: the stretches of speech that `asr.segments` finds, their log-mel, and batches of
similar length, each padded to its longest row. CTranslate2 encodes windows of any length, so it too is spared most of
the 30 s; but every position it encodes counts alike, so it cannot have the sparse windows of `asr.window`, and how much
silence follows the speech is chosen with a `Margin`. It decodes greedily, without timestamps, and never tries again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asr.audio import decode_audio
from asr.checkpoint import load_checkpoint
from asr.features import FRAMES_PER_SECOND, WINDOW_FRAMES, padded
from asr.processors import usable_cpus
from asr.scheduler import BatchLimits
from asr.segments import Segmenter
from asr.tokenizer import Tokenizer
from asr.window import FRAMES_PER_POSITION
from benchmarks.peers.faster_whisper import ctranslate2_folder
from benchmarks.peers.peer import BATCH, Load, Transcribe, needs
from benchmarks.peers.windows import in_batches, joined, similar_batches
from benchmarks.speech_set import Clip

BATCH_FRAMES = 24_000
"""Log-mel frames in a batch at most, padding included."""


@dataclass(frozen=True)
class Margin:
    """How much silence follows the speech. seconds: at least; shortest_s: of speech and silence together.

    Short windows make the model repeat itself: on 34 read utterances Whisper base had a word error rate of 92 % where
    1 s of silence followed the speech, 6.4 % with 2 s, and 6.6 % with the whole 30 s.
    """

    seconds: float = 2.0
    shortest_s: float = 6.0

    def frames(self, speech: int) -> int:
        """Log-mel frames to encode for so many of speech: a whole number of positions, at most the window."""
        wanted = max(speech + round(self.seconds * FRAMES_PER_SECOND), round(self.shortest_s * FRAMES_PER_SECOND))
        return min(-(-wanted // FRAMES_PER_POSITION) * FRAMES_PER_POSITION, WINDOW_FRAMES)


@dataclass(frozen=True)
class Row:
    """A stretch of speech in a batch. clip: place of its clip; log_mel: (n_mels, frames) float32."""

    clip: int
    language: str | None
    log_mel: NDArray[np.float32]


def trimmed(rows: int = BATCH, margin: Margin = Margin()) -> Load:
    """CTranslate2 with batches of at most so many rows."""

    @contextmanager
    def load(model: str, cache_dir: Path | None) -> Iterator[Transcribe]:  # noqa: ARG001 (it builds nothing)
        recognizer = _load(model, margin)
        limits = BatchLimits(rows=rows, frames=BATCH_FRAMES)

        def transcribe(clips: Sequence[Clip]) -> list[str]:
            waiting = recognizer.rows(clips)
            frames = [margin.frames(row.log_mel.shape[1]) for row in waiting]
            texts = in_batches(waiting, similar_batches(frames, limits), recognizer.texts)
            return joined(clips, (row.clip for row in waiting), texts)

        yield transcribe

    return load


class Recognizer:
    """Clips → rows, and a batch of them → texts."""

    def __init__(self, whisper: Any, storage: Any, tokenizer: Tokenizer, segmenter: Segmenter, margin: Margin) -> None:
        """whisper: a model of CTranslate2; storage: its class of arrays."""
        self._whisper = whisper
        self._storage = storage
        self._tokenizer = tokenizer
        self._segmenter = segmenter
        self._margin = margin

    def rows(self, clips: Sequence[Clip]) -> list[Row]:
        return [
            Row(place, clip.language, segment.log_mel)
            for place, clip in enumerate(clips)
            for segment in self._segmenter(decode_audio(clip.path.read_bytes()))
        ]

    def texts(self, batch: Sequence[Row]) -> list[str]:
        frames = self._margin.frames(max(row.log_mel.shape[1] for row in batch))
        features = np.ascontiguousarray([padded(row.log_mel, frames) for row in batch])
        encoded = self._whisper.encode(self._storage.from_array(features))
        prompts = [
            [self._tokenizer.sot, *self._tokenizer.task_tokens(language, "transcribe")]
            for language in self._languages(batch, encoded)
        ]
        results = self._whisper.generate(encoded, prompts, beam_size=1)
        return [self._tokenizer.decode(result.sequences_ids[0]) for result in results]

    def _languages(self, batch: Sequence[Row], encoded: Any) -> list[str]:
        if not self._tokenizer.is_multilingual:
            return ["en"] * len(batch)
        if all(row.language for row in batch):
            return [row.language or "" for row in batch]
        likeliest = [guesses[0][0] for guesses in self._whisper.detect_language(encoded)]
        return [row.language or token.strip("<|>") for row, token in zip(batch, likeliest, strict=True)]


def _load(model: str, margin: Margin) -> Recognizer:
    """
    Raises:
        UnavailableError: the package cannot be imported, or the model is not there in its format.
    """
    with needs("ctranslate2"):
        from ctranslate2 import StorageView  # type: ignore[attr-defined]
        from ctranslate2.models import Whisper  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        directory = ctranslate2_folder(model, Path(folder))
        whisper = Whisper(str(directory), device="cpu", compute_type="int8", intra_threads=usable_cpus())
    checkpoint = load_checkpoint(model)
    return Recognizer(whisper, StorageView, checkpoint.tokenizer, Segmenter(checkpoint.dims.n_mels), margin)
