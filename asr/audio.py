"""Bytes of any container → mono waveform at 16 kHz, by FFmpeg's libraries (PyAV)."""

from __future__ import annotations

import io
from collections.abc import Iterator

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from numpy.typing import NDArray

from asr.errors import AudioDecodeError
from asr.features import SAMPLE_RATE

SILENT_CHANNEL = 0.01
"""A channel below this share of the loudest one's level carries no speech of its own and would only dilute it."""
CANCELLATION = 0.25
"""A mix below this share of the loudest channel's level has cancelled out: the channels are in antiphase."""


def decode_audio(content: bytes) -> NDArray[np.float32]:
    """Decode the first audio track, go by its content rather than by a name, and read damaged files as far as they go.

    → (samples,) float32 at 16 kHz, in [-1, 1]; of no length if the track is empty.

    Raises:
        AudioDecodeError: not a media file, no audio track, or nothing in it can be decoded.
    """
    if not content:
        raise AudioDecodeError("it is empty (0 bytes)")
    try:
        # Playlists and the like would name other files: the upload itself is all that may be read.
        container = av.open(io.BytesIO(content), mode="r", options={"protocol_whitelist": "none"})
    except (av.FFmpegError, ValueError) as error:
        raise AudioDecodeError("its format is not recognised as audio or video, or it is damaged") from error
    with container:
        if not container.streams.audio:
            raise AudioDecodeError("it has no audio track")
        blocks = list(_decode_blocks(container))
    if not blocks:
        return np.zeros(0, np.float32)
    return downmix(np.concatenate(blocks, axis=1))


def _decode_blocks(container: av.container.InputContainer) -> Iterator[NDArray[np.float32]]:
    """Blocks of (channels, samples) at 16 kHz, all with the channels of the first frame."""
    resampler: AudioResampler | None = None
    decoded, failure = 0, None
    try:
        for packet in container.demux(container.streams.audio[0]):
            try:
                frames = packet.decode()
            except av.FFmpegError as error:  # a damaged packet: what comes after it may be sound
                failure = error
                continue
            for frame in frames:
                if resampler is None:
                    resampler = AudioResampler("fltp", frame.layout, SAMPLE_RATE)
                decoded += 1
                yield from _samples(resampler, frame)
    except av.FFmpegError as error:  # a damaged container: what came before it counts
        failure = error
    if resampler is not None:
        yield from _samples(resampler, None)
    if not decoded and failure is not None:
        raise AudioDecodeError("its audio track is damaged or in a codec that is not supported") from failure


def _samples(resampler: AudioResampler, frame: AudioFrame | None) -> Iterator[NDArray[np.float32]]:
    """What the resampler has for this frame, or at its end; (channels, samples) each."""
    for block in resampler.resample(frame):
        yield np.asarray(block.to_ndarray(), np.float32)


def downmix(channels: NDArray[np.float32]) -> NDArray[np.float32]:
    """(channels, samples) → (samples,) such that what one channel says is heard.

    The mean of the channels that are not silent, or the loudest of them where they cancel each other out.
    """
    first: NDArray[np.float32] = channels[0]
    if len(channels) == 1 or len(first) == 0:
        return first
    levels = np.sqrt(np.mean(np.square(channels), axis=1))
    loudest = levels.max()
    mix: NDArray[np.float32] = channels[levels >= SILENT_CHANNEL * loudest].mean(axis=0)
    if np.sqrt(np.mean(np.square(mix))) < CANCELLATION * loudest:
        mix = channels[int(levels.argmax())]
    return mix
