"""Small models that were never trained, for what does not depend on recognising anything."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence

import pytest
from torch import Tensor

from asr.checkpoint.vocabulary import published_vocabulary
from asr.model import Dims
from asr.tensorrt_library import TensorRTLibrary, load_tensorrt
from tests.asr.reference import random_weights

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
