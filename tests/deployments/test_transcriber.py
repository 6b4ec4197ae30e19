"""The Transcriber's own class with a stand-in for the handle to the model: no Ray is started."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from ray.exceptions import RayActorError
from tenacity import wait_none

from asr.errors import AudioDecodeError, RecognitionError, UnsupportedLanguageError
from asr.features import SAMPLE_RATE
from asr.segments import Segment
from asr.transcript import DecodingOptions, Recognition, Timing, Transcript
from asr.utterance import Utterance
from deployments.recognizer import ModelInfo
from deployments.transcriber import ATTEMPTS, PREPARING_THREADS, Transcriber
from tests.audio_files import wav
from tests.deployments.calls import Method

Result = TypeVar("Result")

TRANSCRIBER: Any = cast(Any, Transcriber).func_or_class
"""The class without what Serve wraps it in."""

MODEL = ModelInfo(n_mels=80, languages=("en", "de"))
HEARD = Recognition(" Hello.", (1,), "en", -0.1, 0.0, 1.0, 0.0, complete=True, timing=Timing(decode_s=1.5))


class RecognizerHandle:
    """Fails with these errors one call after the other, then hears the same in everything."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.heard: list[Utterance] = []
        self.health_checks = 0
        self.describe = Method(self._describe)
        self.recognize = Method(self._recognize)
        self.check_health = Method(self._check_health)

    async def _describe(self) -> ModelInfo:
        return MODEL

    async def _recognize(self, utterance: Utterance) -> Recognition:
        self.heard.append(utterance)
        if self._errors:
            raise self._errors.pop(0)
        return HEARD

    async def _check_health(self) -> None:
        self.health_checks += 1
        if self._errors:
            raise self._errors.pop(0)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TRANSCRIBER._recognize.retry, "wait", wait_none())


@pytest.fixture(scope="module")
def recording(speech: NDArray[np.float32]) -> bytes:
    """4 s of speech as a WAV file."""
    return wav(speech[round(13.2 * SAMPLE_RATE) : round(17.2 * SAMPLE_RATE)])


def with_transcriber(handle: RecognizerHandle, use: Callable[[Any], Coroutine[Any, Any, Result]]) -> Result:
    """Make a Transcriber as Serve does, and use it."""

    async def run() -> Result:
        transcriber = object.__new__(TRANSCRIBER)
        await transcriber.__init__(handle)
        return await use(transcriber)

    return asyncio.run(run())


def transcribe(handle: RecognizerHandle, content: bytes, language: str | None = "en") -> Any:
    options = DecodingOptions(language=language)
    return with_transcriber(handle, lambda transcriber: transcriber.transcribe(content, options))


def test_a_recording(recording: bytes) -> None:
    handle = RecognizerHandle()
    transcript = transcribe(handle, recording)

    assert isinstance(transcript, Transcript)
    assert (transcript.text, transcript.language) == ("Hello.", "en")
    assert transcript.duration_s == pytest.approx(4.0, abs=0.001)
    (utterance,) = handle.heard
    assert utterance.options == DecodingOptions(language="en")
    assert utterance.log_mel.shape[0] == MODEL.n_mels


def test_the_time_of_the_preparation_is_measured(recording: bytes) -> None:
    timing = transcribe(RecognizerHandle(), recording).timing

    assert 0 < timing.prepare_s < 60
    assert timing.recognition == HEARD.timing


def test_a_bad_recording_is_an_answer_not_a_failure() -> None:
    handle = RecognizerHandle()
    answer = transcribe(handle, b"no audio")

    assert isinstance(answer, AudioDecodeError)
    assert handle.heard == []


def test_a_language_that_the_model_lacks_is_refused_before_anything_is_decoded() -> None:
    answer = transcribe(RecognizerHandle(), b"no audio", language="fr")

    assert isinstance(answer, UnsupportedLanguageError)
    assert answer.args == ("fr", 2)


def test_what_the_model_has_against_the_input_is_an_answer(recording: bytes) -> None:
    error = UnsupportedLanguageError("de", 1)

    assert transcribe(RecognizerHandle(error), recording, language="de") is error


def test_another_replica_is_asked_after_one_died(recording: bytes) -> None:
    handle = RecognizerHandle(*[RayActorError()] * (ATTEMPTS - 1))

    assert transcribe(handle, recording).text == "Hello."
    assert len(handle.heard) == ATTEMPTS
    assert all(utterance is handle.heard[0] for utterance in handle.heard)


def test_replicas_that_die_again_and_again_are_a_failure(recording: bytes) -> None:
    handle = RecognizerHandle(*[RayActorError()] * (ATTEMPTS + 1))

    with pytest.raises(RayActorError):
        transcribe(handle, recording)
    assert len(handle.heard) == ATTEMPTS


@pytest.mark.parametrize("error", [RecognitionError("out of range"), RuntimeError("unforeseen")])
def test_other_errors_are_raised_at_once(recording: bytes, error: Exception) -> None:
    handle = RecognizerHandle(error)

    with pytest.raises(type(error)) as caught:
        transcribe(handle, recording)
    assert caught.value is error
    assert len(handle.heard) == 1


def test_the_model_is_asked_for_its_health() -> None:
    handle = RecognizerHandle()
    with_transcriber(handle, lambda transcriber: transcriber.check_model())

    assert handle.health_checks == 1


def test_what_ails_the_model_is_raised() -> None:
    handle = RecognizerHandle(RecognitionError("ill"))

    with pytest.raises(RecognitionError, match="ill"):
        with_transcriber(handle, lambda transcriber: transcriber.check_model())


class SlowPreparation:
    """Takes the place of `Transcriber._prepare`, and lasts until it is released."""

    def __init__(self) -> None:
        self._released = threading.Event()
        self._begun = threading.Semaphore(0)
        self.prepared: list[bytes] = []

    def __call__(self, content: bytes) -> tuple[list[Segment], float]:
        self.prepared.append(content)
        self._begun.release()
        assert self._released.wait(60)
        return [], 1.0

    async def begun(self, count: int) -> None:
        """Wait until so many have begun."""
        for _ in range(count):
            await asyncio.to_thread(self._begun.acquire)

    def release(self) -> None:
        self._released.set()


def test_what_was_cancelled_while_it_waited_for_a_thread_is_not_prepared() -> None:
    slow = SlowPreparation()

    async def cancel_the_last(transcriber: Any) -> list[Any]:
        transcriber._prepare = slow
        contents = [b"first", b"second", b"last"]
        tasks = [asyncio.create_task(transcriber.transcribe(content, DecodingOptions("en"))) for content in contents]
        await slow.begun(PREPARING_THREADS)
        tasks[-1].cancel()
        await asyncio.wait(tasks[-1:])
        slow.release()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        transcriber._preparation.shutdown(wait=True)
        return answers

    answers = with_transcriber(RecognizerHandle(), cancel_the_last)

    assert [type(answer) for answer in answers] == [Transcript, Transcript, asyncio.CancelledError]
    assert sorted(slow.prepared) == [b"first", b"second"]


def two_segments(_: bytes) -> tuple[list[Segment], float]:
    log_mel = np.zeros((MODEL.n_mels, 100), np.float32)
    return [Segment(0.0, 1.0, log_mel), Segment(30.0, 31.0, log_mel)], 31.0


class SilentHandle(RecognizerHandle):
    """Answers only where the second of two utterances has an error, else never."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error
        self.asked = asyncio.Event()

    async def _recognize(self, utterance: Utterance) -> Recognition:
        self.heard.append(utterance)
        if len(self.heard) == 2:
            self.asked.set()
            if self.error is not None:
                raise self.error
        await asyncio.sleep(60)
        return replace(HEARD, text="too late")


def test_what_the_model_was_asked_for_is_cancelled_with_the_request() -> None:
    handle = SilentHandle()

    async def cancel(transcriber: Any) -> None:
        transcriber._prepare = two_segments
        task = asyncio.create_task(transcriber.transcribe(b"", DecodingOptions("en")))
        await handle.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with_transcriber(handle, cancel)

    assert [call.cancelled for call in handle.recognize.calls] == [True, True]


def test_segments_are_cancelled_after_one_failed() -> None:
    handle = SilentHandle(RecognitionError("too bad"))

    async def fail(transcriber: Any) -> None:
        transcriber._prepare = two_segments
        with pytest.raises(RecognitionError, match="too bad"):
            await transcriber.transcribe(b"", DecodingOptions("en"))
        await asyncio.sleep(0)  # for the other task to hear of it

    with_transcriber(handle, fail)

    assert [call.cancelled for call in handle.recognize.calls] == [True, False]
