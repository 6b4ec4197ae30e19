"""Files that are refused: no audio, no codec for it, forged rates, names of other files."""

from __future__ import annotations

import io
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from asr.audio import decode_audio
from asr.errors import AudioDecodeError
from asr.features import SAMPLE_RATE
from tests.asr.sound_files import SAID_S, encode, video, wav

SESSION = b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 5004 RTP/AVP 0\r\n"
"""Has FFmpeg listen on a port for what others send."""


@pytest.fixture(scope="module")
def said_as_wav(said: NDArray[np.float32]) -> bytes:
    return encode(said, "wav", "pcm_s16le")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"", "it is empty", id="nothing"),
        pytest.param(b"R", "not recognised", id="one byte"),
        pytest.param(b"Dear server, please transcribe this.\n" * 50, "not recognised", id="text"),
        pytest.param(b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "not recognised", id="html"),
        pytest.param(b"1\n00:00:01,000 --> 00:00:02,000\nHi\n", "no audio track", id="subtitles"),
        pytest.param(bytes(4096), "not recognised", id="zeros"),
        pytest.param(np.random.default_rng(0).bytes(4096), "not recognised", id="noise"),
        pytest.param(SESSION, "not recognised", id="session description"),
        pytest.param(wav(bytes(1000), rate=0), "not recognised", id="0 Hz"),
        pytest.param(video(), "no audio track", id="silent film"),
    ],
)
def test_what_is_no_audio_is_refused_with_a_reason(content: bytes, reason: str) -> None:
    with pytest.raises(AudioDecodeError, match=f"^The file cannot be transcribed: .*{reason}"):
        decode_audio(content)


def test_a_webm_header_alone_is_refused(said: NDArray[np.float32]) -> None:
    content = encode(said, "webm", "libopus", rate=48_000)
    header = content[: content.index(b"\x1f\x43\xb6\x75")]  # up to the first cluster

    with pytest.raises(AudioDecodeError, match="damaged"):
        decode_audio(header)


def test_a_codec_that_is_not_known_is_refused(said: NDArray[np.float32]) -> None:
    content = encode(said, "webm", "libopus", rate=48_000).replace(b"A_OPUS", b"A_NONE")

    with pytest.raises(AudioDecodeError, match="codec that is not supported"):
        decode_audio(content)


@pytest.mark.parametrize("rate", [1, 400_000_000, 2**31 - 1])
def test_a_forged_sample_rate_is_refused(rate: int) -> None:
    """A second of samples at 1 Hz would become hours; the filter for 400 MHz takes seconds to make."""
    with pytest.raises(AudioDecodeError, match="sample rate"):
        decode_audio(wav(bytes(32_000), rate=rate))


@pytest.mark.parametrize(
    "playlist",
    [
        "ffconcat version 1.0\nfile secret.wav\n",
        "ffconcat version 1.0\nfile '{folder}/secret.wav'\n",
        "ffconcat version 1.0\nfile 'file:{folder}/secret.wav'\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nsecret.wav\n#EXT-X-ENDLIST\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:{folder}/secret.wav\n#EXT-X-ENDLIST\n",
    ],
)
def test_an_upload_cannot_name_a_file_of_the_server(
    playlist: str, said_as_wav: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.wav").write_bytes(said_as_wav)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(AudioDecodeError, match="not recognised"):
        decode_audio(playlist.format(folder=tmp_path).encode())


def test_ffmpeg_left_to_itself_reads_what_an_upload_names(
    said_as_wav: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above would prove nothing otherwise."""
    (tmp_path / "secret.wav").write_bytes(said_as_wav)
    monkeypatch.chdir(tmp_path)

    with av.open(io.BytesIO(b"ffconcat version 1.0\nfile secret.wav\n")) as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) == SAID_S * SAMPLE_RATE
