"""One real Ray, one real application: HTTP in, text out, with Whisper base in int8."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import ray
from ray import serve

from serve_app.application import build_app
from serve_app.settings import Settings

OBJECT_STORE_BYTES = 200 << 20


@pytest.fixture(scope="session")
def base_url(artefact_cache: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(build_app(Settings(cache_dir=artefact_cache)), name="e2e")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()


@pytest.fixture(scope="session")
def client(base_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=base_url, timeout=120) as client:
        yield client
