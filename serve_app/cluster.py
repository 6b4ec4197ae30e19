"""A Ray of this machine's own with the application on it, until a signal."""

from __future__ import annotations

import os
import signal
import threading

import ray
from ray import serve

from serve_app.application import build_app
from serve_app.settings import Settings

LEAST_CPUS = 2
"""What the deployments reserve together; a machine with a single processor runs them all the same."""


def run(settings: Settings, host: str, port: int, metrics_port: int | None) -> None:
    ray.init(
        include_dashboard=False,
        num_cpus=max(LEAST_CPUS, os.cpu_count() or 1),
        namespace="serve",
        _metrics_export_port=metrics_port,
    )
    serve.start(http_options={"host": host, "port": port})
    serve.run(build_app(settings), name="rayscribe")
    url = f"http://{host}:{port}"
    print(f"Rayscribe serves {settings.model_name} on {url} (API: {url}/docs)", flush=True)  # noqa: T201
    wait_for_a_signal_to_stop()
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()


def wait_for_a_signal_to_stop() -> None:
    """Until Ctrl-C or SIGTERM, in place of the handlers that Ray sets when it starts."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()
