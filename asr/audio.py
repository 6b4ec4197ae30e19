"""Bytes of any container → mono waveform at 16 kHz, by FFmpeg's libraries (PyAV)."""

from __future__ import annotations

import io
from collections.abc import Iterator

import av
import numpy as np
from av.audio.fifo import AudioFifo
from av.audio.frame import AudioFrame
from av.audio.layout import AudioLayout
from av.audio.resampler import AudioResampler
from numpy.typing import NDArray

from asr.errors import AudioDecodeError
from asr.features import SAMPLE_RATE

LOWEST_RATE, HIGHEST_RATE = 4_000, 768_000
"""Hz. Resampling from a forged rate would take hours or gigabytes."""
BLOCK_SAMPLES = 32_768
"""At the rate of the recording: what is resampled at a time. A frame of a codec is some hundred samples, and handing on
each by itself takes longer than resampling it."""
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
        container = av.open(
            io.BytesIO(content), mode="r", options=_container_options(content), metadata_errors="replace"
        )
    except (av.FFmpegError, ValueError) as error:
        raise AudioDecodeError("its format is not recognised as audio or video, or it is damaged") from error
    with container:
        if not container.streams.audio:
            raise AudioDecodeError("it has no audio track")
        blocks = list(_decode_blocks(container))
    if not blocks:
        return np.zeros(0, np.float32)
    channels = np.concatenate(blocks, axis=1)
    # Float formats can hold anything: a single NaN would spread over a whole segment.
    np.nan_to_num(channels, copy=False, nan=0.0)
    return downmix(np.clip(channels, -1.0, 1.0, out=channels))


def _container_options(content: bytes) -> dict[str, str]:
    # Playlists and the like would name other files: the upload itself is all that may be read.
    options = {"protocol_whitelist": "none"}
    if content[8:12] == b"WAVE":
        # The samples may be a compressed stream in disguise (DTS), which FFmpeg looks for again and again in up to 32
        # packets: several times what decoding takes. Two packets hold enough of such a stream to know it.
        options["max_probe_packets"] = "2"
    return options


def _decode_blocks(container: av.container.InputContainer) -> Iterator[NDArray[np.float32]]:
    """Blocks of (channels, samples) at 16 kHz, all with the channels of the first frame."""
    resampler = _Resampler()
    decoded, failure = 0, None
    try:
        for packet in container.demux(container.streams.audio[0]):
            try:
                frames = packet.decode()
            except av.FFmpegError as error:  # a damaged packet: what comes after it may be sound
                failure = error
                continue
            for frame in frames:
                decoded += 1
                yield from resampler.resample(frame)
    except av.FFmpegError as error:  # a damaged container: what came before it counts
        failure = error
    yield from resampler.flush()
    if not decoded and failure is not None:
        raise AudioDecodeError("its audio track is damaged or in a codec that is not supported") from failure


class _Resampler:
    """Frames → blocks of (channels, samples) at 16 kHz, also where rate or channels change on the way."""

    def __init__(self) -> None:
        self._resampler: AudioResampler | None = None
        self._collected = AudioFifo()
        self._input: tuple[str, str, int] | None = None
        self._layout: AudioLayout | None = None

    def resample(self, frame: AudioFrame) -> Iterator[NDArray[np.float32]]:
        """
        Raises:
            AudioDecodeError: the sample rate is not one of a recording.
        """
        kind = (frame.format.name, frame.layout.name, frame.sample_rate)
        if kind != self._input:
            if not LOWEST_RATE <= frame.sample_rate <= HIGHEST_RATE:
                raise AudioDecodeError(f"its sample rate of {frame.sample_rate} Hz is not that of a recording")
            yield from self.flush()
            self._input, self._layout = kind, self._layout or frame.layout
            self._resampler = AudioResampler("fltp", self._layout, SAMPLE_RATE)
            self._collected = AudioFifo()
        frame.pts = None  # samples follow each other, whatever a damaged file says of when
        self._collected.write(frame)
        if self._collected.samples >= BLOCK_SAMPLES:
            yield from self._blocks(self._collected.read())

    def flush(self) -> Iterator[NDArray[np.float32]]:
        """What is still under way."""
        if self._resampler is not None:
            if self._collected.samples:
                yield from self._blocks(self._collected.read())
            yield from self._blocks(None)
        self._resampler = None

    def _blocks(self, frame: AudioFrame | None) -> Iterator[NDArray[np.float32]]:
        assert self._resampler is not None
        for block in self._resampler.resample(frame):
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
