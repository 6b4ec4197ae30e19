"""Short utterances beside long recordings: what is sent, and what is said of what came back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from asr.audio import decode_audio
from asr.features import SAMPLE_RATE, WINDOW_SAMPLES
from benchmarks.fairness import Fairness, bounds, clips_in_turn, fairness, long_clips, report, short_clips, write_wav
from benchmarks.load.loops import Answer
from benchmarks.speech_set import Clip
from tests.benchmarks.fake_service import FakeService, fake_service, text_clips


def answers(latencies_ms: list[float], text: str | None = "text") -> list[Answer]:
    return [Answer(0, 1.0, 1.0 + latency / 1000, text) for latency in latencies_ms]


def test_short_ones_are_alone_first_and_then_beside_long_ones(tmp_path: Path) -> None:
    clips = text_clips(tmp_path, ["one", "two", "a long recording", "another long recording"])
    fake = FakeService()
    with fake_service(fake) as service:
        found = fairness(service, clips[:2], clips[2:], share=0.5, count=6)

    assert Counter(answer.text for answer in found.alone) == {"one": 3, "two": 3}
    assert Counter(answer.text for answer in found.beside) == {"one": 3, "two": 3}
    assert {answer.text for answer in found.long} <= {"a long recording", "another long recording"}
    assert found.long_per_s == pytest.approx(found.capacity / 2)
    gaps_s = np.diff([answer.due_s for answer in sorted(found.long, key=lambda answer: answer.due_s)])
    np.testing.assert_allclose(gaps_s, 1 / found.long_per_s, rtol=1e-6)
    begin_s, end_s = (edge(answer.due_s for answer in found.beside) for edge in (min, max))
    assert sum(answer.due_s < begin_s for answer in found.long) >= 2
    assert max(answer.due_s for answer in found.long) >= end_s - 1.01 / found.long_per_s


def test_a_short_one_may_take_three_times_as_long() -> None:
    found = Fairness(2.0, 1.0, 0.5, answers([100, 100, 200]), answers([290, 300, 900]), answers([2000]))
    failed, median, tail = bounds(found)

    assert [bound.holds for bound in (failed, median, tail)] == [True, True, False]
    assert [bound.value for bound in (failed, median, tail)] == pytest.approx([0, 3, 840 / 190])
    assert "| short, 0.50/s, beside the long ones | 3 | 300 | 840 |" in report(found)
    failed = next(iter(bounds(Fairness(2.0, 1.0, 0.5, answers([1]), answers([1]), answers([1], text=None)))))
    assert (failed.value, failed.holds) == (1, False)


def test_the_clips_nearest_to_two_seconds_are_short(tmp_path: Path) -> None:
    lengths = [clip.duration_s for clip in short_clips(text_clips(tmp_path, ["a " * count for count in range(1, 12)]))]

    assert lengths == [2, 1, 3, 4, 5, 6]


def test_long_recordings_are_of_thirty_seconds(tmp_path: Path) -> None:
    seconds = [(0.1, 20), (0.2, 25), (0.3, 18)]
    clips = []
    for number, (value, length) in enumerate(seconds):
        path = tmp_path / f"clip{number}.wav"
        write_wav(path, constant(value, length))
        clips.append(Clip(str(number), path, "", None, "en", length, "read", "high"))
    (tmp_path / "long").mkdir()
    long = long_clips(clips, tmp_path / "long")

    assert [clip.duration_s for clip in long] == [30, 30]
    waveforms = [decode_audio(clip.path.read_bytes()) for clip in long]
    assert [len(waveform) for waveform in waveforms] == [WINDOW_SAMPLES, WINDOW_SAMPLES]
    assert np.unique(np.round(waveforms, 3)).tolist() == pytest.approx([0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="less than 30 s"):
        long_clips(clips[:1], tmp_path / "long")


def constant(value: float, seconds: int) -> NDArray[np.float32]:
    return np.full(seconds * SAMPLE_RATE, value, np.float32)


def test_clips_take_turns() -> None:
    assert clips_in_turn(range(2, 5), 7) == [2, 3, 4, 2, 3, 4, 2]
