"""Composition: every deployment of the application and how they are bound together."""

# Annotations stay objects in this module: Serve reads the builder's to turn command-line arguments into Settings.

from typing import Any

from ray.serve import Application

from asr.batcher import BatchLimits
from asr.features import FRAMES_PER_SECOND
from deployments.recognizer import Recognizer, RecognizerConfig
from deployments.transcriber import Transcriber
from serve_app.ingress import Ingress
from serve_app.settings import Settings


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
        limits=BatchLimits(settings.max_batch_size, int(settings.max_batch_audio_s * FRAMES_PER_SECOND)),
        batch_wait_s=settings.batch_wait_ms / 1000,
    )
