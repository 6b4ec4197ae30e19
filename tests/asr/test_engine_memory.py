"""A batch that the device has no room for is tried again in halves."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from asr.decoding import Row
from asr.engine import Engine
from asr.errors import AsrError, OutOfMemoryError, RecognitionError, UnsupportedLanguageError
from asr.kv_cache import KvCache
from asr.lane import Encoded, Lane
from asr.memory import HEADROOM, DeviceMemory, batch_bytes
from asr.model import Dims
from asr.session import Session
from asr.sessions.pytorch import torch_sessions
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance
from tests.asr.excerpts import ENGLISH, Recording
from tests.asr.failing_session import FailingSession, marked
from tests.asr.recognition import recognized_alone
from tests.asr.reference import LoadedModel


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


def test_a_batch_is_tried_again_in_halves(
    tiny_en: LoadedModel, sentences: Sequence[Utterance], texts: Sequence[str]
) -> None:
    limited = Limited.to(tiny_en, encoder_rows=3)

    assert outcomes(limited.engine.recognize(sentences)) == texts
    assert limited.encoder.tried == [5, 2, 3]


def test_prompts_are_read_again_in_halves(tiny_en: LoadedModel, sentences: Sequence[Utterance]) -> None:
    prompted = [replace(sentence, options=replace(ENGLISH, prompt="A Tale of Two Cities.")) for sentence in sentences]
    limited = Limited.to(tiny_en, decoder_rows=3)

    expected = [recognized_alone(Limited.to(tiny_en).engine, sentence).text for sentence in prompted]
    assert outcomes(limited.engine.recognize(prompted)) == expected
    assert limited.encoder.tried == [5, 2, 3]


def test_a_step_that_does_not_fit_is_run_row_by_row(
    tiny_en: LoadedModel, sentences: Sequence[Utterance], texts: Sequence[str]
) -> None:
    limited = Limited.to(tiny_en, decoder_rows=3)

    assert outcomes(limited.engine.recognize(sentences)) == texts
    assert limited.encoder.tried == [5]


def test_rows_that_have_no_room_in_flight_are_tried_again_in_halves(
    tiny_en: LoadedModel, sentences: Sequence[Utterance], texts: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = Limited.to(tiny_en)
    join = Lane.join

    def refuse(lane: Lane[Row], rows: Sequence[Row], encoded: Encoded, cache: KvCache) -> None:
        if len(rows) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        join(lane, rows, encoded, cache)

    monkeypatch.setattr(Lane, "join", refuse)

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
