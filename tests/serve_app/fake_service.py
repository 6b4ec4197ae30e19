"""A service without a model, and requests to it."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

from asr.transcript import DecodingOptions, Timing, Transcript, TranscriptTiming

RECORDING = bytes(range(256)) * 8
TIMING = TranscriptTiming(
    prepare_s=0.0125,
    recognition=Timing(queue_s=0.25, encode_s=0.05, decode_s=0.375, steps=12, rows=11.24),
    assemble_s=0.0,
)
TRANSCRIPT = Transcript("Grüße, 世界.", "de", 2.0, (), TIMING)
URL = "/v1/audio/transcriptions"


class Service:
    """Answers every recording with the same, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: Transcript | Exception = TRANSCRIPT
        self.health: Exception | None = None
        self.asked: list[tuple[bytes, DecodingOptions]] = []

    async def transcribe(self, content: bytes, options: DecodingOptions) -> Transcript:
        self.asked.append((content, options))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def check_model(self) -> None:
        if self.health is not None:
            raise self.health


def post(client: TestClient, **fields: str) -> Any:
    """A request for a transcription; a field that is given as "" is sent empty."""
    return client.post(URL, data={"model": "base", **fields}, files={"file": ("speech.wav", RECORDING)})


def error_of(response: Any) -> dict[str, Any]:
    """The error of a response in OpenAI's form, which always has these keys."""
    body: dict[str, dict[str, Any]] = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return body["error"]
