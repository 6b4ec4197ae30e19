"""What one system did with the clips under one load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.load.loops import Answer, Window
from benchmarks.load.processes import Usage
from benchmarks.scoring import Score, score_clip, total
from benchmarks.speech_set import Clip

AROUND = "HTTP and Ray"
"""What a request takes that is in none of the stages that the service names."""


@dataclass(frozen=True)
class Measurement:
    """One row of a table.

    requests: that were counted; audio_s: in them; wall_s: that they took together; latencies_ms: of each, where it was
    measured; score: of one text for each clip; differing: answers with another text than the first for the same clip;
    failures: requests without an answer; usage: of all processes of the system; rows: decoded at a time, by request;
    stages_ms: median time in each stage; floor_ms: the least that a clip could take here, where that is known.
    """

    name: str
    requests: int
    audio_s: float
    wall_s: float
    latencies_ms: tuple[float, ...]
    score: Score
    differing: int
    failures: tuple[str, ...]
    usage: Usage
    rows: tuple[float, ...] = ()
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    floor_ms: float | None = None

    @classmethod
    def of(
        cls, name: str, clips: Sequence[Clip], window: Window, usage: Usage, *, have_latencies: bool = True
    ) -> Measurement:
        """have_latencies: whether the time from due to done is what one clip took."""
        answered = [answer for answer in window.counted if answer.text is not None]
        texts, differing = first_texts(window.answers)
        return cls(
            name=name,
            requests=len(answered),
            audio_s=sum(clips[answer.place].duration_s for answer in answered),
            wall_s=window.end_s - window.start_s,
            latencies_ms=tuple(1000 * answer.latency_s for answer in answered) if have_latencies else (),
            score=total(score_clip(clips[place], text) for place, text in texts.items()),
            differing=differing,
            failures=tuple(answer.failure for answer in window.counted if answer.failure is not None),
            usage=usage,
            rows=tuple(answer.timing.rows for answer in answered if answer.timing.rows is not None),
            stages_ms=stage_medians(answered),
        )

    @property
    def clips_per_s(self) -> float:
        return self.requests / self.wall_s

    @property
    def audio_s_per_s(self) -> float:
        return self.audio_s / self.wall_s

    @property
    def cpu_s_per_clip(self) -> float:
        return self.usage.cpu_s / self.requests if self.requests else float("nan")

    @property
    def mean_rows(self) -> float | None:
        return float(np.mean(self.rows)) if self.rows else None

    def latency_ms(self, percentile: float) -> float | None:
        return float(np.percentile(self.latencies_ms, percentile)) if self.latencies_ms else None


def first_texts(answers: Iterable[Answer]) -> tuple[dict[int, str], int]:
    """→ the first text of every clip that was answered, by its place; and how many later answers were another one."""
    texts: dict[int, str] = {}
    differing = 0
    for answer in answers:
        if answer.text is not None:
            differing += texts.setdefault(answer.place, answer.text) != answer.text
    return texts, differing


def stage_medians(answers: Sequence[Answer]) -> dict[str, float]:
    """Median ms in every stage that the service named, and around them all; nothing where it named none."""
    timed = [answer for answer in answers if answer.timing.stages_ms]
    names = dict.fromkeys(name for answer in timed for name in answer.timing.stages_ms)
    medians = {name: float(np.median([answer.timing.stages_ms.get(name, 0.0) for answer in timed])) for name in names}
    around = [1000 * answer.latency_s - sum(answer.timing.stages_ms.values()) for answer in timed]
    return medians | {AROUND: float(np.median(around))} if timed else {}
