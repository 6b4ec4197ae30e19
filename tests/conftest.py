"""What tests share: real speech and real weights, all out of installed packages."""

from __future__ import annotations

import importlib.util
import os
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
import torchaudio
from numpy.typing import NDArray

from asr.build.artefacts import CACHE_VARIABLE
from asr.checkpoint import load_checkpoint
from asr.features import SAMPLE_RATE
from serve_app.ray_environment import configure_ray
from tests.asr.reference import LoadedModel

configure_ray(os.environ)  # before a test module imports Ray

# Where something else uses the cores, PyTorch's threads wait for each other: five times slower than one alone.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def speech() -> NDArray[np.float32]:
    """44 s of a man reading the start of "A Tale of Two Cities": (samples,) float32 at 16 kHz."""
    spec = importlib.util.find_spec("moonshine_voice")
    assert spec is not None, "moonshine-voice, which carries the speech, is not installed (rayscribe[test])"
    assert spec.origin is not None
    with wave.open(str(Path(spec.origin).parent / "assets" / "two_cities.wav")) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
    resampled: NDArray[np.float32] = torchaudio.functional.resample(
        torch.from_numpy(samples), rate, SAMPLE_RATE
    ).numpy()
    return resampled


@pytest.fixture(scope="session")
def base() -> LoadedModel:
    """Whisper base, multilingual."""
    return _loaded("base")


@pytest.fixture(scope="session")
def tiny_en() -> LoadedModel:
    """Whisper tiny.en, English only."""
    return _loaded("tiny.en")


@pytest.fixture(scope="session")
def artefact_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where graphs are built: kept between runs if the environment names a directory, else shared by the processes of
    this one."""
    kept = os.environ.get(CACHE_VARIABLE)
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    return Path(kept) if kept else folder / "artefacts"


def _loaded(name: str) -> LoadedModel:
    return LoadedModel.of(load_checkpoint(name))
