"""A transcript put together from what is heard in each segment, and the whole way in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jiwer
import numpy as np
import pytest
from numpy.typing import NDArray

from asr.errors import AudioDecodeError, RecognitionError
from asr.features import SAMPLE_RATE
from asr.local import LocalTranscriber
from asr.segments import Segment
from asr.transcribe import transcribe_segments
from asr.transcript import DecodingOptions, Recognition, Timing, Transcript
from asr.utterance import Utterance
from tests.audio_files import wav

TWO_CITIES = """
It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, it was the
epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of Darkness, it was the
spring of hope, it was the winter of despair, we had everything before us, we had nothing before us, we were all going
direct to Heaven, we were all going direct the other way. In short, the period was so far like the present period, that
some of its noisiest authorities insisted on its being received, for good or for evil, in the superlative degree of
comparison only.
"""
"""Charles Dickens, A Tale of Two Cities, 1859, as far as it is read in the recording."""
NORMALISED = jiwer.Compose(
    [
        jiwer.ToLowerCase(),
        jiwer.RemovePunctuation(),  # type: ignore[no-untyped-call]
        jiwer.RemoveMultipleSpaces(),
        jiwer.Strip(),
        jiwer.ReduceToListOfListOfWords(),
    ]
)


def segment(number: int, frames: int = 100) -> Segment:
    """One that is recognised by the value of its features."""
    return Segment(10.0 * number, 10.0 * number + frames / 100, np.full((2, frames), number, np.float32))


class Recognizer:
    """Says a text for each segment; a segment waits until those that it comes after were said."""

    def __init__(
        self, texts: Sequence[str], *, detected: str = "en", after: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        self._texts = texts
        self._detected = detected
        self._after = after or {}
        self._said = [asyncio.Event() for _ in texts]
        self.heard: list[tuple[int, DecodingOptions]] = []

    async def __call__(self, utterance: Utterance) -> Recognition:
        number = int(utterance.log_mel[0, 0])
        self.heard.append((number, utterance.options))
        for earlier in self._after.get(number, ()):
            await self._said[earlier].wait()
        self._said[number].set()
        language = utterance.options.language or self._detected
        return Recognition(self._texts[number], (number,), language, -0.1, 0.0, 1.0, 0.0, complete=True)

    @property
    def languages(self) -> list[tuple[int, str | None]]:
        return [(number, options.language) for number, options in self.heard]


def transcribe(segments: Sequence[Segment], recognizer: Recognizer, language: str | None = "en") -> Transcript:
    async def bounded() -> Transcript:
        options = DecodingOptions(language=language, prompt="Names")
        return await asyncio.wait_for(transcribe_segments(segments, 60.0, options, recognizer), 10)

    return asyncio.run(bounded())


def test_the_order_is_that_of_the_recording_whatever_is_done_first() -> None:
    recognizer = Recognizer([" One.", " Two.", " Three."], after={0: [1], 1: [2]})
    transcript = transcribe([segment(0), segment(1), segment(2)], recognizer)

    assert transcript.text == "One. Two. Three."
    assert [said.recognition.tokens for said in transcript.segments] == [(0,), (1,), (2,)]
    assert [(said.start_s, said.end_s) for said in transcript.segments] == [(0.0, 1.0), (10.0, 11.0), (20.0, 21.0)]
    assert transcript.duration_s == 60.0


def test_with_a_language_no_segment_waits_for_another() -> None:
    """The first would wait forever if they were heard one after the other."""
    recognizer = Recognizer([" Eins", " Zwei"], after={0: [1]})
    transcript = transcribe([segment(0), segment(1)], recognizer, language="de")

    assert recognizer.languages == [(0, "de"), (1, "de")]
    assert transcript.language == "de"


def test_without_a_language_that_of_the_longest_segment_holds() -> None:
    recognizer = Recognizer([" Ja", " Nein", " Doch"], detected="de")
    transcript = transcribe([segment(0, 50), segment(1, 900), segment(2, 80)], recognizer, language=None)

    assert recognizer.languages == [(1, None), (0, "de"), (2, "de")]
    assert transcript.language == "de"
    assert transcript.text == "Ja Nein Doch"


def test_a_single_segment_has_its_language_detected() -> None:
    recognizer = Recognizer([" Hej"], detected="sv")

    assert transcribe([segment(0)], recognizer, language=None).language == "sv"
    assert recognizer.languages == [(0, None)]


def test_every_segment_has_the_options() -> None:
    recognizer = Recognizer(["", "", ""])
    transcribe([segment(0), segment(1), segment(2)], recognizer, language=None)

    assert [options.prompt for _, options in recognizer.heard] == ["Names"] * 3


def test_scripts_without_blanks_are_joined_without() -> None:
    assert transcribe([segment(0), segment(1)], Recognizer(["你好", "世界"]), language="zh").text == "你好世界"


@pytest.mark.parametrize("language", [None, "de"])
def test_nothing_said_is_an_empty_text(language: str | None) -> None:
    assert transcribe([], Recognizer([]), language) == Transcript("", language, 60.0, ())


def test_the_timing_is_that_of_the_segment_that_took_longest() -> None:
    timings = [
        Timing(queue_s=0.1, encode_s=0.2, decode_s=0.3, steps=9, rows=2.0),
        Timing(queue_s=0.5, encode_s=0.1, decode_s=0.1, steps=3, rows=4.0),
        Timing(queue_s=0.1, encode_s=0.1, decode_s=0.4, steps=7, rows=1.0),
    ]

    async def recognize(utterance: Utterance) -> Recognition:
        timing = timings[int(utterance.log_mel[0, 0])]
        return Recognition("", (), "en", 0.0, 0.0, 0.0, 0.0, complete=True, timing=timing)

    segments = [segment(number) for number in range(3)]
    transcript = asyncio.run(transcribe_segments(segments, 60.0, DecodingOptions("en"), recognize))

    assert transcript.timing.recognition == timings[1]
    assert transcript.timing.prepare_s == 0.0
    assert 0 < transcript.timing.assemble_s < 1


def test_nothing_said_took_no_time_to_recognise() -> None:
    assert transcribe([], Recognizer([])).timing.recognition == Timing()


@pytest.mark.parametrize("language", [None, "en"])
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_one_segment_is_the_error_of_the_recording(language: str | None, failing: int) -> None:
    async def recognize(utterance: Utterance) -> Recognition:
        if utterance.log_mel[0, 0] == failing:
            raise RecognitionError("too bad")
        return Recognition("", (), "en", 0.0, 0.0, 0.0, 0.0, complete=True)

    with pytest.raises(RecognitionError, match="too bad"):
        asyncio.run(transcribe_segments([segment(0, 300), segment(1)], 60.0, DecodingOptions(language), recognize))


@pytest.fixture(scope="module")
def local(artefact_cache: Path) -> Iterator[LocalTranscriber]:
    transcriber = LocalTranscriber.load("tiny.en", cache_dir=artefact_cache)
    yield transcriber
    transcriber.close()


def test_a_reading_is_transcribed(local: LocalTranscriber, speech: NDArray[np.float32]) -> None:
    transcript = local.transcribe(wav(speech))

    errors = jiwer.process_words(" ".join(TWO_CITIES.split()), transcript.text, NORMALISED, NORMALISED)
    assert errors.wer < 0.1
    assert transcript.language == "en"
    assert transcript.duration_s == pytest.approx(44.4, abs=0.1)
    assert len(transcript.segments) == 2


def test_silence_has_no_text(local: LocalTranscriber) -> None:
    assert local.transcribe(wav(np.zeros(3 * SAMPLE_RATE, np.float32))) == Transcript("", None, 3.0, ())


def test_recordings_side_by_side_have_each_their_own_outcome(
    local: LocalTranscriber, speech: NDArray[np.float32]
) -> None:
    first, second = speech[: 5 * SAMPLE_RATE], speech[round(13.2 * SAMPLE_RATE) : 17 * SAMPLE_RATE]
    contents = [wav(first), b"no audio", wav(second)]
    one, none, other = local.transcribe_many(contents, [DecodingOptions(language="en")] * 3)

    assert isinstance(one, Transcript)
    assert "best of times" in one.text
    assert isinstance(none, AudioDecodeError)
    assert isinstance(other, Transcript)
    assert "season of" in other.text
