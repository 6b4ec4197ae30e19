"""How the deployments are put together; nothing is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from ray.serve import Application, Deployment

import serve_app
from asr.build.recipe import Backend
from asr.scheduler import BatchLimits
from deployments.recognizer import Recognizer, RecognizerConfig
from deployments.transcriber import Transcriber
from serve_app.application import build_app, recognizer_config
from serve_app.ingress import Ingress
from serve_app.settings import Settings

ROOT = Path(__file__).parents[2]


def bound(application: Application) -> tuple[Deployment, tuple[Any, ...]]:
    """The deployment that an application is made of, and its arguments."""
    deployment = application._bound_deployment
    return deployment, deployment.init_args


def test_requests_go_from_the_ingress_to_the_transcriber_to_the_recogniser() -> None:
    settings = Settings(model="tiny.en", precision="fp32")

    ingress, (transcriber_application, model_name) = bound(build_app(settings))
    transcriber, (recognizer_application,) = bound(transcriber_application)
    recognizer, (config,) = bound(recognizer_application)

    classes = [deployment.func_or_class for deployment in (ingress, transcriber, recognizer)]
    assert classes == [cast(Any, deployment).func_or_class for deployment in (Ingress, Transcriber, Recognizer)]
    assert model_name == "tiny.en"
    assert config == recognizer_config(settings)


def test_units_are_converted() -> None:
    settings = Settings(max_batch_size=4, max_batch_audio_s=90.5, batch_wait_ms=2.5, threads=3, cache_dir=Path("/c"))

    assert recognizer_config(settings) == RecognizerConfig(
        model="base",
        precision="int8",
        backend="auto",
        threads=3,
        cache_dir=Path("/c"),
        limits=BatchLimits(rows=4, frames=9050, wait_s=0.0025),
    )


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("auto", BatchLimits(rows=16, frames=0)),
        ("onnx", BatchLimits(rows=16, frames=0)),
        ("tensorrt", BatchLimits(rows=32, frames=24_000)),
    ],
)
def test_limits_are_by_default_what_suits_the_device(backend: Backend, expected: BatchLimits) -> None:
    """One at a time on a processor, 240 s on a GPU."""
    assert recognizer_config(Settings(backend=backend)).limits == expected


@pytest.mark.parametrize("backend", ["onnx", "tensorrt"])
def test_limits_that_are_given_hold_on_any_device(backend: Backend) -> None:
    settings = Settings(backend=backend, max_batch_size=1, max_batch_audio_s=30)
    assert recognizer_config(settings).limits == BatchLimits(rows=1, frames=3000)
    assert recognizer_config(Settings(backend=backend, max_batch_audio_s=0)).limits.frames == 0


def test_the_package_has_what_serve_run_imports() -> None:
    _, (_, model_name) = bound(serve_app.app)

    assert model_name == "base"
    assert serve_app.build_app is build_app
    with pytest.raises(AttributeError, match="nothing"):
        _ = serve_app.nothing


@pytest.mark.parametrize("module", ["serve_app.api", "serve_app.ingress"])
def test_the_http_replica_loads_no_model_library(module: str) -> None:
    script = f"import json, sys, {module}; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    finished = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True, text=True)
    loaded = set(json.loads(finished.stdout))

    assert "ray" in loaded
    assert loaded.isdisjoint({"av", "onnxruntime", "silero_vad", "torch", "torchaudio"})
