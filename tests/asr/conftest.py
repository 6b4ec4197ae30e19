"""What several modules share: small models that were never trained, the real ones in all their forms, and speech."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.build.artefacts import ensure_artefacts
from asr.build.plan import decoder_profiles
from asr.checkpoint import Checkpoint, load_checkpoint
from asr.checkpoint.vocabulary import published_vocabulary
from asr.engine import Engine
from asr.features import SAMPLE_RATE, WINDOW_FRAMES, WINDOW_SAMPLES, LogMel
from asr.loading import load_engine
from asr.model import Dims, build_modules
from asr.sessions.pytorch import TorchSession, torch_sessions
from asr.tensorrt_library import TensorRTLibrary, load_tensorrt
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions
from asr.utterance import Utterance
from tests.asr import artefact_caches, tensorrt_sessions
from tests.asr.artefact_caches import FP32, INT8
from tests.asr.excerpts import ENGLISH, Features, Recording
from tests.asr.flight import Flight, Fly
from tests.asr.graphed_steps import STEP_DIMS, Graphed, torch_session
from tests.asr.network_runs import Sessions, built_sessions
from tests.asr.reference import LoadedModel, random_weights
from tests.asr.scripted_decoder import DIMS as SCRIPTED_DIMS
from tests.asr.scripted_decoder import ScriptedSession, Words, tokenizer_of
from tests.asr.sound_files import SAID_S
from tests.asr.tensorrt_stand_ins import Machine, decoder_graph
from tests.asr.writers import write_openai

SMALL_DIMS = {
    "tiny.en-like": Dims(80, 20, 16, 2, 2, 51_864, 12, 16, 2, 2),
    "large-v3-turbo-like": Dims(128, 20, 16, 2, 4, 51_866, 12, 16, 2, 1),
}


@pytest.fixture(scope="session")
def tensorrt() -> TensorRTLibrary:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("TensorRT for RTX, which needs no GPU, is there for Linux on x86-64 only")
    return load_tensorrt()


@pytest.fixture(scope="session")
def compiler(tensorrt: TensorRTLibrary) -> TensorRTLibrary:
    """A TensorRT that builds for GPUs that are not there."""
    if not hasattr(tensorrt.module.IBuilderConfig, "set_compute_capability"):
        pytest.skip(f"{tensorrt}, which is installed beside TensorRT for RTX, builds for the GPU of its machine only")
    return tensorrt


@pytest.fixture(scope="session", params=SMALL_DIMS)
def small_dims(request: pytest.FixtureRequest) -> Dims:
    return SMALL_DIMS[request.param]


@pytest.fixture(scope="session")
def small_weights(small_dims: Dims) -> Mapping[str, Tensor]:
    return random_weights(small_dims)


@pytest.fixture(scope="session")
def small_vocabulary(small_dims: Dims) -> Sequence[bytes]:
    vocabulary = published_vocabulary(small_dims.n_vocab)
    assert vocabulary is not None, "openai-whisper, which has the vocabularies, is not installed"
    return vocabulary


# --- single steps, and CUDA graphs that replay them


@pytest.fixture(scope="module")
def eager() -> TorchSession:
    return torch_session(build_modules(STEP_DIMS, random_weights(STEP_DIMS))[1], STEP_DIMS)


@pytest.fixture
def graphed(eager: TorchSession) -> Graphed:
    return Graphed.of(eager)


# --- stand-ins for TensorRT


@pytest.fixture(scope="module")
def networks() -> tuple[TorchSession, TorchSession]:
    """What computes in the stand-ins: an encoder and a decoder."""
    dims = tensorrt_sessions.DIMS
    return torch_sessions(*build_modules(dims, random_weights(dims)), dims)


@pytest.fixture
def machine(tensorrt: TensorRTLibrary, networks: tuple[TorchSession, TorchSession]) -> Machine:
    """With the decoder in it."""
    dims = tensorrt_sessions.DIMS
    profiles = decoder_profiles(dims, tensorrt_sessions.MAX_BATCH, tensorrt_sessions.FRAMES)
    return Machine(tensorrt, decoder_graph(dims, networks[1], profiles))


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "decoder.plan"
    path.write_bytes(b"what TensorRT would know how to read")
    return path


# --- real models, as modules and as exported graphs


@pytest.fixture(scope="module", params=["base", "tiny_en"])
def model(request: pytest.FixtureRequest) -> LoadedModel:
    loaded: LoadedModel = request.getfixturevalue(request.param)
    return loaded


@pytest.fixture(scope="module")
def torch_pair(model: LoadedModel) -> Sessions:
    return Sessions(*torch_sessions(model.encoder, model.decoder, model.dims))


@pytest.fixture(scope="module")
def onnx_sessions(model: LoadedModel, artefact_cache: Path) -> Sessions:
    return built_sessions(model, "fp32", artefact_cache)


@pytest.fixture(scope="module")
def int8_sessions(model: LoadedModel, artefact_cache: Path) -> Sessions:
    return built_sessions(model, "int8", artefact_cache)


@pytest.fixture(scope="module", params=["torch", "onnx"])
def sessions(request: pytest.FixtureRequest, torch_pair: Sessions, onnx_sessions: Sessions) -> Sessions:
    return {"torch": torch_pair, "onnx": onnx_sessions}[request.param]


@pytest.fixture(scope="module")
def windows(model: LoadedModel, speech: NDArray[Any]) -> Tensor:
    """Two full windows of speech: (2, n_mels, 3000)."""
    log_mel = LogMel(model.dims.n_mels)
    cuts = (speech[start : start + WINDOW_SAMPLES] for start in (0, 14 * SAMPLE_RATE))
    return torch.stack([torch.from_numpy(log_mel(cut)[:, :WINDOW_FRAMES]) for cut in cuts])


# --- caches of built graphs


@pytest.fixture(scope="session")
def weights_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer that was never trained: 4 MB, built in seconds."""
    path = tmp_path_factory.mktemp("model") / "little.pt"
    write_openai(path, artefact_caches.DIMS, random_weights(artefact_caches.DIMS))
    return path


@pytest.fixture(scope="session")
def checkpoint(weights_file: Path) -> Checkpoint:
    return load_checkpoint(weights_file)


@pytest.fixture(scope="session")
def built_cache(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    ensure_artefacts(checkpoint, FP32, cache)
    return cache


@pytest.fixture(scope="session")
def int8_cache(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    ensure_artefacts(checkpoint, INT8, cache)
    return cache


@pytest.fixture
def cache(built_cache: Path, tmp_path: Path) -> Path:
    """A cache of one's own that has the graphs in fp32."""
    return shutil.copytree(built_cache, tmp_path / "cache")


# --- decoders that say what a script has them say


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return tokenizer_of(SCRIPTED_DIMS)


@pytest.fixture(scope="session")
def say(tokenizer: Tokenizer) -> Words:
    return Words(tokenizer)


@pytest.fixture
def fly(tokenizer: Tokenizer) -> Fly:
    return lambda *scripts: Flight(tokenizer, ScriptedSession(SCRIPTED_DIMS.n_vocab, *scripts))


# --- speech, and an engine that hears it


@pytest.fixture(scope="module")
def engine(base: LoadedModel, artefact_cache: Path) -> Engine:
    return load_engine(base.checkpoint, precision="int8", backend="onnx", cache_dir=artefact_cache)


@pytest.fixture(scope="module")
def recording(speech: Features) -> Recording:
    return Recording(speech)


@pytest.fixture(scope="module")
def best_of_times(recording: Recording) -> Utterance:
    return Utterance(recording.cut(0.5, 4.7), ENGLISH)


@pytest.fixture(scope="module")
def age_of_foolishness(recording: Recording) -> Utterance:
    return Utterance(recording.cut(6.4, 8.5), ENGLISH)


@pytest.fixture(scope="module")
def said(speech: NDArray[np.float32]) -> NDArray[np.float32]:
    """3 s of speech without a pause, at 16 kHz, no louder than 0.5."""
    excerpt = speech[round(13.4 * SAMPLE_RATE) :][: round(SAID_S * SAMPLE_RATE)]
    scaled: NDArray[np.float32] = excerpt / np.abs(excerpt).max() / 2
    return scaled


@pytest.fixture(scope="module")
def crowd(recording: Recording) -> list[Utterance]:
    """Seven lengths, from 0.4 s to 25 s, of several languages, tasks and prompts; one in a full window."""
    return [
        Utterance(recording.cut(1.1, 1.5), DecodingOptions()),
        Utterance(recording.cut(0.5, 4.7), DecodingOptions()),
        Utterance(recording.cut(2.0, 27.0), DecodingOptions(language="en", prompt="It was the best of times,")),
        Utterance(recording.cut(8.6, 13.1), DecodingOptions(language="de")),
        Utterance(recording.cut(13.2, 20.6), DecodingOptions(language="fr", task="translate")),
        Utterance(recording.cut(10.5, 13.1), DecodingOptions(prompt="It was the epoch of belief,"), full_window=True),
        Utterance(recording.cut(26.0, 28.8), DecodingOptions(language="en", temperature=0.4)),
    ]
