"""A row that fails fails alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from asr.build.artefacts import ensure_artefacts
from asr.build.recipe import Recipe
from asr.decoding import Row
from asr.engine import Engine
from asr.errors import AsrError, RecognitionError, UnsupportedLanguageError, UnsupportedTaskError
from asr.loading import load_engine
from asr.session import Session
from asr.sessions.onnxruntime import OnnxSession
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance
from tests.asr.decoded_rows import assert_nothing_left
from tests.asr.excerpts import ENGLISH, Features
from tests.asr.failing_session import FailingSession, marked
from tests.asr.recognition import assert_same, recognized, recognized_alone
from tests.asr.reference import LoadedModel


@pytest.fixture(scope="module")
def english_engine(tiny_en: LoadedModel, artefact_cache: Path) -> Engine:
    return load_engine(tiny_en.checkpoint, precision="int8", backend="onnx", cache_dir=artefact_cache)


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


def finished(engine: Engine, rows: Sequence[Row | AsrError]) -> list[Recognition | AsrError]:
    while engine.rows_in_flight:
        engine.step()
    return [engine.result(row) if isinstance(row, Row) else row for row in rows]


def test_what_is_encoded_ahead_is_encoded_once(
    failing_engine: Engine, failing_encoder: FailingSession, neighbours: tuple[Utterance, Utterance]
) -> None:
    encoded = failing_engine.encode(neighbours)
    results = finished(failing_engine, failing_engine.start(neighbours, encoded))

    assert failing_encoder.runs == 1
    for result, utterance in zip(results, neighbours, strict=True):
        assert isinstance(result, Recognition)
        assert_same(result, recognized_alone(failing_engine, utterance))


def test_what_is_encoded_ahead_beside_the_unfit_is_encoded_again(
    failing_engine: Engine, failing_encoder: FailingSession, neighbours: tuple[Utterance, Utterance]
) -> None:
    unfit = replace(neighbours[1], options=DecodingOptions(language="xx"))
    utterances = (neighbours[0], unfit)
    result, error = finished(failing_engine, failing_engine.start(utterances, failing_engine.encode(utterances)))

    assert failing_encoder.runs == 2
    assert isinstance(error, UnsupportedLanguageError)
    assert isinstance(result, Recognition)
    assert_same(result, recognized_alone(failing_engine, neighbours[0]))


def test_what_cannot_be_encoded_ahead_says_so(failing_engine: Engine, neighbours: tuple[Utterance, Utterance]) -> None:
    with pytest.raises(RecognitionError, match="out of memory"):
        failing_engine.encode([neighbours[0], marked(neighbours[1])])
    assert failing_engine.rows_in_flight == 0


class FlakyDecoder:
    """The real session, but every third step of several rows fails, and one of them makes no number of its last row."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.device, self.dtype = session.device, session.dtype
        self.steps = 0

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        rows, tokens = inputs["tokens"].shape
        if tokens > 1 or rows == 1:
            return self._session.run(inputs)
        self.steps += 1
        if self.steps % 3 == 0:
            raise RecognitionError("no room")
        outputs = self._session.run(inputs)
        if self.steps == 4:
            outputs["logits"][-1] = torch.nan
            outputs["new_kv"][:, :, -1] = torch.nan
        return outputs


def test_a_row_that_a_step_fails_on(
    engine: Engine, base: LoadedModel, artefact_cache: Path, neighbours: tuple[Utterance, Utterance]
) -> None:
    """Others have their results, whether they were beside it or came to its place."""
    artefacts = ensure_artefacts(base.checkpoint, Recipe("int8"), artefact_cache)
    flaky = FlakyDecoder(OnnxSession(artefacts.decoder, threads=2))
    flying = Engine(base.dims, base.checkpoint.tokenizer, OnnxSession(artefacts.encoder, threads=2), flaky)
    utterances = [*neighbours, *neighbours]
    rows = flying.start(utterances[:3])
    for _ in range(5):
        flying.step()
    rows += flying.start(utterances[3:])
    while flying.rows_in_flight:
        flying.step()

    assert_nothing_left(flying._decoder)
    assert flaky.steps > 9
    *sound, spoilt = (flying.result(row) for row in (rows[0], rows[1], rows[3], rows[2]) if isinstance(row, Row))
    assert "not a number" in str(spoilt)
    for result, utterance in zip(sound, (*neighbours, neighbours[1]), strict=True):
        assert isinstance(result, Recognition)
        assert_same(result, recognized_alone(engine, utterance))


def test_a_failing_warm_up_is_not_hidden(base: LoadedModel, failing_encoder: FailingSession) -> None:
    class Broken:
        device, dtype = torch.device("cpu"), torch.float32

        def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            raise RecognitionError("no kernel")

    with pytest.raises(RecognitionError, match="no kernel"):
        Engine(base.dims, base.checkpoint.tokenizer, Broken(), Broken()).warm_up(2)
