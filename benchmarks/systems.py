"""The systems that are compared: each turns clips into texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from asr.build.recipe import Backend, Precision
from asr.errors import AsrError
from asr.local import LocalTranscriber
from asr.transcript import DecodingOptions
from benchmarks.peers import PEER_TITLES, PEERS, Load, Transcribe, UnavailableError
from benchmarks.speech_set import Clip

__all__ = ["SYSTEMS", "TITLES", "Load", "Transcribe", "UnavailableError", "faster_whisper", "rayscribe"]


def rayscribe(precision: Precision, backend: Backend = "onnx", *, full_window: bool = False) -> Load:
    """The way from bytes to text in one process, all clips at once."""

    @contextmanager
    def load(model: str, cache_dir: Path | None) -> Iterator[Transcribe]:
        transcriber = LocalTranscriber.load(
            model, precision=precision, backend=backend, cache_dir=cache_dir, full_window=full_window
        )

        def transcribe(clips: Sequence[Clip]) -> list[str | AsrError]:
            contents = [clip.path.read_bytes() for clip in clips]
            options = [DecodingOptions(language=clip.language) for clip in clips]
            transcripts = transcriber.transcribe_many(contents, options)
            return [transcript if isinstance(transcript, AsrError) else transcript.text for transcript in transcripts]

        yield transcribe
        transcriber.close()

    return load


faster_whisper = PEERS["faster-whisper"]
SYSTEMS: Mapping[str, Load] = {
    "fp32-full-window": rayscribe("fp32", full_window=True),
    "fp32": rayscribe("fp32"),
    "int8": rayscribe("int8"),
    "openvino-bf16": rayscribe("bf16", "openvino"),
    "openvino-int8": rayscribe("int8", "openvino"),
    "faster-whisper": faster_whisper,
}
TITLES = {
    "fp32-full-window": "Rayscribe fp32, 30 s window",
    "fp32": "Rayscribe fp32",
    "int8": "Rayscribe int8",
    "openvino-bf16": "Rayscribe bf16, OpenVINO",
    "openvino-int8": "Rayscribe int8, OpenVINO",
    "faster-whisper": PEER_TITLES["faster-whisper"],
}
