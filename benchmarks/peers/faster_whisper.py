"""faster-whisper in int8, greedily: clip by clip, and by its batches, which are of the parts of one recording.

`clip_by_clip` and `batched` are given one clip after the other, which is how an application would call them. The
batched pipeline has only the stretches of speech of one file to make batches of, packed into windows of 30 s: a clip of
up to 30 s is one window, so that on short clips it does the work of `clip_by_clip`, without timestamps and without
trying anything again. `joined_clips` is what the pipeline can do: all clips of a language in one recording, with the
start and end of each given as `clip_timestamps`, so that every batch but the last is full. Whichever it is, a window is
padded to 30 s.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from asr.checkpoint.embedded import is_installed, weight_files
from asr.errors import AsrError
from asr.features import FRAMES_PER_SECOND, SAMPLE_RATE
from asr.processors import usable_cpus
from benchmarks.peers.peer import BATCH, Transcribe, UnavailableError, needs
from benchmarks.peers.windows import Window, over_windows
from benchmarks.speech_set import Clip


@contextmanager
def clip_by_clip(model: str, cache_dir: Path | None) -> Iterator[Transcribe]:  # noqa: ARG001 (it builds nothing)
    """One clip after the other, everything else as faster-whisper has it by default."""
    whisper = _load(model)
    from ctranslate2 import set_random_seed  # type: ignore[attr-defined]

    def transcribe(clips: Sequence[Clip]) -> list[str | AsrError]:
        set_random_seed(0)  # it samples what it finds hard, and would differ from run to run
        texts: list[str | AsrError] = []
        for clip in clips:
            segments, _ = whisper.transcribe(str(clip.path), language=clip.language, beam_size=1)
            texts.append("".join(segment.text for segment in segments))
        return texts

    yield transcribe


@contextmanager
def batched(model: str, cache_dir: Path | None) -> Iterator[Transcribe]:  # noqa: ARG001 (it builds nothing)
    """The batched pipeline, one clip after the other: batches of what is in each."""
    pipeline = _load_batched(model)

    def transcribe(clips: Sequence[Clip]) -> list[str]:
        texts = []
        for clip in clips:
            segments, _ = pipeline.transcribe(str(clip.path), language=clip.language, beam_size=1, batch_size=BATCH)
            texts.append("".join(segment.text for segment in segments))
        return texts

    yield transcribe


@contextmanager
def joined_clips(model: str, cache_dir: Path | None) -> Iterator[Transcribe]:  # noqa: ARG001 (it builds nothing)
    """The batched pipeline on one recording for each language, made of all clips: full batches."""
    yield over_windows(partial(transcribe_together, _load_batched(model)))


def transcribe_together(pipeline: Any, windows: Sequence[Window]) -> list[str]:
    """Texts of windows in one language, or each in whichever if it is None."""
    language = windows[0].language
    waveforms = [window.waveform for window in windows]
    ends = list(accumulate(map(len, waveforms)))
    starts = [0, *ends[:-1]]
    segments, _ = pipeline.transcribe(
        np.concatenate(waveforms),
        language=language,
        multilingual=language is None,
        beam_size=1,
        batch_size=BATCH,
        clip_timestamps=[
            {"start": _seconds(start), "end": _seconds(end)} for start, end in zip(starts, ends, strict=True)
        ],
    )
    place_of = {int(start / SAMPLE_RATE * FRAMES_PER_SECOND): place for place, start in enumerate(starts)}
    texts = [""] * len(windows)
    for segment in segments:  # as many for a window as the model sets timestamps, which all have its `seek`
        texts[place_of[segment.seek]] += segment.text
    return texts


def _seconds(samples: int) -> float:
    """A time that becomes the same number of samples when it is multiplied and cut off."""
    return (samples + 0.5) / SAMPLE_RATE


def _load_batched(model: str) -> Any:
    whisper = _load(model)
    from faster_whisper import BatchedInferencePipeline

    return BatchedInferencePipeline(whisper)  # type: ignore[no-untyped-call]


def _load(model: str) -> Any:
    """
    Raises:
        UnavailableError: the package cannot be imported, or the model is not there in its format.
    """
    with needs("faster-whisper"):
        from faster_whisper import WhisperModel
    with tempfile.TemporaryDirectory() as folder:
        directory = ctranslate2_folder(model, Path(folder))
        return WhisperModel(str(directory), device="cpu", compute_type="int8", cpu_threads=usable_cpus())


def ctranslate2_folder(model: str, into: Path) -> Path:
    """The CTranslate2 directory of a model; one that is installed in pieces is put together in `into`.

    Raises:
        UnavailableError: the model is not there in this format.
    """
    if (Path(model) / "model.bin").is_file():
        return Path(model)
    if not is_installed(model):
        raise UnavailableError(f"{model} is neither a CTranslate2 directory nor an installed weights package")
    parts = weight_files(model)
    folder = parts[0].parent
    if len(parts) == 1:
        return folder
    with (into / "model.bin").open("wb") as weights:
        for part in parts:
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, weights)
    for file in folder.iterdir():
        if file.is_file() and file not in parts:
            shutil.copy(file, into)
    return into
