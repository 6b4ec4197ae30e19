"""Makes batches of what waits, whenever the model is free."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import TypeAlias

from asr.errors import AsrError, RecognitionError
from asr.fallback import best, next_attempt
from asr.features import WINDOW_FRAMES
from asr.transcript import Recognition
from asr.utterance import Utterance

SIMILAR = 2.0
"""How many times the shortest the longest of a batch may be: every row is padded to the longest."""

Recognize: TypeAlias = Callable[[Sequence[Utterance]], Sequence[Recognition | AsrError]]


@dataclass(frozen=True)
class BatchLimits:
    """rows: utterances in one batch; frames: encoder frames in one batch, padding included (100 a second)."""

    rows: int = 16
    frames: int = 24_000


def next_batch(frames: Sequence[int], limits: BatchLimits) -> list[int]:
    """Which of the rows that wait come next: the first, and those after it that are similar and fit beside it.

    frames: encoder frames of each row, in the order of arrival. → their places.
    """
    taken: list[int] = []
    longest, shortest = 0, WINDOW_FRAMES
    for place, count in enumerate(frames):
        longest_with, shortest_with = max(longest, count), min(shortest, count)
        fits = len(taken) < limits.rows and longest_with * (len(taken) + 1) <= limits.frames
        if not taken or (fits and longest_with <= SIMILAR * shortest_with):
            taken.append(place)
            longest, shortest = longest_with, shortest_with
    return taken


@dataclass
class _Job:
    utterance: Utterance
    future: Future[Recognition]
    attempts: list[Recognition] = field(default_factory=list)

    def succeed(self, recognition: Recognition) -> None:
        with contextlib.suppress(InvalidStateError):  # the caller has gone meanwhile
            self.future.set_result(recognition)

    def fail(self, error: AsrError) -> None:
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)


class Batcher:
    """One thread that calls `recognize` with whatever waits; an attempt that looks wrong waits again with the next one.

    The oldest job is always in the next batch, so nothing starves; the others are those of similar length that fit the
    limits beside it.
    """

    def __init__(self, recognize: Recognize, limits: BatchLimits) -> None:
        self._recognize = recognize
        self._limits = limits
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self._thread.start()

    def submit(self, utterance: Utterance) -> Future[Recognition]:
        """A future with the result, or with the utterance's own error. Cancelling it drops what has not begun."""
        if utterance.log_mel.ndim != 2:  # has no frames to make a batch by
            raise RecognitionError(f"features of shape {utterance.log_mel.shape}")
        job = _Job(utterance, Future())
        with self._changed:
            if self._closed:
                raise RecognitionError("the recogniser is shutting down")
            self._waiting.append(job)
            self._changed.notify()
        return job.future

    def close(self) -> None:
        """Finish the batch that is running and refuse what waits; a result that was to be tried again stands."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        for job in self._waiting:
            if job.attempts:
                job.succeed(best(job.attempts))
            else:
                job.fail(RecognitionError("the recogniser is shutting down"))

    def _run(self) -> None:
        while jobs := self._next_batch():
            for job, result in zip(jobs, self._results(jobs), strict=True):
                self._settle(job, result)

    def _next_batch(self) -> list[_Job]:
        """Wait for work; no jobs means that the batcher was closed."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return []
                if jobs := self._take():
                    return jobs

    def _take(self) -> list[_Job]:
        """The oldest job and those after it that fit; jobs whose caller has gone are dropped."""
        jobs = [job for job in self._waiting if not job.future.cancelled()]
        taken = next_batch([job.utterance.window.frames for job in jobs], self._limits)
        together = set(taken)
        self._waiting = deque(job for place, job in enumerate(jobs) if place not in together)
        return [jobs[place] for place in taken]

    def _results(self, jobs: Sequence[_Job]) -> Sequence[Recognition | AsrError]:
        try:
            results = self._recognize([job.utterance for job in jobs])
            if len(results) != len(jobs):
                raise RuntimeError(f"{len(results)} results for {len(jobs)} utterances")
            return results
        except Exception as error:  # noqa: BLE001 (the thread must outlive whatever a batch does to it)
            return [RecognitionError(repr(error))] * len(jobs)

    def _settle(self, job: _Job, result: Recognition | AsrError) -> None:
        if isinstance(result, AsrError):
            job.fail(result)
            return
        job.attempts.append(result)
        following = next_attempt(job.utterance, result)
        if following is None:
            job.succeed(best(job.attempts))
            return
        job.utterance = following
        with self._changed:
            self._waiting.append(job)
