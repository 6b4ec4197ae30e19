"""The engine and its scheduler without Ray and HTTP, in the process that calls it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

from asr.audio import decode_audio
from asr.batcher import Batcher
from asr.build.recipe import Backend, Precision
from asr.engine import Engine
from asr.errors import AsrError
from asr.features import SAMPLE_RATE
from asr.loading import load_engine
from asr.model import Dims
from asr.scheduler import BatchLimits
from asr.segments import Segment, Segmenter
from asr.transcribe import transcribe_segments
from asr.transcript import DecodingOptions, Recognition, Transcript
from asr.utterance import Utterance
from asr.window import window_for
from benchmarks.load.loops import Answer, Window, closed_loop
from benchmarks.load.server_timing import ServerTiming
from benchmarks.speech_set import Clip


@dataclass(frozen=True)
class Row:
    """What the model did for one utterance. positions: that were encoded; tokens: decoded, its end included."""

    positions: int
    tokens: int


@dataclass(frozen=True)
class EngineRun:
    """dims: of the model; work: of every clip by its place, a row for each stretch of speech."""

    window: Window
    dims: Dims
    work: dict[int, list[Row]]


@dataclass(frozen=True)
class Prepared:
    """A recording that is ready for the model."""

    segments: Sequence[Segment]
    duration_s: float


@dataclass(frozen=True)
class Loading:
    """What `asr.loading.load_engine` is given."""

    model: str
    precision: Precision
    backend: Backend
    threads: int | None
    cache_dir: Path | None


def run_engine(
    loading: Loading,
    limits: BatchLimits,
    clips: Sequence[Clip],
    order: Sequence[int],
    concurrency: int,
    preparing_threads: int = 0,
) -> EngineRun:
    """Closed loop on the model.

    preparing_threads: that decode audio, find speech and compute log-mel on the way; without any, this has been done
    before.
    """
    engine = _engine(loading)
    engine.warm_up(limits.rows)
    return asyncio.run(_Loop(engine, limits, clips).run(order, concurrency, preparing_threads))


@cache
def _engine(loading: Loading) -> Engine:
    """Loaded once for all limits. Raises what `load_engine` raises."""
    return load_engine(
        loading.model,
        precision=loading.precision,
        backend=loading.backend,
        threads=loading.threads,
        cache_dir=loading.cache_dir,
    )


class _Loop:
    def __init__(self, engine: Engine, limits: BatchLimits, clips: Sequence[Clip]) -> None:
        self._engine = engine
        self._limits = limits
        self._segmenter = Segmenter(engine.dims.n_mels)
        self._contents = [clip.path.read_bytes() for clip in clips]
        self._options = [DecodingOptions(language=clip.language) for clip in clips]
        self._work: dict[int, list[Row]] = {}

    async def run(self, order: Sequence[int], concurrency: int, preparing_threads: int) -> EngineRun:
        ready = None if preparing_threads else [self._prepare(content) for content in self._contents]
        batcher = Batcher(self._engine, self._limits)

        async def recognize(utterance: Utterance) -> Recognition:
            return await asyncio.wrap_future(batcher.submit(utterance))

        async def send(place: int, due_s: float) -> Answer:
            content = self._contents[place]
            prepared = ready[place] if ready else await loop.run_in_executor(preparation, self._prepare, content)
            try:
                transcript = await transcribe_segments(
                    prepared.segments, prepared.duration_s, self._options[place], recognize
                )
            except AsrError as error:
                return Answer(place, due_s, time.monotonic(), None, str(error))
            self._work[place] = _rows(prepared, transcript)
            return Answer(place, due_s, time.monotonic(), transcript.text, timing=_timing(transcript))

        loop = asyncio.get_running_loop()
        try:
            with ThreadPoolExecutor(preparing_threads or 1, "prepare") as preparation:
                return EngineRun(await closed_loop(send, order, concurrency), self._engine.dims, self._work)
        finally:
            batcher.close()

    def _prepare(self, content: bytes) -> Prepared:
        waveform = decode_audio(content)
        return Prepared(self._segmenter(waveform), len(waveform) / SAMPLE_RATE)


def _rows(prepared: Prepared, transcript: Transcript) -> list[Row]:
    return [
        Row(window_for(segment.log_mel.shape[1]).positions, len(said.recognition.tokens) + 1)
        for segment, said in zip(prepared.segments, transcript.segments, strict=True)
    ]


def _timing(transcript: Transcript) -> ServerTiming:
    rows = [said.recognition.timing.rows for said in transcript.segments if said.recognition.timing.steps]
    return ServerTiming(rows=fmean(rows) if rows else None)
