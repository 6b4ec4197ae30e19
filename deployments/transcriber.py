"""The deployment that does everything but the model: bytes in, transcript out."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.handle import DeploymentHandle
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from asr.audio import decode_audio
from asr.errors import InputError, UnsupportedLanguageError
from asr.features import SAMPLE_RATE
from asr.heap import give_back_free_memory
from asr.segments import Segment, Segmenter
from asr.transcribe import transcribe_segments
from asr.transcript import DecodingOptions, Recognition, Transcript
from asr.utterance import Utterance
from deployments.calls import result_of
from deployments.recognizer import ModelInfo

ATTEMPTS = 3
"""How often a segment is sent, where the replica that has it dies."""
RETRY_WAIT_S = 0.5
PREPARING_THREADS = 2
"""Recordings that are decoded at a time, each replica having one processor: more at a time would all be ready late, and
the model would wait for the first. With only one, a long recording would hold up the short ones."""


@serve.deployment(
    max_ongoing_requests=32,
    health_check_period_s=5,
    graceful_shutdown_timeout_s=120,
    ray_actor_options={"num_cpus": 1},
)
class Transcriber:
    """Decodes a recording, finds its speech, and has the segments recognised side by side."""

    async def __init__(self, recognizer: DeploymentHandle[Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        self._recognizer = recognizer
        self._model: ModelInfo = await recognizer.describe.remote()
        self._segmenter = Segmenter(self._model.n_mels)
        self._segmenter.warm_up()
        self._preparation = ThreadPoolExecutor(PREPARING_THREADS, "prepare")

    async def transcribe(self, content: bytes, options: DecodingOptions) -> Transcript | InputError:
        """The transcript, or what is wrong with the request; our own failures are raised.

        Cancelled, it takes back what it asked for: a preparation that waits for a thread, the recognition of segments.
        """
        try:
            if options.language is not None and options.language not in self._model.languages:
                raise UnsupportedLanguageError(options.language, len(self._model.languages))
            loop, started = asyncio.get_running_loop(), time.perf_counter()
            segments, duration_s = await loop.run_in_executor(self._preparation, self._prepare, content)
            prepare_s = time.perf_counter() - started
            transcript = await transcribe_segments(segments, duration_s, options, self._recognize)
            return replace(transcript, timing=replace(transcript.timing, prepare_s=prepare_s))
        except InputError as error:
            return error

    async def check_model(self) -> None:
        """Raises what the model path raises."""
        await result_of(self._recognizer.check_health.remote())

    async def check_health(self) -> None:
        """Ray calls it every few seconds: the time to give back the memory of recordings."""
        await asyncio.to_thread(give_back_free_memory)

    def _prepare(self, content: bytes) -> tuple[list[Segment], float]:
        waveform = decode_audio(content)
        return self._segmenter(waveform), len(waveform) / SAMPLE_RATE

    @retry(
        retry=retry_if_exception_type(RayActorError),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_fixed(RETRY_WAIT_S),
        reraise=True,
    )
    async def _recognize(self, utterance: Utterance) -> Recognition:
        recognition: Recognition = await result_of(self._recognizer.recognize.remote(utterance))
        return recognition
