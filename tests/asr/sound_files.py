"""Recordings as users' programs write them, and measures of what is heard of them."""

from __future__ import annotations

import io
import struct

import av
import numpy as np
import torch
import torchaudio
from av.audio.stream import AudioStream
from av.video.stream import VideoStream
from numpy.typing import NDArray

from asr.features import SAMPLE_RATE

SAID_S = 3.0
CODEC_DELAY_S = 0.15
"""What a lossy codec may add at the ends of a recording."""


def encode(
    channels: NDArray[np.float32],
    container: str,
    codec: str,
    *,
    rate: int = SAMPLE_RATE,
    layout: str = "mono",
    metadata: dict[str, str] | None = None,
) -> bytes:
    """channels: (samples,) or (channels, samples) at 16 kHz → a file at `rate`."""
    wanted = torchaudio.functional.resample(torch.from_numpy(np.atleast_2d(channels)), SAMPLE_RATE, rate).numpy()
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(wanted), format="fltp", layout=layout)
    frame.sample_rate = rate
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        output.metadata.update(metadata or {})
        stream: AudioStream = output.add_stream(codec, rate=rate, layout=layout)
        sized = av.AudioResampler(stream.format, layout, rate, frame_size=stream.codec_context.frame_size or None)
        for piece in [*sized.resample(frame), *sized.resample(None), None]:
            output.mux(stream.encode(piece))
    return buffer.getvalue()


def wav(samples: bytes, *, rate: int = SAMPLE_RATE, length: int | None = None, chunks: bytes = b"") -> bytes:
    """16-bit mono. length: in bytes, that the header claims; chunks: of their own, before the samples."""
    length = len(samples) if length is None else length
    riff = min(36 + len(chunks) + length, 0xFFFFFFFF)
    header = struct.pack(
        "<4sI4s4sIHHIIHH", b"RIFF", riff, b"WAVE", b"fmt ", 16, 1, 1, rate, min(2 * rate, 2**31), 2, 16
    )
    return header + chunks + struct.pack("<4sI", b"data", length) + samples


def pcm16(waveform: NDArray[np.float32]) -> bytes:
    return np.round(waveform * 32767).astype("<i2").tobytes()


def float_wav(waveform: NDArray[np.float32]) -> bytes:
    samples = waveform.astype("<f4").tobytes()
    header = struct.pack(
        "<4sI4s4sIHHIIHH", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", 16, 3, 1, 16_000, 64_000, 4, 32
    )
    return header + struct.pack("<4sI", b"data", len(samples)) + samples


def video(audio: NDArray[np.float32] | None = None) -> bytes:
    """A second of moving pictures, with this sound if any."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        pictures: VideoStream = output.add_stream("mpeg4", rate=10, width=64, height=48)
        sound: AudioStream | None = (
            output.add_stream("aac", rate=SAMPLE_RATE, layout="mono") if audio is not None else None
        )
        for shade in range(10):
            picture = av.VideoFrame.from_ndarray(np.full((48, 64, 3), shade * 20, np.uint8), format="rgb24")
            output.mux(pictures.encode(picture))
        output.mux(pictures.encode(None))
        if sound is not None and audio is not None:
            frame = av.AudioFrame.from_ndarray(audio[None], format="fltp", layout="mono")
            frame.sample_rate = SAMPLE_RATE
            sized = av.AudioResampler(sound.format, "mono", SAMPLE_RATE, frame_size=sound.codec_context.frame_size)
            for piece in [*sized.resample(frame), *sized.resample(None), None]:
                output.mux(sound.encode(piece))
    return buffer.getvalue()


def seconds(waveform: NDArray[np.float32]) -> float:
    return len(waveform) / SAMPLE_RATE


def level(waveform: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.mean(np.square(waveform))))


def likeness(heard: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The correlation of the two at the delay where they agree best, at most 1."""
    size = len(heard) + len(expected)
    products = np.fft.irfft(np.fft.rfft(heard, size) * np.conj(np.fft.rfft(expected, size)), size)
    return float(products.max() / (np.linalg.norm(heard) * np.linalg.norm(expected)))
