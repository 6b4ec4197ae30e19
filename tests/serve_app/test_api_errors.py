"""The HTTP API without a model behind it: what is refused, and in which words."""

from __future__ import annotations

from typing import Any

import pytest
from ray.serve.exceptions import BackPressureError
from starlette.testclient import TestClient

from asr.errors import AudioDecodeError, InputError, RecognitionError, UnsupportedLanguageError, UnsupportedTaskError
from tests.serve_app.fake_service import RECORDING, URL, Service, error_of, post


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
