"""The systems that Rayscribe is measured against, on the same clips and with the same weights.

    with PEERS["ctranslate2"]("base", None) as transcribe:
        texts = transcribe(clips)

Each is given the language of a clip and as many threads as there are processors. Those that batch need all clips at
once to do so. Weights are those of the checkpoint that `asr.checkpoint.load_checkpoint` finds under the name: faster-
whisper and CTranslate2 read its own files, the others what was read of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.peers import ctranslate2, faster_whisper, huggingface, whisper_cpp
from benchmarks.peers.peer import BATCH, Load, Transcribe, UnavailableError

__all__ = ["PEERS", "PEER_TITLES", "Load", "Transcribe", "UnavailableError"]

PEERS: Mapping[str, Load] = {
    "faster-whisper": faster_whisper.clip_by_clip,
    "faster-whisper-batched": faster_whisper.batched,
    "faster-whisper-joined": faster_whisper.joined_clips,
    "ctranslate2": ctranslate2.trimmed(),
    "ctranslate2-alone": ctranslate2.trimmed(rows=1),
    "whisper.cpp": whisper_cpp.clip_by_clip,
    "transformers": huggingface.full_window(),
    "transformers-alone": huggingface.full_window(rows=1),
}
PEER_TITLES: Mapping[str, str] = {
    "faster-whisper": "faster-whisper int8",
    "faster-whisper-batched": "faster-whisper int8, batched pipeline",
    "faster-whisper-joined": f"faster-whisper int8, batched pipeline, clips joined, batch {BATCH}",
    "ctranslate2": f"CTranslate2 int8, trimmed frames, batch {BATCH}",
    "ctranslate2-alone": "CTranslate2 int8, trimmed frames, batch 1",
    "whisper.cpp": "whisper.cpp fp16",
    "transformers": f"transformers fp32, batch {BATCH}",
    "transformers-alone": "transformers fp32, batch 1",
}
