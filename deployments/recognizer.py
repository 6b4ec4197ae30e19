"""The deployment that holds the model: utterances in, what was heard out."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ray import serve
from ray.serve import metrics

from asr.batcher import Batcher
from asr.build.recipe import Backend, Precision
from asr.heap import give_back_free_memory
from asr.loading import load_engine
from asr.scheduler import BatchLimits, Job
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance

PROVEN_FOR_S = 5.0
"""How long a batch that went well stands for the health of the model, so that checks cost nothing under load."""

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True)
class RecognizerConfig:
    """Which model to run and how."""

    model: str
    precision: Precision
    backend: Backend
    threads: int | None
    cache_dir: Path | None
    limits: BatchLimits


@dataclass(frozen=True)
class ModelInfo:
    """What a caller has to know of the model. languages: ISO 639-1 codes."""

    n_mels: int
    languages: tuple[str, ...]


@serve.deployment(
    max_ongoing_requests=64,
    health_check_period_s=5,
    health_check_timeout_s=30,
    graceful_shutdown_timeout_s=60,
    ray_actor_options={"num_cpus": 1},
)
class Recognizer:
    """Recognises utterances together. On a GPU the Serve config gives it one (`num_gpus: 1`).

    `@serve.batch` is the door: it hands in together what arrives together. What is encoded and decoded together is for
    the scheduler behind it to say, whenever the model can take more; `@serve.batch` alone would queue small batches up
    while the model is busy.
    """

    def __init__(self, config: RecognizerConfig) -> None:
        """
        Raises:
            AsrError: the model cannot be loaded or does not work; the replica does not start.
        """
        started = time.monotonic()
        self._engine = load_engine(
            config.model,
            precision=config.precision,
            backend=config.backend,
            threads=config.threads,
            max_batch=config.limits.rows,
            cache_dir=config.cache_dir,
        )
        self._engine.warm_up(config.limits.rows)
        self._batcher = Batcher(self._engine, config.limits)
        self._admit = serve.batch(max_batch_size=config.limits.rows, batch_wait_timeout_s=0)(self._submit)
        self._proven_at = time.monotonic()
        self._rows_in_flight = metrics.Gauge(
            "rayscribe_rows_in_flight", "Utterances whose keys and values the model holds."
        )
        self._waiting = metrics.Gauge("rayscribe_utterances_waiting", "Utterances that wait for the encoder.")
        logger.info("%s %s ready in %.1f s", config.model, config.precision, time.monotonic() - started)

    async def describe(self) -> ModelInfo:
        return ModelInfo(self._engine.dims.n_mels, self._engine.tokenizer.languages)

    async def recognize(self, utterance: Utterance) -> Recognition:
        """
        Raises:
            AsrError: this utterance cannot be recognised; its neighbours in the batch are not affected.
        """
        job = Job(utterance)
        try:
            await self._admit(job)
            recognition = await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            job.future.cancel()  # the row leaves the batch
            raise
        self._proven_at = time.monotonic()
        return recognition

    async def check_health(self) -> None:
        """Have the model recognise something, unless it just did. Ray restarts a replica where this raises.

        A replica that rests gives back the memory that it needed under load. What the model holds is exported as it is
        at this time.
        """
        if time.monotonic() - self._proven_at > PROVEN_FOR_S:
            silence = np.zeros((self._engine.dims.n_mels, 100), np.float32)
            await self.recognize(Utterance(silence, DecodingOptions(language="en"), fallback=False))
            await asyncio.to_thread(give_back_free_memory)
        self._rows_in_flight.set(self._engine.rows_in_flight)
        self._waiting.set(self._batcher.waiting)

    async def _submit(self, jobs: list[Job]) -> list[None]:
        self._batcher.submit_jobs(jobs)
        return [None] * len(jobs)
