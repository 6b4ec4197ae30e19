"""The threads that the model runs in: utterances are handed in from any other, and what was heard comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from asr.errors import RecognitionError
from asr.scheduler import BatchLimits, Job, Model, Scheduler
from asr.transcript import Recognition
from asr.utterance import Utterance

SHUTTING_DOWN = "the recogniser is shutting down"

REST = 0.3
"""While something is encoded, the decoder rests after a step for this many times as long as that took, unless it can be
started before: rows that join meanwhile share the next one."""


class Batcher:
    """Drives the scheduler for as long as there is work, and sleeps while there is none.

    Others encode while one decodes: a long recording in the encoder does not hold up the rows in flight, and what one
    leaves of the processors the others have.
    """

    def __init__(self, model: Model, limits: BatchLimits) -> None:
        self._scheduler = Scheduler(model, limits)
        self._limits = limits
        self._closing = threading.Lock()
        self._closed = False
        self._may_encode, self._may_advance = threading.Event(), threading.Event()
        self._encoders = [threading.Thread(target=self._encode, daemon=True) for _ in range(model.encoders)]
        self._decoder = threading.Thread(target=self._advance, daemon=True)
        for thread in (*self._encoders, self._decoder):
            thread.start()

    @property
    def waiting(self) -> int:
        """How many utterances wait for the encoder."""
        return self._scheduler.waiting

    def submit(self, utterance: Utterance) -> Future[Recognition]:
        """A future with the result, or with the utterance's own error. Cancelling it takes the utterance out."""
        job = Job(utterance)
        self.submit_jobs([job])
        return job.future

    def submit_jobs(self, jobs: Sequence[Job]) -> None:
        """Hand in jobs together, so that they may be encoded together. Each ends with a result or an error."""
        sound = [job for job in jobs if job.utterance.log_mel.ndim == 2]  # others have no frames to make a batch by
        for job in jobs:
            if job not in sound:
                job.fail(RecognitionError(f"features of shape {job.utterance.log_mel.shape}"))
        with self._closing:
            if not self._closed:
                self._scheduler.add(*sound)
                self._may_encode.set()
                return
        for job in sound:
            job.fail(RecognitionError(SHUTTING_DOWN))

    def close(self) -> None:
        """Finish what is in flight and refuse what waits; a result that was to be tried again stands."""
        with self._closing:
            self._closed = True
        for encoder in self._encoders:
            self._may_encode.set()  # for each: another may have cleared it
            encoder.join()
        self._may_advance.set()
        self._decoder.join()

    def _encode(self) -> None:
        while not self._closed:
            self._may_encode.wait(self._limits.wait_s if self._scheduler.waiting and self._limits.wait_s else None)
            self._may_encode.clear()
            while not self._closed and self._scheduler.encode():
                self._may_advance.set()

    def _advance(self) -> None:
        while True:
            self._may_advance.wait()
            self._may_advance.clear()
            began = time.monotonic()
            while self._scheduler.advance():
                self._may_encode.set()  # there may be room now, or something to try again
                if self._scheduler.is_encoding:
                    self._may_advance.wait(REST * (time.monotonic() - began))
                    self._may_advance.clear()
                began = time.monotonic()
            if self._closed:
                self._scheduler.refuse_waiting(RecognitionError(SHUTTING_DOWN))
                if self._scheduler.is_idle:
                    return
