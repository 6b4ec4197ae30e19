"""Small models that were never trained, for what does not depend on recognising anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from torch import Tensor

from asr.checkpoint.vocabulary import published_vocabulary
from asr.model import Dims
from tests.asr.reference import random_weights

SMALL_DIMS = {
    "tiny.en-like": Dims(80, 20, 16, 2, 2, 51_864, 12, 16, 2, 2),
    "large-v3-turbo-like": Dims(128, 20, 16, 2, 4, 51_866, 12, 16, 2, 1),
}


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
