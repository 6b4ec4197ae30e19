"""Composition: every deployment of the application and how they are bound together."""

# Annotations stay objects in this module: Serve reads the builder's to turn command-line arguments into Settings.

from typing import Any

from ray.serve import Application

from asr.features import FRAMES_PER_SECOND
from asr.scheduler import BatchLimits
from deployments.recognizer import Recognizer, RecognizerConfig
from deployments.transcriber import Transcriber
from serve_app.ingress import Ingress
from serve_app.settings import Settings

GPU_LIMITS = BatchLimits(rows=32, frames=24_000)
"""By `benchmarks.simulation`: fewer rows fall behind sooner, and more frames or waiting for others win nothing."""


def build_app(settings: Settings) -> Application:
    """HTTP → Transcriber (CPU) → Recognizer (model)."""
    recognizer = _bind(Recognizer, recognizer_config(settings))
    transcriber = _bind(Transcriber, recognizer)
    return _bind(Ingress, transcriber, settings.model_name)


def _bind(deployment: Any, *arguments: Any) -> Application:
    """`deployment.bind`, which type checkers cannot see behind Serve's class decorator."""
    bound: Application = deployment.bind(*arguments)
    return bound


def recognizer_config(settings: Settings) -> RecognizerConfig:
    return RecognizerConfig(
        model=settings.model,
        precision=settings.precision,
        backend=settings.backend,
        threads=settings.threads,
        cache_dir=settings.cache_dir,
        limits=batch_limits(settings),
    )


def batch_limits(settings: Settings) -> BatchLimits:
    """What the settings say, and where they say nothing what suits the device."""
    usual = GPU_LIMITS if settings.backend == "tensorrt" else BatchLimits()
    audio_s = settings.max_batch_audio_s
    return BatchLimits(
        rows=settings.max_batch_size or usual.rows,
        frames=usual.frames if audio_s is None else int(audio_s * FRAMES_PER_SECOND),
        wait_s=settings.batch_wait_ms / 1000,
    )
