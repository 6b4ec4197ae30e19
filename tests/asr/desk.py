"""A scheduler with a model and a clock that are moved by hand."""

from __future__ import annotations

from asr.scheduler import BatchLimits, Job, Scheduler
from asr.transcript import Recognition
from tests.asr.fake_model import SHORT_FRAMES, Clock, FakeModel, utterance


class Desk:
    """A scheduler, its model, and the jobs that it was given by the names of their utterances."""

    def __init__(self, limits: BatchLimits) -> None:
        self.clock = Clock()
        self.model = FakeModel(self.clock)
        self.scheduler = Scheduler(self.model, limits, self.clock)
        self.jobs: dict[str, Job] = {}

    def add(self, *names: str, frames: int = SHORT_FRAMES, steps: int = 1) -> None:
        """steps: that they take to decode."""
        for name in names:
            self.model.ends_after[name] = steps
            self.jobs[name] = Job(utterance(name, frames))
            self.scheduler.add(self.jobs[name])

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.scheduler.turn()

    def finish(self) -> None:
        while not self.scheduler.is_idle:
            self.scheduler.turn()
        assert self.model.rows_in_flight == 0

    def done(self) -> list[str]:
        return [name for name, job in self.jobs.items() if job.future.done()]

    def result(self, name: str) -> Recognition:
        return self.jobs[name].future.result(timeout=0)

    def texts(self, names: str) -> list[str]:
        return [self.result(name).text for name in names]

    def error(self, name: str) -> BaseException | None:
        return self.jobs[name].future.exception(timeout=0)


def desk(*, rows: int = 16, frames: int = 100_000, wait_s: float = 0.0) -> Desk:
    return Desk(BatchLimits(rows, frames, wait_s))


def window_frames(frames: int) -> int:
    return utterance("", frames).window.frames
