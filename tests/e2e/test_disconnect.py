"""What nobody waits for any more ends, all the way to the model. The model here answers nothing."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import time
from collections.abc import Iterator
from typing import Any, cast

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from ray import serve

from asr.errors import RecognitionError
from asr.features import SAMPLE_RATE
from asr.transcript import Recognition
from asr.utterance import Utterance
from deployments.recognizer import ModelInfo
from deployments.transcriber import Transcriber
from serve_app.ingress import Ingress
from tests.audio_files import wav

pytestmark = pytest.mark.e2e

CLIENTS = 3
PATIENCE_S = 60


@serve.deployment(max_ongoing_requests=64, ray_actor_options={"num_cpus": 0})
class NeverAnswers:
    """In the place of the Recognizer: counts what it is asked, and what is cancelled of it. One call may be to fail."""

    def __init__(self) -> None:
        self.asked = self.cancelled = self.failing = 0

    async def start_anew(self, failing: int = 0) -> None:
        """failing: which call is to fail, from 1."""
        self.asked, self.cancelled, self.failing = 0, 0, failing

    async def describe(self) -> ModelInfo:
        return ModelInfo(80, ("en",))

    async def recognize(self, utterance: Utterance) -> Recognition:
        self.asked += 1
        if self.asked == self.failing:
            raise RecognitionError("as it was told to")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError

    async def counts(self) -> tuple[int, int]:
        return self.asked, self.cancelled


@pytest.fixture(scope="module")
def handle(base_url: str) -> Iterator[Any]:
    """To it, in an application of its own beside the real one."""
    transcriber = cast(Any, Transcriber).bind(cast(Any, NeverAnswers).bind())
    serve.run(cast(Any, Ingress).bind(transcriber, "base"), name="disconnect", route_prefix="/disconnect")
    handle: Any = serve.get_deployment_handle("NeverAnswers", "disconnect")
    handle._init(_run_router_in_separate_loop=True)  # a replica's would run in its event loop, and here is none
    yield handle
    serve.delete("disconnect")


@pytest.fixture
def recognizer(handle: Any) -> Any:
    handle.start_anew.remote().result()
    return handle


def wait_for_counts(recognizer: Any, expected: tuple[int, int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (counts := recognizer.counts.remote().result()) != expected:
        assert time.monotonic() < deadline, f"(asked, cancelled) is {counts}, not {expected}"
        time.sleep(0.05)


def ask(base_url: str, recording: bytes) -> http.client.HTTPConnection:
    """A connection on which a transcription was asked for."""
    url = httpx.URL(f"{base_url}/disconnect/v1/audio/transcriptions")
    request = httpx.Request("POST", url, files={"file": recording}, data={"model": "base", "language": "en"})
    connection = http.client.HTTPConnection(url.host, url.port)
    connection.request("POST", url.path, request.read(), dict(request.headers))
    return connection


def test_a_client_that_goes_away_takes_its_work_along(
    base_url: str, recognizer: Any, speech: NDArray[np.float32]
) -> None:
    words = wav(speech[: 5 * SAMPLE_RATE])
    connections = [ask(base_url, words) for _ in range(CLIENTS)]
    wait_for_counts(recognizer, (CLIENTS, 0))

    connections[0].close()
    wait_for_counts(recognizer, (CLIENTS, 1))
    for connection in connections[1:]:
        connection.close()
    wait_for_counts(recognizer, (CLIENTS, CLIENTS))


def test_every_segment_of_its_recording_is_taken_along(
    base_url: str, recognizer: Any, speech: NDArray[np.float32]
) -> None:
    connection = ask(base_url, wav(speech))  # 44 s: two segments
    wait_for_counts(recognizer, (2, 0))

    connection.close()
    wait_for_counts(recognizer, (2, 2))


def test_other_segments_end_after_one_failed(base_url: str, recognizer: Any, speech: NDArray[np.float32]) -> None:
    recognizer.start_anew.remote(failing=2).result()
    with contextlib.closing(ask(base_url, wav(speech))) as connection:
        assert connection.getresponse().status == 500
    wait_for_counts(recognizer, (2, 1))
