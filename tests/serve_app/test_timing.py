"""Where the time of a request went, in exact numbers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from asr.transcript import Timing, Transcript, TranscriptTiming
from serve_app.timing import BOUNDARIES_S, Moments, RequestMetrics, seconds_by_stage, server_timing

TIMING = TranscriptTiming(
    prepare_s=0.03,
    recognition=Timing(queue_s=0.2, encode_s=0.04, decode_s=0.5, steps=20, rows=3.5),
    assemble_s=0.001,
)
MOMENTS = Moments(started=100.0, read=100.25, transcribed=101.5, rendered=101.625)
SECONDS = {
    "read": 0.25,
    "prepare": 0.03,
    "queue": 0.2,
    "encode": 0.04,
    "recognize": 0.5,
    "assemble": pytest.approx(0.126),
    "total": 1.625,
}


def test_stages_in_order() -> None:
    seconds = seconds_by_stage(TIMING, MOMENTS)

    assert seconds == SECONDS
    assert list(seconds) == list(SECONDS)


def test_the_header_is_in_milliseconds() -> None:
    assert (
        server_timing({"read": 0.00004, "total": 1.23456}, 11.249) == 'read;dur=0.0, total;dur=1234.6, rows;desc="11.2"'
    )


class Recorded:
    """A metric that keeps what it is given."""

    def __init__(self, *_: object) -> None:
        self.values: list[tuple[float, Mapping[str, str]]] = []

    def observe(self, value: float, tags: Mapping[str, str]) -> None:
        self.values.append((value, tags))

    def inc(self, value: float) -> None:
        self.values.append((value, {}))


def test_metrics_hear_of_every_stage_and_of_the_audio(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, audio = Recorded(), Recorded()
    monkeypatch.setattr("ray.serve.metrics.Histogram", lambda *_: seconds)
    monkeypatch.setattr("ray.serve.metrics.Counter", lambda *_: audio)

    RequestMetrics().add(Transcript("", "en", 6.5, (), TIMING), {"read": 0.25, "total": 1.5})

    assert seconds.values == [(0.25, {"stage": "read"}), (1.5, {"stage": "total"})]
    assert audio.values == [(6.5, {})]


def test_a_recording_without_a_sample_is_counted() -> None:
    """By Ray's own metrics."""
    RequestMetrics().add(Transcript("", "en", 0.0, (), TIMING), {"read": 0.25, "total": 1.5})


def test_boundaries_rise_from_a_millisecond_to_minutes() -> None:
    assert sorted(set(BOUNDARIES_S)) == BOUNDARIES_S
    assert BOUNDARIES_S[0] == 0.001
    assert BOUNDARIES_S[-1] >= 300
