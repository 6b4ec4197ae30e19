"""The HTTP API without a model behind it: what is answered."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from asr.transcript import DecodingOptions, Transcript
from serve_app.api import create_api
from tests.serve_app.fake_service import RECORDING, URL, Service, post


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
