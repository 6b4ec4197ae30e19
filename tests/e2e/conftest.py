"""One real Ray, one real application: HTTP in, text out, with Whisper base in int8."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import ray
from ray import serve

from benchmarks.load.service import free_ports
from serve_app.application import build_app
from serve_app.settings import Settings

OBJECT_STORE_BYTES = 200 << 20


@pytest.fixture(scope="session")
def ports() -> list[int]:
    """Of the API and of the metrics."""
    return free_ports(2)


@pytest.fixture(scope="session")
def base_url(artefact_cache: Path, ports: list[int]) -> Iterator[str]:
    port, metrics_port = ports
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        _metrics_export_port=metrics_port,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(build_app(Settings(cache_dir=artefact_cache)), name="e2e")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()


@pytest.fixture(scope="session")
def metrics_url(base_url: str, ports: list[int]) -> str:
    """Where Prometheus would read."""
    return f"http://127.0.0.1:{ports[1]}/metrics"


@pytest.fixture(scope="session")
def client(base_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=base_url, timeout=120) as client:
        yield client
