"""A row that fails fails alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from asr.build.artefacts import ensure_artefacts
from asr.build.recipe import Recipe
from asr.engine import Engine
from asr.errors import AsrError, RecognitionError, UnsupportedLanguageError, UnsupportedTaskError
from asr.loading import load_engine
from asr.sessions.onnxruntime import OnnxSession
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance
from tests.asr.excerpts import ENGLISH, Features
from tests.asr.failing_session import FailingSession, marked
from tests.asr.recognition import assert_same, recognized, recognized_alone
from tests.asr.reference import LoadedModel


@pytest.fixture(scope="module")
def english_engine(tiny_en: LoadedModel, artefact_cache: Path) -> Engine:
    return load_engine(tiny_en.checkpoint, precision="int8", cache_dir=artefact_cache)


def assert_fails_alone(
    engine: Engine, bad: Utterance, neighbours: tuple[Utterance, Utterance], kind: type[AsrError]
) -> AsrError:
    before, error, after = engine.recognize([neighbours[0], bad, neighbours[1]])

    assert type(error) is kind
    for heard, neighbour in zip((before, after), neighbours, strict=True):
        assert isinstance(heard, Recognition)
        assert_same(heard, recognized_alone(engine, neighbour))
    return error


@pytest.fixture(scope="module")
def neighbours(best_of_times: Utterance, age_of_foolishness: Utterance) -> tuple[Utterance, Utterance]:
    return best_of_times, age_of_foolishness


@pytest.mark.parametrize(
    ("log_mel", "message"),
    [
        pytest.param(np.full((80, 50), np.nan, np.float32), "not finite", id="not a number"),
        pytest.param(np.full((80, 50), np.inf, np.float32), "not finite", id="infinite"),
        pytest.param(np.zeros((128, 50), np.float32), "80-mel", id="mels of another model"),
        pytest.param(np.zeros(80, np.float32), "shape", id="no frames"),
        pytest.param(np.zeros((80, 0), np.float32), "0 frames", id="empty"),
        pytest.param(np.zeros((80, 3001), np.float32), "3001 frames", id="longer than the window"),
    ],
)
def test_features_that_are_none(
    engine: Engine, neighbours: tuple[Utterance, Utterance], log_mel: Features, message: str
) -> None:
    error = assert_fails_alone(engine, Utterance(log_mel, ENGLISH), neighbours, RecognitionError)

    assert message in str(error)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (DecodingOptions(language="xx"), UnsupportedLanguageError),
        (DecodingOptions(language="yue"), UnsupportedLanguageError),
        (DecodingOptions(language="en", task="summarise"), UnsupportedTaskError),
    ],
)
def test_options_that_the_model_does_not_have(
    engine: Engine, neighbours: tuple[Utterance, Utterance], options: DecodingOptions, kind: type[AsrError]
) -> None:
    assert_fails_alone(engine, replace(neighbours[0], options=options), neighbours, kind)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (DecodingOptions(language="de"), UnsupportedLanguageError),
        (DecodingOptions(task="translate"), UnsupportedTaskError),
        (DecodingOptions(language="en", task="translate"), UnsupportedTaskError),
    ],
)
def test_an_english_model_ignores_nothing(
    english_engine: Engine, neighbours: tuple[Utterance, Utterance], options: DecodingOptions, kind: type[AsrError]
) -> None:
    assert_fails_alone(english_engine, replace(neighbours[0], options=options), neighbours, kind)


def test_an_english_model_hears_english(english_engine: Engine, best_of_times: Utterance) -> None:
    unsaid = replace(best_of_times, options=DecodingOptions())
    first, second = recognized(english_engine, unsaid, best_of_times)

    assert first == second
    assert first.language == "en"
    assert "best of times" in first.text


@pytest.fixture
def failing_encoder(base: LoadedModel, artefact_cache: Path) -> FailingSession:
    return FailingSession(
        OnnxSession(ensure_artefacts(base.checkpoint, Recipe("int8"), artefact_cache).encoder, threads=2)
    )


@pytest.fixture
def failing_engine(base: LoadedModel, artefact_cache: Path, failing_encoder: FailingSession) -> Engine:
    decoder = OnnxSession(ensure_artefacts(base.checkpoint, Recipe("int8"), artefact_cache).decoder, threads=2)
    return Engine(base.dims, base.checkpoint.tokenizer, failing_encoder, decoder)


def test_a_row_that_the_graph_fails_on(failing_engine: Engine, neighbours: tuple[Utterance, Utterance]) -> None:
    error = assert_fails_alone(failing_engine, marked(neighbours[0]), neighbours, RecognitionError)

    assert "out of memory" in str(error)


def test_rows_are_tried_once_more_each(
    failing_engine: Engine, failing_encoder: FailingSession, neighbours: tuple[Utterance, Utterance]
) -> None:
    results = failing_engine.recognize([marked(neighbours[0]), neighbours[1], marked(neighbours[1])])

    assert [type(result) for result in results] == [RecognitionError, Recognition, RecognitionError]
    assert failing_encoder.runs == 1 + 3


def test_a_failing_warm_up_is_not_hidden(base: LoadedModel, failing_encoder: FailingSession) -> None:
    class Broken:
        device, dtype = torch.device("cpu"), torch.float32

        def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            raise RecognitionError("no kernel")

    with pytest.raises(RecognitionError, match="no kernel"):
        Engine(base.dims, base.checkpoint.tokenizer, Broken(), Broken()).warm_up(2)
