"""The HTTP API through OpenAI's own client."""

from __future__ import annotations

import openai
import pytest
from ray.serve.exceptions import BackPressureError

from asr.errors import AudioDecodeError
from asr.transcript import DecodingOptions
from tests.serve_app.fake_service import RECORDING, Service


def test_openai_client(openai_client: openai.OpenAI, service: Service) -> None:
    transcription = openai_client.audio.transcriptions.create(
        file=("speech.wav", RECORDING), model="whisper-1", language="de", prompt="Öl", temperature=0.2
    )

    assert transcription.text == "Grüße, 世界."
    assert service.asked == [(RECORDING, DecodingOptions(language="de", prompt="Öl", temperature=0.2))]


def test_openai_client_with_text(openai_client: openai.OpenAI) -> None:
    text = openai_client.audio.transcriptions.create(
        file=("speech.wav", RECORDING), model="base", response_format="text"
    )

    assert str(text) == "Grüße, 世界.\n"


def test_openai_client_lists_models(openai_client: openai.OpenAI) -> None:
    assert [model.id for model in openai_client.models.list()] == ["base", "whisper-1"]
    assert openai_client.models.retrieve("base").id == "base"


@pytest.mark.parametrize(
    ("answer", "raised", "message"),
    [
        (AudioDecodeError("it is empty"), openai.BadRequestError, "it is empty"),
        (BackPressureError(65, 64), openai.RateLimitError, "at its limit"),
        (RuntimeError("secret"), openai.InternalServerError, "had an error"),
    ],
)
def test_openai_client_raises_its_own_errors(
    openai_client: openai.OpenAI,
    service: Service,
    answer: Exception,
    raised: type[openai.APIStatusError],
    message: str,
) -> None:
    service.answer = answer
    with pytest.raises(raised, match=message):
        openai_client.audio.transcriptions.create(file=("speech.wav", RECORDING), model="base")


def test_openai_client_reads_the_parts_of_an_error(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'gpt-9' does not exist here") as caught:
        openai_client.audio.transcriptions.create(file=("speech.wav", RECORDING), model="gpt-9")

    assert caught.value.param == "model"
    assert caught.value.code == "model_not_found"
    assert caught.value.type == "invalid_request_error"
