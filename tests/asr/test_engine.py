"""Batches: a row has the result that it has alone, and a row that fails fails alone."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.build.artefacts import ensure_artefacts
from asr.build.recipe import Recipe
from asr.engine import Engine
from asr.errors import AsrError, OutOfMemoryError, RecognitionError, UnsupportedLanguageError, UnsupportedTaskError
from asr.features import SAMPLE_RATE, LogMel
from asr.loading import load_engine
from asr.memory import HEADROOM, DeviceMemory, batch_bytes
from asr.model import Dims
from asr.session import Session
from asr.sessions.onnxruntime import OnnxSession
from asr.sessions.pytorch import torch_sessions
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
        self.device, self.dtype = session.device, session.dtype
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


# --- a batch that the device has no room for


class LimitedSession:
    """The real session, on a device with room for so many rows."""

    def __init__(self, session: Session, most_rows: int) -> None:
        self._session = session
        self._most_rows = most_rows
        self.device, self.dtype = session.device, session.dtype
        self.tried: list[int] = []

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        rows = len(next(iter(inputs.values())))
        self.tried.append(rows)
        if rows > self._most_rows:
            raise OutOfMemoryError(f"no room for {rows} rows")
        return self._session.run(inputs)


@dataclass(frozen=True)
class Limited:
    """An engine of tiny.en, and its encoder, which remembers the batches that it was given."""

    engine: Engine
    encoder: LimitedSession

    @classmethod
    def to(
        cls, tiny_en: LoadedModel, encoder_rows: int = 99, decoder_rows: int = 99, memory: DeviceMemory | None = None
    ) -> Limited:
        encoder, decoder = torch_sessions(tiny_en.encoder, tiny_en.decoder, tiny_en.dims)
        limited = LimitedSession(encoder, encoder_rows)
        sessions = limited, LimitedSession(decoder, decoder_rows)
        return cls(Engine(tiny_en.dims, tiny_en.checkpoint.tokenizer, *sessions, memory), limited)


@pytest.fixture(scope="module")
def sentences(recording: Recording) -> list[Utterance]:
    cuts = ((0.5, 2.2), (2.4, 4.7), (4.9, 6.4), (6.4, 8.5), (8.6, 10.4))
    return [Utterance(recording.cut(*cut), ENGLISH) for cut in cuts]


@pytest.fixture(scope="module")
def texts(tiny_en: LoadedModel, sentences: Sequence[Utterance]) -> list[str]:
    """Of each sentence alone."""
    engine = Limited.to(tiny_en).engine
    heard = [recognized_alone(engine, sentence).text for sentence in sentences]
    assert len(set(heard)) == len(heard)
    return heard


def outcomes(results: Sequence[Recognition | AsrError]) -> list[str | type[AsrError]]:
    return [result.text if isinstance(result, Recognition) else type(result) for result in results]


@pytest.mark.parametrize(("encoder_rows", "decoder_rows"), [(3, 99), (99, 3)])
def test_a_batch_is_tried_again_in_halves(
    tiny_en: LoadedModel, sentences: Sequence[Utterance], texts: Sequence[str], encoder_rows: int, decoder_rows: int
) -> None:
    limited = Limited.to(tiny_en, encoder_rows, decoder_rows)

    assert outcomes(limited.engine.recognize(sentences)) == texts
    assert limited.encoder.tried == [5, 2, 3]


def test_a_half_without_room_fails_alone(
    tiny_en: LoadedModel, sentences: Sequence[Utterance], texts: Sequence[str]
) -> None:
    limited = Limited.to(tiny_en, encoder_rows=2)
    results = limited.engine.recognize(sentences)

    assert outcomes(results) == [*texts[:2], *[OutOfMemoryError] * 3]
    assert all("no room for 3 rows" in str(error) for error in results[2:])
    assert limited.encoder.tried == [5, 2, 3]


def test_no_half_has_room(tiny_en: LoadedModel, sentences: Sequence[Utterance]) -> None:
    limited = Limited.to(tiny_en, encoder_rows=1)

    assert outcomes(limited.engine.recognize(sentences)) == [OutOfMemoryError] * 5
    assert limited.encoder.tried == [5, 2, 3]


def test_a_row_without_room_is_not_tried_twice(tiny_en: LoadedModel, sentences: Sequence[Utterance]) -> None:
    limited = Limited.to(tiny_en, encoder_rows=0)

    assert outcomes(limited.engine.recognize(sentences[:1])) == [OutOfMemoryError]
    assert limited.encoder.tried == [1]


def test_two_rows_without_room_for_both(
    tiny_en: LoadedModel, sentences: Sequence[Utterance], texts: Sequence[str]
) -> None:
    limited = Limited.to(tiny_en, encoder_rows=1)

    assert outcomes(limited.engine.recognize(sentences[:2])) == texts[:2]
    assert limited.encoder.tried == [2, 1, 1]


def test_rows_keep_their_places_when_split(
    tiny_en: LoadedModel, sentences: Sequence[Utterance], texts: Sequence[str]
) -> None:
    """Those that are unfit take no part in it."""
    limited = Limited.to(tiny_en, encoder_rows=2)
    german = replace(sentences[1], options=DecodingOptions(language="de"))
    results = limited.engine.recognize([sentences[3], german, sentences[0], german, sentences[4], sentences[1]])

    unfit = UnsupportedLanguageError
    assert outcomes(results) == [texts[3], unfit, texts[0], unfit, texts[4], texts[1]]
    assert limited.encoder.tried == [4, 2, 2]


def test_a_half_that_fails_otherwise_is_tried_row_by_row(
    tiny_en: LoadedModel, sentences: Sequence[Utterance], texts: Sequence[str]
) -> None:
    encoder, decoder = torch_sessions(tiny_en.encoder, tiny_en.decoder, tiny_en.dims)
    limited = LimitedSession(FailingSession(encoder), 3)
    engine = Engine(tiny_en.dims, tiny_en.checkpoint.tokenizer, limited, decoder)
    results = engine.recognize([sentences[0], sentences[1], marked(sentences[2]), sentences[3]])

    assert outcomes(results) == [texts[0], texts[1], RecognitionError, texts[3]]
    assert limited.tried == [4, 2, 2, 1, 1]


@dataclass(frozen=True)
class RoomFor(DeviceMemory):
    """A device with room for so many rows of the longest of these utterances, and no more."""

    rows: int
    dims: Dims
    utterances: Sequence[Utterance]

    def free_bytes(self) -> int:
        positions = max(utterance.window.positions for utterance in self.utterances)
        return round(HEADROOM * batch_bytes(self.dims, torch.float32, rows=self.rows, positions=positions)) + 1


def test_a_batch_that_cannot_fit_is_not_tried(
    tiny_en: LoadedModel, sentences: Sequence[Utterance], texts: Sequence[str]
) -> None:
    memory = RoomFor(torch.device("cpu"), 3, tiny_en.dims, sentences)
    limited = Limited.to(tiny_en, memory=memory)

    assert outcomes(limited.engine.recognize(sentences)) == texts
    assert limited.encoder.tried == [2, 3]


def test_a_warm_up_without_room_is_not_hidden(tiny_en: LoadedModel) -> None:
    """Its batch is as large as any in service."""
    with pytest.raises(OutOfMemoryError):
        Limited.to(tiny_en, encoder_rows=1).engine.warm_up(5)


class CrampedSession(LimitedSession):
    """Holds what it computes while it fails, as the frames of a network do, and sees whether that is still there."""

    def __init__(self, session: Session, most_rows: int) -> None:
        super().__init__(session, most_rows)
        self.held: list[weakref.ref[Tensor]] = []
        self.alive: list[int] = []

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.alive.append(sum(reference() is not None for reference in self.held))
        activations = torch.zeros(10)
        self.held.append(weakref.ref(activations))
        return super().run(inputs)


def test_the_first_try_is_gone_before_the_next(
    tiny_en: LoadedModel, sentences: Sequence[Utterance], texts: Sequence[str]
) -> None:
    """An error's traceback holds every tensor of the networks, on a device that has no room for the batch twice."""
    encoder, decoder = torch_sessions(tiny_en.encoder, tiny_en.decoder, tiny_en.dims)
    cramped = CrampedSession(encoder, 3)
    results = Engine(tiny_en.dims, tiny_en.checkpoint.tokenizer, cramped, decoder).recognize(sentences)

    assert outcomes(results) == texts
    assert cramped.alive == [0, 0, 0]


def test_an_error_holds_nothing(tiny_en: LoadedModel, sentences: Sequence[Utterance]) -> None:
    """It goes on its way to the client while other batches run."""
    encoder, decoder = torch_sessions(tiny_en.encoder, tiny_en.decoder, tiny_en.dims)
    cramped = CrampedSession(encoder, 0)
    results = Engine(tiny_en.dims, tiny_en.checkpoint.tokenizer, cramped, decoder).recognize(sentences[:1])

    assert outcomes(results) == [OutOfMemoryError]
    assert cramped.held[0]() is None
