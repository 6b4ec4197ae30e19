"""The threads that drive the model: they take work from any other, outlive what goes wrong, and end when closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from asr.batcher import Batcher
from asr.errors import RecognitionError
from asr.scheduler import BatchLimits, Job
from asr.transcript import Recognition
from asr.utterance import Utterance
from tests.asr.fake_model import PATIENCE_S, BusyModel, FakeModel, recognition, utterance


@pytest.fixture
def model() -> BusyModel:
    return BusyModel()


@pytest.fixture
def batcher(model: BusyModel) -> Iterator[Batcher]:
    """Over the model, which is busy with the utterance "first" until it may go on."""
    made = Batcher(model, BatchLimits(rows=16, frames=100_000))
    made.submit(utterance("first"))
    assert model.is_busy.wait(PATIENCE_S)
    yield made
    model.may_go_on.set()
    made.close()


def texts(futures: Sequence[Future[Recognition]]) -> list[str]:
    return [future.result(PATIENCE_S).text for future in futures]


def test_what_comes_while_the_model_is_busy_is_encoded_together(batcher: Batcher, model: BusyModel) -> None:
    futures = [batcher.submit(utterance(name)) for name in "abcde"]
    model.may_go_on.set()

    assert texts(futures) == ["a", "b", "c", "d", "e"]
    assert model.batches == [["first"], ["a", "b", "c", "d", "e"]]


def test_what_is_held_back_is_encoded_in_time(model: BusyModel) -> None:
    """Together, though nothing happens when the time is up."""
    model.may_go_on.set()
    batcher = Batcher(model, BatchLimits(rows=16, frames=100_000, wait_s=0.3))
    futures = [batcher.submit(utterance(name)) for name in "ab"]

    assert texts(futures) == ["a", "b"]
    assert model.batches == [["a", "b"]]
    batcher.close()


def test_jobs_that_are_handed_in_together_are_encoded_together(model: BusyModel) -> None:
    """Even where the model waits for nothing else."""
    model.may_go_on.set()
    batcher = Batcher(model, BatchLimits(rows=16, frames=100_000))
    jobs = [Job(utterance(name)) for name in "abc"]
    batcher.submit_jobs(jobs)

    assert texts([job.future for job in jobs]) == ["a", "b", "c"]
    assert model.batches == [["a", "b", "c"]]
    batcher.close()


def test_many_threads_hand_in_work(batcher: Batcher, model: BusyModel) -> None:
    model.may_go_on.set()
    names = [f"{number}" for number in range(200)]
    with ThreadPoolExecutor(8) as callers:
        heard = list(callers.map(lambda name: batcher.submit(utterance(name)).result(PATIENCE_S).text, names))

    assert heard == names
    assert sorted(name for batch in model.batches[1:] for name in batch) == sorted(names)
    assert max(map(len, model.stepped)) <= 16


@pytest.mark.parametrize("rows", [1, 2])
def test_a_place_that_is_free_again_is_taken(model: BusyModel, rows: int) -> None:
    """Also where all that was in flight has ended at once, and nothing new comes."""
    model.may_go_on.set()
    batcher = Batcher(model, BatchLimits(rows=rows))
    names = [f"{number}" for number in range(50)]

    assert texts([batcher.submit(utterance(name)) for name in names]) == names
    batcher.close()


def test_a_batcher_sleeps_and_wakes(batcher: Batcher, model: BusyModel) -> None:
    model.may_go_on.set()
    for name in "abc":
        assert texts([batcher.submit(utterance(name))]) == [name]

    assert model.batches == [["first"], ["a"], ["b"], ["c"]]
    assert [name for step in model.stepped for name in step] == ["first", "a", "b", "c"]


def test_as_many_are_encoded_at_a_time_as_the_model_can() -> None:
    """And have a place among the rows from then on."""
    in_pairs = threading.Barrier(2)

    class PairedModel(FakeModel):
        encoders = 2

        def encode(self, utterances: Sequence[Utterance]) -> list[str]:
            in_pairs.wait(PATIENCE_S)
            return super().encode(utterances)

    model = PairedModel()
    batcher = Batcher(model, BatchLimits(rows=3))
    names = [f"{number}" for number in range(20)]

    assert texts([batcher.submit(utterance(name)) for name in names]) == names
    assert not in_pairs.broken
    assert max(map(len, model.stepped)) <= 3
    batcher.close()


# --- what goes wrong


def test_features_without_frames_fail_alone(batcher: Batcher, model: BusyModel) -> None:
    model.may_go_on.set()
    shapeless, sound = Job(Utterance(np.zeros(100, np.float32))), Job(utterance("a"))
    batcher.submit_jobs([shapeless, sound])

    with pytest.raises(RecognitionError, match="shape"):
        shapeless.future.result(PATIENCE_S)
    assert texts([sound.future]) == ["a"]


@pytest.mark.parametrize("part", ["start", "step", "result"])
def test_the_threads_outlive_what_the_model_raises(batcher: Batcher, model: BusyModel, part: str) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room for 16 rows")

    a, b = (batcher.submit(utterance(name)) for name in "ab")
    intact = getattr(model, part)
    setattr(model, part, fail)
    model.may_go_on.set()
    for future in (a, b):
        with pytest.raises(RecognitionError, match="no room for 16 rows"):
            future.result(PATIENCE_S)
    setattr(model, part, intact)

    assert texts([batcher.submit(utterance("c"))]) == ["c"]


def test_what_is_cancelled_never_reaches_the_model(batcher: Batcher, model: BusyModel) -> None:
    a, b, c = (batcher.submit(utterance(name)) for name in "abc")
    assert a.cancel()
    assert c.cancel()
    model.may_go_on.set()

    assert texts([b]) == ["b"]
    assert model.batches == [["first"], ["b"]]


def test_where_all_is_cancelled_the_model_is_not_called(batcher: Batcher, model: BusyModel) -> None:
    assert batcher.submit(utterance("a")).cancel()
    model.may_go_on.set()
    batcher.close()

    assert model.batches == [["first"]]


# --- closing


@contextmanager
def closing(batcher: Batcher) -> Iterator[Future[Recognition]]:
    """Close it in another thread; → what was submitted as the first after it."""
    thread = threading.Thread(target=batcher.close)
    thread.start()
    while not (late := batcher.submit(utterance("late"))).done():
        late.cancel()
    yield late
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def assert_refused(future: Future[Recognition]) -> None:
    with pytest.raises(RecognitionError, match="shutting down"):
        future.result(timeout=0)


def test_closing_finishes_what_is_in_flight_and_refuses_what_waits(model: BusyModel) -> None:
    model.ends_after["in flight"] = 5
    batcher = Batcher(model, BatchLimits(rows=1))
    in_flight = batcher.submit(utterance("in flight"))
    assert model.is_busy.wait(PATIENCE_S)
    waiting = batcher.submit(utterance("waiting"))
    with closing(batcher) as late:
        assert_refused(late)
        model.may_go_on.set()

    assert in_flight.result(timeout=0).text == "in flight"
    assert_refused(waiting)
    assert model.batches == [["in flight"]]
    assert len(model.stepped) == 5


def test_closing_finishes_what_is_being_encoded(model: BusyModel) -> None:
    """Also where the last of what is in flight ends before it."""
    model.may_go_on.set()
    model.ends_after["in flight"] = 1_000_000_000
    batcher = Batcher(model, BatchLimits())
    in_flight = batcher.submit(utterance("in flight"))
    assert model.has_stepped.wait(PATIENCE_S)
    model.may_go_on.clear()
    model.is_busy.clear()
    being_encoded = batcher.submit(utterance("being encoded"))
    assert model.is_busy.wait(PATIENCE_S)
    with closing(batcher):
        [row] = model.rows
        row.ends_after = 1
        assert texts([in_flight]) == ["in flight"]
        model.may_go_on.set()

    assert being_encoded.result(timeout=0).text == "being encoded"


def test_a_result_that_was_to_be_tried_again_stands(model: BusyModel) -> None:
    model.outcome = lambda utterance: recognition("doubtful", avg_logprob=-3.0)
    batcher = Batcher(model, BatchLimits())
    doubtful = batcher.submit(utterance("a"))
    assert model.is_busy.wait(PATIENCE_S)
    with closing(batcher):
        model.may_go_on.set()

    assert doubtful.result(timeout=0).text == "doubtful"
    assert model.attempts_at("a") == [(False, 0.0)]


def test_closing_an_idle_batcher_ends_its_threads(model: BusyModel) -> None:
    before = threading.active_count()
    batcher = Batcher(model, BatchLimits())
    assert threading.active_count() == before + 2
    batcher.close()

    assert threading.active_count() == before
    assert_refused(batcher.submit(utterance("late")))
    batcher.close()
