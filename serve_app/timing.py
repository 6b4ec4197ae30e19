"""Where the time of a request went: as a header (www.w3.org/TR/server-timing) and as metrics of the service."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from ray.serve import metrics
from starlette.types import ASGIApp, Receive, Scope, Send

from asr.transcript import Transcript, TranscriptTiming

BOUNDARIES_S = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300]


@dataclass(frozen=True)
class Moments:
    """Of a request in this process, on the clock `time.perf_counter`: when it came in, when it had been read, when its
    transcript had come back, when the response was ready."""

    started: float
    read: float
    transcribed: float
    rendered: float


class ArrivalClock:
    """ASGI middleware: notes in `request.state.started` when a request came in, before anything of it is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["started"] = time.perf_counter()
        await self._app(scope, receive, send)


class RequestMetrics:
    """What Ray exports of the requests that were answered."""

    def __init__(self) -> None:
        self._request_s = metrics.Histogram(
            "rayscribe_request_seconds", "Time of a transcription request, by stage.", BOUNDARIES_S, ("stage",)
        )
        self._audio_s = metrics.Counter("rayscribe_audio_seconds", "Length of the recordings that were transcribed.")

    def add(self, transcript: Transcript, seconds: Mapping[str, float]) -> None:
        for stage, stage_s in seconds.items():
            self._request_s.observe(stage_s, {"stage": stage})
        if transcript.duration_s > 0:  # a counter refuses to stay as it is
            self._audio_s.inc(transcript.duration_s)


def seconds_by_stage(timing: TranscriptTiming, moments: Moments) -> dict[str, float]:
    """In the order of the stages; "total" is more than their sum by what lies between the processes."""
    return {
        "read": moments.read - moments.started,
        "prepare": timing.prepare_s,
        "queue": timing.recognition.queue_s,
        "encode": timing.recognition.encode_s,
        "recognize": timing.recognition.decode_s,
        "assemble": timing.assemble_s + moments.rendered - moments.transcribed,
        "total": moments.rendered - moments.started,
    }


def server_timing(seconds: Mapping[str, float], rows: float) -> str:
    """The header `Server-Timing`. rows: how many utterances were decoded at a time."""
    durations = [f"{stage};dur={1000 * stage_s:.1f}" for stage, stage_s in seconds.items()]
    return ", ".join([*durations, f'rows;desc="{rows:.1f}"'])
