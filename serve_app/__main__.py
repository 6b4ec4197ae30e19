"""Serve on this machine: `python -m serve_app --port 8000 model=tiny.en precision=fp32`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from serve_app.ray_environment import configure_ray
from serve_app.settings import Settings


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m serve_app", description="Serve speech to text on this machine.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--metrics-port", type=int, help="for Prometheus, at /metrics; by default one that Ray chooses")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help=", ".join(Settings.model_fields))
    parsed = parser.parse_args(arguments)
    try:
        settings = Settings(**dict(pair.split("=", 1) for pair in parsed.settings))
    except (ValidationError, ValueError) as error:
        parser.error(str(error))
    if settings.backend != "torch" and (failure := build_artefacts(settings)):
        return failure
    configure_ray(os.environ)
    from serve_app.cluster import run  # Ray reads its environment when it is imported

    run(settings, parsed.host, parsed.port, parsed.metrics_port)
    return 0


def build_artefacts(settings: Settings) -> int:
    """Build what the cache lacks before anything starts, where the progress can be seen; → exit status."""
    command = [sys.executable, "-m", "asr.build", "--model", settings.model]
    command += ["--backend", settings.backend, "--precision", settings.precision]
    if settings.cache_dir is not None:
        command += ["--cache", str(settings.cache_dir)]
    return subprocess.run(command, check=False).returncode  # noqa: S603 (our own module)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
