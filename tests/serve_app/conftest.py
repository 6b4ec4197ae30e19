"""The API over a service without a model, for raw requests and for OpenAI's own client."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from starlette.testclient import TestClient

from serve_app.api import create_api
from tests.serve_app.fake_service import Service


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
