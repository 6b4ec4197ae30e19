"""The whole way from bytes to transcript in one process: the library without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from asr.audio import decode_audio
from asr.batcher import Batcher
from asr.build.recipe import Backend, Precision
from asr.engine import Engine
from asr.errors import AsrError
from asr.features import SAMPLE_RATE
from asr.loading import load_engine
from asr.scheduler import BatchLimits
from asr.segments import Segmenter
from asr.transcribe import transcribe_segments
from asr.transcript import DecodingOptions, Recognition, Transcript
from asr.utterance import Utterance


class LocalTranscriber:
    """Transcribes recordings with an engine of its own.

    full_window: encode 30 s for every utterance, as Whisper was trained; slow, and what sparse windows are measured by.
    """

    def __init__(self, engine: Engine, limits: BatchLimits = BatchLimits(), *, full_window: bool = False) -> None:
        self._segmenter = Segmenter(engine.dims.n_mels)
        self._batcher = Batcher(engine, limits)
        self._full_window = full_window

    @classmethod
    def load(
        cls,
        model: str,
        *,
        precision: Precision = "int8",
        backend: Backend = "auto",
        cache_dir: Path | None = None,
        full_window: bool = False,
    ) -> LocalTranscriber:
        """
        Raises:
            CheckpointError, ArtefactError: the model cannot be loaded.
        """
        engine = load_engine(model, precision=precision, backend=backend, cache_dir=cache_dir)
        return cls(engine, full_window=full_window)

    def close(self) -> None:
        """Stop the thread that holds the model."""
        self._batcher.close()

    def transcribe(self, content: bytes, options: DecodingOptions = DecodingOptions()) -> Transcript:
        """
        Raises:
            AsrError: the recording cannot be transcribed.
        """
        return asyncio.run(self._transcribe(content, options))

    def transcribe_many(
        self, contents: Sequence[bytes], options: Sequence[DecodingOptions]
    ) -> list[Transcript | AsrError]:
        """Transcribe recordings side by side; each has its transcript or its own error in the result."""

        async def all_of_them() -> list[Transcript | AsrError]:
            return await asyncio.gather(
                *(self._transcript_or_error(*recording) for recording in zip(contents, options, strict=True))
            )

        return asyncio.run(all_of_them())

    async def _transcript_or_error(self, content: bytes, options: DecodingOptions) -> Transcript | AsrError:
        try:
            return await self._transcribe(content, options)
        except AsrError as error:
            return error

    async def _transcribe(self, content: bytes, options: DecodingOptions) -> Transcript:
        waveform = decode_audio(content)
        return await transcribe_segments(
            self._segmenter(waveform), len(waveform) / SAMPLE_RATE, options, self._recognize
        )

    async def _recognize(self, utterance: Utterance) -> Recognition:
        if self._full_window:
            utterance = replace(utterance, full_window=True)
        return await asyncio.wrap_future(self._batcher.submit(utterance))
