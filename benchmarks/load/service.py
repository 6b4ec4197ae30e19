"""A service that is started, sent requests, and stopped with all its processes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TypeVar

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.load.client import Client
from benchmarks.load.loops import Window, closed_loop, open_loop
from benchmarks.load.measurement import Measurement
from benchmarks.load.processes import Meter, metered, process_tree
from benchmarks.speech_set import Clip

COMMAND = (sys.executable, "-m", "serve_app")
HEALTH_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 120.0
POLL_S = 0.5
LOG_BYTES = 4000

ResultT = TypeVar("ResultT")


class ServiceError(Exception):
    """The service did not start, in which case the message ends with its log, or lacks what it should have."""


@dataclass(frozen=True)
class Service:
    """metrics_url: of what Ray exports; pid: of the process that every other of the service descends from; meter: of
    them all."""

    url: str
    metrics_url: str
    pid: int
    meter: Meter

    def closed_loop(self, clips: Sequence[Clip], order: Sequence[int], concurrency: int) -> Window:
        """See `benchmarks.load.loops.closed_loop`."""
        return self.run(clips, lambda client: closed_loop(client.send, order, concurrency))

    def open_loop(self, clips: Sequence[Clip], order: Sequence[int], arrivals_s: Sequence[float]) -> Window:
        """See `benchmarks.load.loops.open_loop`."""
        return self.run(clips, lambda client: open_loop(client.send, order, arrivals_s))

    def run(self, clips: Sequence[Clip], load: Callable[[Client], Awaitable[ResultT]]) -> ResultT:
        """What becomes of a load that is put on the service through a client of its own."""

        async def with_client() -> ResultT:
            async with Client(self.url, clips) as client:
                return await load(client)

        return asyncio.run(with_client())

    def metric(self, name: str) -> float:
        """What it exports by this name, of all processes together, as it was a few seconds ago.

        Raises:
            ServiceError: it exports no such thing.
        """
        text = httpx.get(self.metrics_url).raise_for_status().text
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples if one.name == name]
        if not samples:
            raise ServiceError(f"{self.metrics_url} has no {name}")
        return sum(sample.value for sample in samples)

    def measurement(self, name: str, clips: Sequence[Clip], window: Window) -> Measurement:
        """Of a window that has just ended."""
        return Measurement.of(name, clips, window, self.meter.usage(window.start_s, window.end_s))


@contextmanager
def running_service(model: str, settings: Sequence[str]) -> Iterator[Service]:
    """A service that runs for as long as the context lasts, in a process group of its own. settings: NAME=VALUE.

    Raises:
        ServiceError: it ended before it was ready.
    """
    port, metrics_port = free_ports(2)
    command = [*COMMAND, "--port", str(port), "--metrics-port", str(metrics_port), f"model={model}", *settings]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)  # noqa: S603
        try:
            url = f"http://127.0.0.1:{port}"
            while not _is_healthy(url):
                if process.poll() is not None:
                    raise ServiceError(f"the service ended with status {process.returncode}:\n{_end_of(log)}")
                time.sleep(POLL_S)
            with metered(process.pid) as meter:
                yield Service(url, f"http://127.0.0.1:{metrics_port}/metrics", process.pid, meter)
        finally:
            _stop(process)


def free_ports(count: int) -> list[int]:
    """Of this machine, which nobody listens on now."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=HEALTH_TIMEOUT_S).is_success
    except httpx.TransportError:
        return False


def _end_of(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, 2) - LOG_BYTES))
    return log.read().decode(errors="replace")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Let it end in its own way, and end whatever it leaves behind."""
    others = process_tree(process.pid)[1:]
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for left in psutil.wait_procs(others, timeout=POLL_S)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()
