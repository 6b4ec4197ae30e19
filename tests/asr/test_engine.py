"""Batches: a row has the result that it has alone, and a row that fails fails alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.build.artefacts import ensure_artefacts
from asr.engine import Engine, load_engine
from asr.errors import AsrError, RecognitionError, UnsupportedLanguageError, UnsupportedTaskError
from asr.features import SAMPLE_RATE, LogMel
from asr.session import Session
from asr.sessions.onnxruntime import OnnxSession
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance
from tests.asr.reference import LoadedModel

LOGPROB_TOLERANCE = 0.02
"""On the processor that this was written on a row's numbers differ by 4e-7 at most. Elsewhere sums may come in another
order, and int8 makes more of a last bit."""

ENGLISH = DecodingOptions(language="en")

Features = NDArray[np.float32]


@pytest.fixture(scope="module")
def engine(base: LoadedModel, artefact_cache: Path) -> Engine:
    return load_engine(base.checkpoint, precision="int8", cache_dir=artefact_cache)


@pytest.fixture(scope="module")
def english_engine(tiny_en: LoadedModel, artefact_cache: Path) -> Engine:
    return load_engine(tiny_en.checkpoint, precision="int8", cache_dir=artefact_cache)


class Recording:
    """Features of stretches of the recording."""

    def __init__(self, samples: Features) -> None:
        self._samples = samples
        self._log_mel = LogMel(80)

    def cut(self, start_s: float, end_s: float) -> Features:
        return self._log_mel(self._samples[round(start_s * SAMPLE_RATE) : round(end_s * SAMPLE_RATE)])


@pytest.fixture(scope="module")
def recording(speech: Features) -> Recording:
    return Recording(speech)


@pytest.fixture(scope="module")
def best_of_times(recording: Recording) -> Utterance:
    return Utterance(recording.cut(0.5, 4.7), ENGLISH)


@pytest.fixture(scope="module")
def age_of_foolishness(recording: Recording) -> Utterance:
    return Utterance(recording.cut(6.4, 8.5), ENGLISH)


def recognized(engine: Engine, *utterances: Utterance) -> list[Recognition]:
    results = engine.recognize(utterances)
    heard = [result for result in results if isinstance(result, Recognition)]
    assert len(heard) == len(results) == len(utterances), results
    return heard


def recognized_alone(engine: Engine, utterance: Utterance) -> Recognition:
    [heard] = recognized(engine, utterance)
    return heard


def assert_same(actual: Recognition, expected: Recognition) -> None:
    assert actual.text == expected.text
    assert actual.tokens == expected.tokens
    assert (actual.language, actual.complete) == (expected.language, expected.complete)
    assert actual.avg_logprob == pytest.approx(expected.avg_logprob, abs=LOGPROB_TOLERANCE)
    assert actual.no_speech_prob == pytest.approx(expected.no_speech_prob, abs=LOGPROB_TOLERANCE)


# --- what is heard


def test_speech_is_recognized(engine: Engine, best_of_times: Utterance) -> None:
    heard = recognized_alone(engine, best_of_times)

    assert heard.text == " It was the best of times, it was the worst of times."
    assert heard.language == "en"
    assert heard.complete
    assert heard.no_speech_prob < 0.3
    assert -0.3 < heard.avg_logprob < 0


def test_languages_are_detected_row_by_row(engine: Engine, best_of_times: Utterance) -> None:
    """Where one is given, it is taken, whatever is spoken."""
    unsaid, german = replace(best_of_times, options=DecodingOptions()), DecodingOptions(language="de")
    heard = recognized(engine, unsaid, replace(best_of_times, options=german), unsaid)

    assert [result.language for result in heard] == ["en", "de", "en"]
    assert heard[0].text == heard[2].text == recognized_alone(engine, best_of_times).text


def test_a_prompt_sets_the_spelling(engine: Engine, best_of_times: Utterance) -> None:
    prompt = "IT WAS THE AGE OF WISDOM. IT WAS THE AGE OF FOOLISHNESS. IT WAS THE EPOCH OF BELIEF."
    heard = recognized_alone(engine, replace(best_of_times, options=replace(ENGLISH, prompt=prompt)))

    assert heard.text.isupper()
    assert "THE BEST OF TIMES" in heard.text


def test_a_prompt_longer_than_the_model_takes(engine: Engine, best_of_times: Utterance) -> None:
    sentence = "It was the epoch of belief, it was the epoch of incredulity, it was the season of Light. "
    endless = replace(best_of_times, options=replace(ENGLISH, prompt=sentence * 100))
    heard, beside = recognized(engine, endless, best_of_times)

    assert "best of times" in heard.text.lower()
    assert len(engine.tokenizer.encode(endless.options.prompt)) > engine.dims.n_text_ctx
    assert_same(beside, recognized_alone(engine, best_of_times))


def test_noise_ends(engine: Engine) -> None:
    """Features that no sound makes, on which a model may go on for ever."""
    noise = np.random.default_rng(0).standard_normal((80, 100)).astype(np.float32)
    sampled = replace(ENGLISH, temperature=1.0)
    for heard in recognized(engine, Utterance(noise, ENGLISH), Utterance(noise, sampled)):
        assert len(heard.tokens) <= 20 + 25
        assert heard.complete or len(heard.tokens) == 20 + 25


def test_nothing_to_recognize(engine: Engine) -> None:
    assert engine.recognize([]) == []


def test_the_same_draw_every_time(engine: Engine, recording: Recording) -> None:
    """At temperature 1 noisy speech reads differently, but not differently today than yesterday."""
    utterance = Utterance(recording.cut(26.0, 31.0), ENGLISH)
    sampled = replace(utterance, options=replace(ENGLISH, temperature=1.0))
    first, again = recognized(engine, sampled, sampled)

    assert_same(again, first)
    assert_same(recognized_alone(engine, sampled), first)
    assert first.temperature == 1.0
    assert first.avg_logprob < recognized_alone(engine, utterance).avg_logprob


def test_warm_up_works(engine: Engine) -> None:
    engine.warm_up(3)


# --- rows of a batch do not touch each other


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


@pytest.fixture(scope="module")
def alone(engine: Engine, crowd: Sequence[Utterance]) -> list[Recognition]:
    return [recognized_alone(engine, utterance) for utterance in crowd]


def test_beside_itself(engine: Engine, crowd: Sequence[Utterance], alone: Sequence[Recognition]) -> None:
    for utterance, expected in zip(crowd, alone, strict=True):
        for heard in recognized(engine, utterance, utterance):
            assert_same(heard, expected)


def test_among_strangers(engine: Engine, crowd: Sequence[Utterance], alone: Sequence[Recognition]) -> None:
    for heard, expected in zip(recognized(engine, *crowd), alone, strict=True):
        assert_same(heard, expected)


def test_among_other_strangers(engine: Engine, crowd: Sequence[Utterance], alone: Sequence[Recognition]) -> None:
    """Where none is long, all tensors are smaller, and the rows in another order."""
    for rows in ([6, 4, 3, 1, 0], [3, 3, 6]):
        for row, heard in zip(rows, recognized(engine, *(crowd[row] for row in rows)), strict=True):
            assert_same(heard, alone[row])


def test_the_crowd_says_different_things(alone: Sequence[Recognition]) -> None:
    assert len({heard.text for heard in alone}) == len(alone)
    assert all(heard.text for heard in alone)


# --- a row that fails fails alone


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


class FailingSession:
    """The real session, but for batches in which some row's first value is the mark."""

    MARK = 0.123

    def __init__(self, session: Session) -> None:
        self._session = session
        self.device = session.device
        self.runs = 0

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.runs += 1
        if bool((inputs["mel"][:, 0, 0] == torch.tensor(self.MARK)).any()):
            raise RecognitionError("out of memory")
        return self._session.run(inputs)


def marked(utterance: Utterance) -> Utterance:
    log_mel = utterance.log_mel.copy()
    log_mel[0, 0] = FailingSession.MARK
    return replace(utterance, log_mel=log_mel)


@pytest.fixture
def failing_encoder(base: LoadedModel, artefact_cache: Path) -> FailingSession:
    return FailingSession(OnnxSession(ensure_artefacts(base.checkpoint, "int8", artefact_cache).encoder, threads=2))


@pytest.fixture
def failing_engine(base: LoadedModel, artefact_cache: Path, failing_encoder: FailingSession) -> Engine:
    decoder = OnnxSession(ensure_artefacts(base.checkpoint, "int8", artefact_cache).decoder, threads=2)
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
        device = torch.device("cpu")

        def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            raise RecognitionError("no kernel")

    with pytest.raises(RecognitionError, match="no kernel"):
        Engine(base.dims, base.checkpoint.tokenizer, Broken(), Broken()).warm_up(2)
