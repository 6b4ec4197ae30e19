"""A client of the API, for as many requests at a time as it is given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

import httpx

from benchmarks.load.loops import Answer
from benchmarks.load.server_timing import parse_server_timing
from benchmarks.speech_set import Clip

REQUEST_TIMEOUT_S = 300
IDLE_S = 2.0
"""How long a connection is kept open for the next request: less than servers do, or one could end it as it is sent."""
ROUTE = "/v1/audio/transcriptions"
ANY_MODEL = "whisper-1"  # whatever the service calls its own


class Client:
    """Sends recordings and never raises for what becomes of a request: that is in its answer."""

    def __init__(self, url: str, clips: Sequence[Clip]) -> None:
        self._clips = clips
        self._contents = [clip.path.read_bytes() for clip in clips]
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_S)
        self._http = httpx.AsyncClient(base_url=url, limits=limits, timeout=REQUEST_TIMEOUT_S)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def send(self, place: int, due_s: float) -> Answer:
        """Have a clip transcribed. due_s: when it was to be sent, which is not in the future."""
        fields = {"model": ANY_MODEL, "language": self._clips[place].language or ""}
        try:
            response = await self._http.post(ROUTE, files={"file": self._contents[place]}, data=fields)
            if not response.is_success:
                raise ValueError(f"status {response.status_code}: {response.text[:200]}")
            text = str(response.json()["text"])
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            return Answer(place, due_s, time.monotonic(), None, str(error) or repr(error))
        timing = parse_server_timing(response.headers.get("server-timing", ""))
        return Answer(place, due_s, time.monotonic(), text, timing=timing)

    async def send_and_leave(self, place: int, due_s: float, patience_s: float) -> Answer:
        """The same, but close the connection if there is no answer in time."""
        try:
            return replace(await asyncio.wait_for(self.send(place, due_s), patience_s), patient=False)
        except asyncio.TimeoutError:
            return Answer(place, due_s, time.monotonic(), None, patient=False)
