"""A calibration set of two sentences whose text is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asr.features import SAMPLE_RATE
from tests.audio_files import wav

SENTENCES = {
    (0.5, 4.7): "It was the best of times, it was the worst of times.",
    (4.7, 8.5): "It was the age of wisdom, it was the age of foolishness.",
}
"""Start and end in the recording, in seconds → what is said there."""


def write_calibration_set(folder: Path, speech: NDArray[np.float32]) -> Path:
    """Recordings and their manifest; speech: as the fixture of this name has it."""
    lines = []
    for index, ((start_s, end_s), text) in enumerate(SENTENCES.items()):
        cut = speech[round(start_s * SAMPLE_RATE) : round(end_s * SAMPLE_RATE)]
        (folder / f"{index}.wav").write_bytes(wav(cut))
        lines.append(json.dumps({"file": f"{index}.wav", "text": text, "language": "en"}))
    (folder / "manifest.jsonl").write_text("\n".join(lines))
    return folder
