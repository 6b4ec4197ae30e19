"""The systems that are compared: each turns clips into texts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

from asr.checkpoint.embedded import is_installed, weight_files
from asr.engine import Precision, usable_cpus
from asr.errors import AsrError
from asr.local import LocalTranscriber
from asr.transcript import DecodingOptions
from benchmarks.speech_set import Clip

Transcribe: TypeAlias = Callable[[Sequence[Clip]], Sequence[str | AsrError]]
"""Clips → their texts, or what each failed with."""
Load: TypeAlias = Callable[[str, Path | None], AbstractContextManager[Transcribe]]
"""Model name or path, and where built files are kept → ready to transcribe for as long as the context lasts."""


class UnavailableError(Exception):
    """A system cannot take part; the message says what it lacks."""


def rayscribe(precision: Precision, *, full_window: bool = False) -> Load:
    """The way from bytes to text in one process, all clips at once."""

    @contextmanager
    def load(model: str, cache_dir: Path | None) -> Iterator[Transcribe]:
        transcriber = LocalTranscriber.load(model, precision=precision, cache_dir=cache_dir, full_window=full_window)

        def transcribe(clips: Sequence[Clip]) -> list[str | AsrError]:
            contents = [clip.path.read_bytes() for clip in clips]
            options = [DecodingOptions(language=clip.language) for clip in clips]
            transcripts = transcriber.transcribe_many(contents, options)
            return [transcript if isinstance(transcript, AsrError) else transcript.text for transcript in transcripts]

        yield transcribe
        transcriber.close()

    return load


@contextmanager
def faster_whisper(model: str, cache_dir: Path | None) -> Iterator[Transcribe]:  # noqa: ARG001 (it builds nothing)
    """Greedy int8, one clip after the other, everything else as faster-whisper has it by default."""
    try:
        import ctranslate2
        from faster_whisper import WhisperModel
    except ImportError as error:
        raise UnavailableError("faster-whisper is not installed: pip install rayscribe[bench]") from error
    with tempfile.TemporaryDirectory() as joined:
        folder = ctranslate2_folder(model, Path(joined))
        whisper = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=usable_cpus())

    def transcribe(clips: Sequence[Clip]) -> list[str | AsrError]:
        ctranslate2.set_random_seed(0)  # type: ignore[attr-defined]  # it samples what it finds hard, and would differ from run to run
        texts: list[str | AsrError] = []
        for clip in clips:
            segments, _ = whisper.transcribe(str(clip.path), language=clip.language, beam_size=1)
            texts.append("".join(segment.text for segment in segments))
        return texts

    yield transcribe


SYSTEMS: Mapping[str, Load] = {
    "fp32-full-window": rayscribe("fp32", full_window=True),
    "fp32": rayscribe("fp32"),
    "int8": rayscribe("int8"),
    "faster-whisper": faster_whisper,
}
TITLES = {
    "fp32-full-window": "Rayscribe fp32, 30 s window",
    "fp32": "Rayscribe fp32",
    "int8": "Rayscribe int8",
    "faster-whisper": "faster-whisper int8",
}


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
