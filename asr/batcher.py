"""The thread that the model runs in: utterances are handed in from any other, and what was heard comes back."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

from asr.errors import RecognitionError
from asr.scheduler import BatchLimits, Job, Model, Scheduler
from asr.transcript import Recognition
from asr.utterance import Utterance

SHUTTING_DOWN = "the recogniser is shutting down"


class Batcher:
    """Drives the scheduler for as long as there is work, and sleeps while there is none."""

    def __init__(self, model: Model, limits: BatchLimits) -> None:
        self._scheduler = Scheduler(model, limits)
        self._arrived: list[Job] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self._thread.start()

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
        with self._changed:
            if not self._closed:
                self._arrived += sound
                self._changed.notify()
                return
        for job in sound:
            job.fail(RecognitionError(SHUTTING_DOWN))

    def close(self) -> None:
        """Finish what is in flight and refuse what waits; a result that was to be tried again stands."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._has_work():
            self._scheduler.turn()

    def _has_work(self) -> bool:
        """Wait for some; there is none any more when the batcher was closed and nothing is in flight."""
        with self._changed:
            if self._scheduler.is_idle:
                self._changed.wait_for(lambda: self._arrived or self._closed)
            arrived, self._arrived = self._arrived, []
            closed = self._closed
        for job in arrived:
            self._scheduler.add(job)
        if closed:
            self._scheduler.refuse_waiting(RecognitionError(SHUTTING_DOWN))
        return not self._scheduler.is_idle
