"""The deployment that holds the model: utterances in, what was heard out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ray import serve

from asr.batcher import Batcher, BatchLimits
from asr.build.recipe import Backend, Precision
from asr.errors import AsrError
from asr.loading import load_engine
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance

PROVEN_FOR_S = 5.0
"""How long a batch that went well stands for the health of the model, so that checks cost nothing under load."""
MAX_DOOR_BATCHES = 64

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True)
class RecognizerConfig:
    """Which model to run and how. batch_wait_s: how long the first of simultaneous requests waits for the others."""

    model: str
    precision: Precision
    backend: Backend
    threads: int | None
    cache_dir: Path | None
    limits: BatchLimits
    batch_wait_s: float


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
    """Recognises utterances in batches. On a GPU the Serve config gives it one (`num_gpus: 1`).

    `@serve.batch` is the door: it collects what arrives together. Batches for the model are made by the `Batcher`
    behind it, which takes everything that waits whenever the model is free; `@serve.batch` alone would queue many small
    batches up.
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
        self._batcher = Batcher(self._engine.recognize, config.limits)
        self._admit = serve.batch(
            max_batch_size=config.limits.rows,
            batch_wait_timeout_s=config.batch_wait_s,
            max_concurrent_batches=MAX_DOOR_BATCHES,
        )(self._recognize_all)
        self._proven_at = time.monotonic()
        logger.info("%s %s ready in %.1f s", config.model, config.precision, time.monotonic() - started)

    async def describe(self) -> ModelInfo:
        return ModelInfo(self._engine.dims.n_mels, self._engine.tokenizer.languages)

    async def recognize(self, utterance: Utterance) -> Recognition:
        """
        Raises:
            AsrError: this utterance cannot be recognised; its neighbours in the batch are not affected.
        """
        result: Recognition | AsrError = await self._admit(utterance)
        if isinstance(result, AsrError):
            raise result
        return result

    async def check_health(self) -> None:
        """Have the model recognise something, unless it just did. Ray restarts a replica where this raises."""
        if time.monotonic() - self._proven_at > PROVEN_FOR_S:
            silence = np.zeros((self._engine.dims.n_mels, 100), np.float32)
            await self.recognize(Utterance(silence, DecodingOptions(language="en"), fallback=False))

    async def _recognize_all(self, utterances: Sequence[Utterance]) -> list[Recognition | AsrError]:
        return await asyncio.gather(*map(self._recognize_one, utterances))

    async def _recognize_one(self, utterance: Utterance) -> Recognition | AsrError:
        """One result or error a row: raising here would fail the whole batch."""
        try:
            recognition = await asyncio.wrap_future(self._batcher.submit(utterance))
        except AsrError as error:
            return error
        self._proven_at = time.monotonic()
        return recognition
