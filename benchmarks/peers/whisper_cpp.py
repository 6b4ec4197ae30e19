"""whisper.cpp through pywhispercpp: half precision, greedy, one clip after the other over the whole window of 30 s.

Like faster-whisper it tries what looks wrong again, at rising temperatures. The compiled package goes no further than
AVX2; built from source (`pip install --no-binary pywhispercpp pywhispercpp`), it uses all that the processor has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from asr.audio import decode_audio
from asr.checkpoint import load_checkpoint
from asr.features import WINDOW_SAMPLES
from asr.processors import usable_cpus
from benchmarks.peers.ggml import ensure_ggml
from benchmarks.peers.peer import Transcribe, needs
from benchmarks.peers.windows import joined
from benchmarks.speech_set import Clip


@contextmanager
def clip_by_clip(model: str, cache_dir: Path | None) -> Iterator[Transcribe]:
    """Everything but what is set here as whisper.cpp has it by default."""
    with needs("pywhispercpp"):
        from pywhispercpp.model import Model
    checkpoint = load_checkpoint(model)
    unknown = "" if checkpoint.tokenizer.is_multilingual else "en"  # it detects a language that is not named
    whisper = Model(
        str(ensure_ggml(checkpoint, cache_dir)),
        redirect_whispercpp_logs_to=None,
        n_threads=usable_cpus(),
        print_progress=False,
    )

    def transcribe(clips: Sequence[Clip]) -> list[str]:
        places, texts = [], []
        for place, clip in enumerate(clips):
            waveform = decode_audio(clip.path.read_bytes())
            one_window = len(waveform) <= WINDOW_SAMPLES  # beyond it, timestamps say where the next window begins
            for segment in whisper.transcribe(
                waveform, language=clip.language or unknown, no_timestamps=one_window, single_segment=one_window
            ):
                places.append(place)
                texts.append(segment.text)
        return joined(clips, places, texts)

    yield transcribe
