"""Serve on this machine: `python -m serve_app --port 8000 model=tiny.en precision=fp32`."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import MutableMapping, Sequence

import ray
from pydantic import ValidationError
from ray import serve

from serve_app.application import build_app
from serve_app.settings import Settings

LEAST_CPUS = 2
"""What the deployments reserve together; a machine with a single processor runs them all the same."""

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # docs.ray.io/en/latest/serve/advanced-guides/performance.html: one loop for all, where no handler blocks it.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    # Recordings and features go from replica to replica, rather than by way of the object store.
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    # The controller looks after a handful of replicas; ten times a second is for hundreds.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # Free memory that each thread has for itself is lost to all others, and threads are many.
    "MALLOC_ARENA_MAX": "2",
    # They are exported every ten seconds.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "1000",
}
"""For the processes that Ray starts. They share the model's processors: what they do for a request, and all the time
besides, makes every request slower."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m serve_app", description="Serve speech to text on this machine.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help=", ".join(Settings.model_fields))
    parsed = parser.parse_args(arguments)
    try:
        settings = Settings(**dict(pair.split("=", 1) for pair in parsed.settings))
    except (ValidationError, ValueError) as error:
        parser.error(str(error))
    if settings.backend != "torch" and (failure := build_artefacts(settings)):
        return failure
    run(settings, parsed.host, parsed.port)
    return 0


def build_artefacts(settings: Settings) -> int:
    """Build what the cache lacks before anything starts, where the progress can be seen; → exit status."""
    command = [sys.executable, "-m", "asr.build", "--model", settings.model]
    command += ["--backend", settings.backend, "--precision", settings.precision]
    if settings.cache_dir is not None:
        command += ["--cache", str(settings.cache_dir)]
    return subprocess.run(command, check=False).returncode  # noqa: S603 (our own module)


def run(settings: Settings, host: str, port: int) -> None:
    configure_ray(os.environ)
    ray.init(include_dashboard=False, num_cpus=max(LEAST_CPUS, os.cpu_count() or 1), namespace="serve")
    serve.start(http_options={"host": host, "port": port})
    serve.run(build_app(settings), name="rayscribe")
    url = f"http://{host}:{port}"
    print(f"Rayscribe serves {settings.model_name} on {url} (API: {url}/docs)", flush=True)  # noqa: T201
    wait_for_a_signal_to_stop()
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()


def configure_ray(environment: MutableMapping[str, str]) -> None:
    """Before Ray starts. What the environment says already holds."""
    for name, value in RAY_ENVIRONMENT.items():
        environment.setdefault(name, value)


def wait_for_a_signal_to_stop() -> None:
    """Until Ctrl-C or SIGTERM, in place of the handlers that Ray sets when it starts."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
