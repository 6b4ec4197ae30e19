"""The Transcriber's own class with a stand-in for the handle to the model: no Ray is started."""

from __future__ import annotations

import asyncio
import io
import wave
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from ray.exceptions import RayActorError
from tenacity import wait_none

from asr.errors import AudioDecodeError, RecognitionError, UnsupportedLanguageError
from asr.features import SAMPLE_RATE
from asr.transcript import DecodingOptions, Recognition, Transcript
from asr.utterance import Utterance
from deployments.recognizer import ModelInfo
from deployments.transcriber import ATTEMPTS, Transcriber

Result = TypeVar("Result")

TRANSCRIBER: Any = cast(Any, Transcriber).func_or_class
"""The class without what Serve wraps it in."""

MODEL = ModelInfo(n_mels=80, languages=("en", "de"))
HEARD = Recognition(" Hello.", (1,), "en", -0.1, 0.0, 1.0, 0.0, complete=True)


class Method:
    """A method of a deployment handle: `.remote(…)` gives what can be awaited."""

    def __init__(self, function: Callable[..., Awaitable[Any]]) -> None:
        self.remote = function


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
    words = speech[round(13.2 * SAMPLE_RATE) : round(17.2 * SAMPLE_RATE)]
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(np.round(words * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


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
