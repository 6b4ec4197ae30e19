"""Which utterance the model takes next, and what becomes of each: in-flight batching.

`encode` encodes one batch of what waits, if the rows in flight leave room for it; `advance` starts what is encoded, and
takes every row in flight a token further. So nobody waits for a batch to end. Where one thread does both in turns,
those in flight wait for one encoder run at most between two tokens.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from asr.errors import AsrError, RecognitionError
from asr.fallback import best, next_attempt
from asr.features import FRAMES_PER_SECOND, WINDOW_FRAMES
from asr.transcript import Recognition, Timing
from asr.utterance import Utterance

SIMILAR = 1.5
"""How many times the shortest the longest of a batch may be: every row is padded to the longest."""
PRECEDENCE = 0.05
"""Seconds by which a second less to encode goes before others that came earlier. It bounds how long anything waits for
what came later: 1.5 s, and short utterances do not queue up behind long recordings."""


@dataclass(frozen=True)
class BatchLimits:
    """rows: utterances that are decoded at a time; frames: log-mel frames that are encoded together, padding included
    (100 a second); wait_s: how long what waits is held back for others to be encoded with it, while rows are in flight.
    Whatever the frames, one utterance is always taken. By default each is encoded by itself, which is fastest where
    there is no GPU.
    """

    rows: int = 16
    frames: int = 0
    wait_s: float = 0.0


class RowInFlight(Protocol):
    """What the scheduler knows of a row."""

    steps: int
    beside: int

    @property
    def ended(self) -> bool: ...


class Model(Protocol):
    """What the scheduler drives: `asr.engine.Engine`, or a model of its times.

    encoders: how many threads may call `encode` at a time, while another calls everything else.
    """

    encoders: int

    @property
    def rows_in_flight(self) -> int: ...

    def encode(self, utterances: Sequence[Utterance]) -> Any: ...

    def start(self, utterances: Sequence[Utterance], encoded: Any) -> Sequence[Any | AsrError]: ...

    def step(self) -> Sequence[Any]: ...

    def drop(self, row: Any) -> None: ...

    def result(self, row: Any) -> Recognition | AsrError: ...


@dataclass(eq=False)
class Job:
    """An utterance on its way through the model. Cancelling its future takes it out, wherever it is."""

    utterance: Utterance
    future: Future[Recognition] = field(default_factory=Future)
    arrived: float = 0.0
    queued: float = 0.0
    started: float = 0.0
    attempts: list[Recognition] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)

    @property
    def due(self) -> float:
        """What the queue is ordered by, in seconds."""
        return self.arrived + PRECEDENCE * self.utterance.window.frames / FRAMES_PER_SECOND

    def succeed(self, recognition: Recognition) -> None:
        with contextlib.suppress(InvalidStateError):  # the caller has gone meanwhile
            self.future.set_result(replace(recognition, timing=self.timing))

    def fail(self, error: AsrError) -> None:
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)


def next_batch(frames: Sequence[int], limits: BatchLimits) -> list[int]:
    """Which of the rows that wait come next: the first, and those after it that are similar and fit beside it.

    frames: encoder frames of each row, the most urgent first. → their places.
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


def may_grow(frames: Sequence[int], limits: BatchLimits) -> bool:
    """Whether rows of so many frames leave room for one more like them."""
    return len(frames) < limits.rows and max(frames) * (len(frames) + 1) <= limits.frames


@dataclass(frozen=True)
class _Batch:
    """Jobs that are encoded together. began: when; encoded: what came of it, None where `Model.start` is to see why."""

    jobs: Sequence[Job]
    began: float
    encoded: Any


class Scheduler:
    """The queue and the rows in flight. `Model.encoders` threads may call `encode` and another `advance`; any may
    add jobs."""

    def __init__(self, model: Model, limits: BatchLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()  # of what all threads change: the next three
        self._waiting: list[Job] = []
        self._encoding = 0
        self._ready: list[_Batch] = []
        self._flying: dict[Any, Job] = {}

    @property
    def is_idle(self) -> bool:
        with self._lock:
            return not (self._waiting or self._encoding or self._ready or self._flying)

    @property
    def is_encoding(self) -> bool:
        """Whether something will have to be started soon."""
        return self._encoding > 0

    @property
    def waiting(self) -> int:
        """How many wait for the encoder."""
        return len(self._waiting)

    def add(self, *jobs: Job) -> None:
        """Have jobs wait for their turn, together."""
        for job in jobs:
            job.arrived = job.queued = self._clock()
        with self._lock:
            self._waiting += jobs

    def turn(self) -> None:
        """Encode a batch if there is room, and advance the rows in flight by a token."""
        self.encode()
        self.advance()

    def encode(self) -> bool:
        """Encode the most urgent of what waits, if there is room for it among the rows in flight; → whether any was."""
        with self._lock:
            self._waiting = [job for job in self._waiting if not job.future.cancelled()]
            jobs = self._next_batch()
            self._encoding += len(jobs)
        if not jobs:
            return False
        began = self._clock()
        encoded = None
        with contextlib.suppress(Exception):  # it is tried again when it starts, which finds what is wrong with it
            encoded = self._model.encode([job.utterance for job in jobs])
        with self._lock:
            self._encoding -= len(jobs)
            self._ready.append(_Batch(jobs, began, encoded))
        return True

    def advance(self) -> bool:
        """Drop what nobody waits for, start what is encoded, advance all rows by a token; → whether there was any."""
        abandoned = [row for row, job in self._flying.items() if job.future.cancelled()]
        for row in abandoned:
            del self._flying[row]
            self._drop(row)
        ready = list(self._ready)
        for batch in ready:
            self._start(batch)
        with self._lock:
            del self._ready[: len(ready)]  # not before its rows are in flight: `encode` has to know of all of them
        if not self._flying:
            return bool(abandoned or ready)
        self._step()
        return True

    def refuse_waiting(self, error: AsrError) -> None:
        """Fail what waits, except that a result that was to be tried again stands."""
        with self._lock:
            refused, self._waiting = self._waiting, []
        for job in refused:
            if job.attempts:
                job.succeed(best(job.attempts))
            else:
                job.fail(error)

    def _next_batch(self) -> list[Job]:
        flying = sum(not job.future.cancelled() for job in list(self._flying.values()))  # `advance` drops the others
        started = self._encoding + sum(len(batch.jobs) for batch in self._ready) + flying
        room = self._limits.rows - started
        if room <= 0 or not self._waiting:
            return []
        self._waiting.sort(key=lambda job: job.due)
        frames = [job.utterance.window.frames for job in self._waiting[:room]]  # what comes later takes none of it
        limits = replace(self._limits, rows=room)
        taken = next_batch(frames, limits)
        batch = [self._waiting[place] for place in taken]
        if started and may_grow([frames[place] for place in taken], limits) and not self._has_waited(batch):
            return []
        self._waiting = [job for job in self._waiting if job not in batch]
        return batch

    def _has_waited(self, batch: Sequence[Job]) -> bool:
        return self._clock() - min(job.queued for job in batch) >= self._limits.wait_s

    def _start(self, batch: _Batch) -> None:
        if all(job.future.cancelled() for job in batch.jobs):
            return
        rows = self._started(batch)
        now = self._clock()
        for job, row in zip(batch.jobs, rows, strict=True):
            job.started = now
            job.timing = replace(
                job.timing,
                queue_s=job.timing.queue_s + batch.began - job.queued,
                encode_s=job.timing.encode_s + now - batch.began,
            )
            if isinstance(row, AsrError):
                job.fail(row)
            elif row.ended:
                self._settle(job, row)
            else:
                self._flying[row] = job

    def _started(self, batch: _Batch) -> Sequence[Any | AsrError]:
        try:
            rows = self._model.start([job.utterance for job in batch.jobs], batch.encoded)
            if len(rows) != len(batch.jobs):
                raise RuntimeError(f"{len(rows)} rows for {len(batch.jobs)} utterances")
            return rows
        except Exception as error:  # noqa: BLE001 (whatever a batch does to the model, the others go on)
            return [RecognitionError(repr(error)) for _ in batch.jobs]

    def _step(self) -> None:
        try:
            ended = self._model.step()
        except Exception as error:  # noqa: BLE001
            for row, job in self._flying.items():
                self._drop(row)
                job.fail(RecognitionError(repr(error)))
            self._flying.clear()
            return
        for row in ended:
            if row in self._flying:  # not what is left of a batch that failed while it was started
                self._settle(self._flying.pop(row), row)

    def _drop(self, row: Any) -> None:
        with contextlib.suppress(Exception):  # what is wrong with the model shows at its next step
            self._model.drop(row)

    def _settle(self, job: Job, row: RowInFlight) -> None:
        job.timing = _with_decoding(job.timing, self._clock() - job.started, row)
        result = self._result(row)
        if isinstance(result, AsrError):
            job.fail(result)
            return
        job.attempts.append(result)
        following = next_attempt(job.utterance, result)
        if following is None:
            job.succeed(best(job.attempts))
            return
        job.utterance = following
        job.queued = self._clock()
        with self._lock:
            self._waiting.append(job)

    def _result(self, row: Any) -> Recognition | AsrError:
        try:
            return self._model.result(row)
        except Exception as error:  # noqa: BLE001
            return RecognitionError(repr(error))


def _with_decoding(timing: Timing, seconds: float, row: RowInFlight) -> Timing:
    steps = timing.steps + row.steps
    beside = timing.rows * timing.steps + row.beside
    return replace(timing, decode_s=timing.decode_s + seconds, steps=steps, rows=beside / steps if steps else 0.0)
