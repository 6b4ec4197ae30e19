"""The HTTP API without a model behind it, as raw requests and through OpenAI's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from ray.serve.exceptions import BackPressureError
from starlette.testclient import TestClient

from asr.errors import AudioDecodeError, InputError, RecognitionError, UnsupportedLanguageError, UnsupportedTaskError
from asr.transcript import DecodingOptions, Timing, Transcript, TranscriptTiming
from serve_app.api import create_api

RECORDING = bytes(range(256)) * 8
TIMING = TranscriptTiming(
    prepare_s=0.0125,
    recognition=Timing(queue_s=0.25, encode_s=0.05, decode_s=0.375, steps=12, rows=11.24),
    assemble_s=0.0,
)
TRANSCRIPT = Transcript("Grüße, 世界.", "de", 2.0, (), TIMING)
URL = "/v1/audio/transcriptions"


class Service:
    """Answers every recording with the same, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: Transcript | Exception = TRANSCRIPT
        self.health: Exception | None = None
        self.asked: list[tuple[bytes, DecodingOptions]] = []

    async def transcribe(self, content: bytes, options: DecodingOptions) -> Transcript:
        self.asked.append((content, options))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def check_model(self) -> None:
        if self.health is not None:
            raise self.health


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(create_api(service, "base"), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def openai_client(client: TestClient) -> openai.OpenAI:
    return openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client, max_retries=0)


def post(client: TestClient, **fields: str) -> Any:
    """A request for a transcription; a field that is given as "" is sent empty."""
    return client.post(URL, data={"model": "base", **fields}, files={"file": ("speech.wav", RECORDING)})


def error_of(response: Any) -> dict[str, Any]:
    """The error of a response in OpenAI's form, which always has these keys."""
    body: dict[str, dict[str, Any]] = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return body["error"]


def test_json(client: TestClient, service: Service) -> None:
    response = post(client)

    assert response.status_code == 200
    assert response.json() == {"text": "Grüße, 世界."}
    assert service.asked == [(RECORDING, DecodingOptions())]


def test_json_when_asked_for(client: TestClient) -> None:
    assert post(client, response_format="json").json() == {"text": "Grüße, 世界."}


def test_text(client: TestClient) -> None:
    response = post(client, response_format="text")

    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.content.decode() == "Grüße, 世界.\n"


@pytest.mark.parametrize("response_format", ["json", "text"])
def test_where_the_time_went(client: TestClient, response_format: str) -> None:
    entries = post(client, response_format=response_format).headers["server-timing"].split(", ")
    stages = [entry.split(";")[0] for entry in entries]
    read_ms, assemble_ms, total_ms = (float(entries[place].split("=")[1]) for place in (0, 5, 6))

    assert stages == ["read", "prepare", "queue", "encode", "recognize", "assemble", "total", "rows"]
    assert entries[1:5] == ["prepare;dur=12.5", "queue;dur=250.0", "encode;dur=50.0", "recognize;dur=375.0"]
    assert entries[7] == 'rows;desc="11.2"'
    assert 0 < read_ms <= total_ms < 60_000
    assert 0 <= assemble_ms <= total_ms


@pytest.mark.parametrize("response_format", ["json", "text"])
def test_nothing_said_is_no_error(client: TestClient, service: Service, response_format: str) -> None:
    service.answer = Transcript("", None, 3.0, ())
    response = post(client, response_format=response_format)

    assert response.status_code == 200
    assert response.text == {"json": '{"text":""}', "text": "\n"}[response_format]


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("de", "de"),
        ("EN", "en"),
        (" fr ", "fr"),
        ("de-CH", "de"),
        ("zh_Hans_CN", "zh"),
        ("German", "de"),
        ("cantonese", "yue"),
        ("Haitian Creole", "ht"),
        ("yue", "yue"),
        ("klingon", "klingon"),  # for the model to refuse
        ("", None),
        (" ", None),
    ],
)
def test_language(client: TestClient, service: Service, language: str, code: str | None) -> None:
    assert post(client, language=language).status_code == 200
    assert [options.language for _, options in service.asked] == [code]


def test_prompt_and_temperature_are_passed_on(client: TestClient, service: Service) -> None:
    assert post(client, prompt="Zürich, Öl", temperature="0.4").status_code == 200
    assert [options for _, options in service.asked] == [DecodingOptions(prompt="Zürich, Öl", temperature=0.4)]


def test_fields_that_are_not_known_are_ignored(client: TestClient) -> None:
    assert post(client, user="me").status_code == 200


@pytest.mark.parametrize("model", ["base", "whisper-1"])
def test_names_of_the_model(client: TestClient, model: str) -> None:
    assert post(client, model=model).status_code == 200


def test_a_model_that_is_not_served(client: TestClient, service: Service) -> None:
    response = post(client, model="gpt-9")
    error = error_of(response)

    assert response.status_code == 404
    assert error["type"] == "invalid_request_error"
    assert error["param"] == "model"
    assert error["code"] == "model_not_found"
    assert "'gpt-9'" in error["message"]
    assert "'base'" in error["message"]
    assert service.asked == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": "-0.1"}, "temperature"),
        ({"temperature": "1.1"}, "temperature"),
        ({"temperature": "nan"}, "temperature"),
        ({"response_format": "yaml"}, "response_format"),
        ({"model": ""}, "model"),
    ],
)
def test_a_field_that_is_wrong_is_named(
    client: TestClient, service: Service, fields: dict[str, str], param: str
) -> None:
    response = post(client, **fields)
    error = error_of(response)

    assert response.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert param in error["message"]
    assert service.asked == []


@pytest.mark.parametrize(
    ("request_arguments", "param"),
    [
        pytest.param({"data": {"model": "base"}}, "file", id="no file"),
        pytest.param({"data": {"model": "base", "file": "text"}}, "file", id="file is text"),
        pytest.param({"files": {"file": ("a.wav", RECORDING)}}, "model", id="no model"),
        pytest.param({"json": {"model": "base"}}, "file", id="JSON"),
        pytest.param({}, "file", id="no body"),
    ],
)
def test_a_request_that_lacks_a_field(client: TestClient, request_arguments: dict[str, Any], param: str) -> None:
    response = client.post(URL, **request_arguments)

    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert param in error_of(response)["message"]


def test_a_form_that_is_broken(client: TestClient) -> None:
    response = client.post(URL, content=b"--x\r\nnonsense", headers={"content-type": "multipart/form-data; boundary=x"})

    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("error", "param"),
    [
        (AudioDecodeError("it has no audio track"), "file"),
        (UnsupportedLanguageError("xx", 99), "language"),
        (UnsupportedTaskError("translate"), "task"),
    ],
)
def test_what_is_wrong_with_the_input_is_explained(
    client: TestClient, service: Service, error: InputError, param: str
) -> None:
    service.answer = error
    response = post(client)

    assert response.status_code == 400
    assert error_of(response) == {
        "message": str(error),
        "type": "invalid_request_error",
        "param": param,
        "code": None,
    }


@pytest.mark.parametrize("error", [RuntimeError("password=secret"), RecognitionError("secret"), OSError("/secret")])
def test_our_own_failures_are_opaque(client: TestClient, service: Service, error: Exception) -> None:
    service.answer = error
    response = post(client)

    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"
    assert "secret" not in response.text
    assert "Error" not in response.text


def test_too_many_requests(client: TestClient, service: Service) -> None:
    service.answer = BackPressureError(65, 64)
    response = post(client)

    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert error_of(response)["type"] == "rate_limit_error"


def test_models(client: TestClient) -> None:
    listed = client.get("/v1/models").json()

    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["base", "whisper-1"]
    for model in listed["data"]:
        assert client.get(f"/v1/models/{model['id']}").json() == model
        assert model["object"] == "model"
        assert isinstance(model["created"], int)


def test_a_model_whose_name_has_slashes(service: Service) -> None:
    client = TestClient(create_api(service, "openai/whisper-base"))

    assert client.get("/v1/models/openai/whisper-base").json()["id"] == "openai/whisper-base"
    assert post(client, model="openai/whisper-base").status_code == 200


def test_a_model_that_does_not_exist(client: TestClient) -> None:
    response = client.get("/v1/models/gpt-9")

    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("GET", URL, 405), ("POST", "/v1/models", 405), ("GET", "/", 404)],
)
def test_routes_that_do_not_exist(client: TestClient, method: str, path: str, status: int) -> None:
    response = client.request(method, path)

    assert response.status_code == status
    assert error_of(response)["type"] == "invalid_request_error"


def test_health(client: TestClient, service: Service) -> None:
    assert client.get("/health").status_code == 200

    service.health = RuntimeError("secret")
    response = client.get("/health")

    assert response.status_code == 503
    assert "secret" not in response.text


def test_the_documentation(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]

    assert paths.keys() >= {URL, "/v1/models", "/health"}
    assert "/openapi.json" in client.get("/docs").text


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
