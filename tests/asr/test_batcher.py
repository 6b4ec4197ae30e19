"""What goes into a batch, and what becomes of each row of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeAlias

import numpy as np
import pytest

from asr.batcher import SIMILAR, Batcher, BatchLimits
from asr.errors import AsrError, RecognitionError, UnsupportedLanguageError
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance

PATIENCE_S = 10
"""How long a test waits for what is certain to come."""
LONG_FRAMES, MEDIUM_FRAMES, SHORT_FRAMES = 3000, 1700, 100

Outcome: TypeAlias = Callable[[Utterance], "Recognition | AsrError"]


def utterance(name: str, frames: int = SHORT_FRAMES) -> Utterance:
    """One that is recognised by its prompt."""
    return Utterance(np.zeros((2, frames), np.float32), DecodingOptions(language="en", prompt=name))


def recognition(
    text: str, *, avg_logprob: float = -0.1, compression_ratio: float = 1.0, temperature: float = 0.0
) -> Recognition:
    return Recognition(text, (1,), "en", avg_logprob, 0.0, compression_ratio, temperature, complete=True)


def its_name(utterance: Utterance) -> Recognition:
    return recognition(utterance.options.prompt)


class Model:
    """Stands in for the engine: remembers its batches, and is busy with each until it is let go on."""

    def __init__(self, outcome: Outcome = its_name) -> None:
        self.outcome = outcome
        self.seen: list[list[Utterance]] = []
        self.started = threading.Event()
        self.may_finish = threading.Event()

    def __call__(self, utterances: Sequence[Utterance]) -> list[Recognition | AsrError]:
        self.seen.append(list(utterances))
        self.started.set()
        assert self.may_finish.wait(PATIENCE_S)
        return [self.outcome(utterance) for utterance in utterances]

    @property
    def batches(self) -> list[list[str]]:
        return [[utterance.options.prompt for utterance in batch] for batch in self.seen]


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def make_batcher(model: Model) -> Iterator[Callable[[BatchLimits], Batcher]]:
    """Batchers over the model, which is busy with the utterance "first" until it may finish."""
    made: list[Batcher] = []

    def make(limits: BatchLimits) -> Batcher:
        made.append(Batcher(model, limits))
        made[-1].submit(utterance("first"))
        assert model.started.wait(PATIENCE_S)
        return made[-1]

    yield make
    model.may_finish.set()
    for batcher in made:
        batcher.close()


@pytest.fixture
def batcher(make_batcher: Callable[[BatchLimits], Batcher]) -> Batcher:
    return make_batcher(BatchLimits(rows=16, frames=100_000))


def submit_all(batcher: Batcher, utterances: Sequence[Utterance]) -> list[Future[Recognition]]:
    return [batcher.submit(utterance) for utterance in utterances]


def texts(futures: Sequence[Future[Recognition]]) -> list[str]:
    return [future.result(PATIENCE_S).text for future in futures]


def test_what_waits_while_the_model_is_busy_is_one_batch(batcher: Batcher, model: Model) -> None:
    futures = submit_all(batcher, [utterance(name) for name in "abcde"])
    model.may_finish.set()

    assert texts(futures) == ["a", "b", "c", "d", "e"]
    assert model.batches == [["first"], ["a", "b", "c", "d", "e"]]


def test_a_batch_has_no_more_rows_than_the_limit(make_batcher: Callable[[BatchLimits], Batcher], model: Model) -> None:
    futures = submit_all(make_batcher(BatchLimits(rows=2, frames=100_000)), [utterance(name) for name in "abcde"])
    model.may_finish.set()

    assert texts(futures) == ["a", "b", "c", "d", "e"]
    assert model.batches == [["first"], ["a", "b"], ["c", "d"], ["e"]]


def test_a_batch_has_no_more_frames_than_the_limit(
    make_batcher: Callable[[BatchLimits], Batcher], model: Model
) -> None:
    limits = BatchLimits(rows=16, frames=3 * utterance("").window.frames)
    futures = submit_all(make_batcher(limits), [utterance(name) for name in "abcd"])
    model.may_finish.set()

    assert texts(futures) == ["a", "b", "c", "d"]
    assert model.batches == [["first"], ["a", "b", "c"], ["d"]]


def test_padding_counts(make_batcher: Callable[[BatchLimits], Batcher], model: Model) -> None:
    """Every row is as long as the longest: one long utterance makes short ones expensive."""
    short, long = utterance("", MEDIUM_FRAMES).window.frames, utterance("", LONG_FRAMES).window.frames
    batcher = make_batcher(BatchLimits(rows=16, frames=long + 2 * short))
    waiting = [utterance("long", LONG_FRAMES), utterance("a", MEDIUM_FRAMES), utterance("b", MEDIUM_FRAMES)]
    futures = submit_all(batcher, waiting)
    model.may_finish.set()

    assert SIMILAR * short > long
    assert 3 * long > long + 2 * short
    assert texts(futures) == ["long", "a", "b"]
    assert model.batches == [["first"], ["long", "a"], ["b"]]


def test_short_and_long_ones_are_not_padded_to_each_other(batcher: Batcher, model: Model) -> None:
    waiting = [utterance(name, LONG_FRAMES if name.isupper() else SHORT_FRAMES) for name in "aBcD"]
    futures = submit_all(batcher, waiting)
    model.may_finish.set()

    assert texts(futures) == ["a", "B", "c", "D"]
    assert model.batches == [["first"], ["a", "c"], ["B", "D"]]


def test_short_ones_pass_a_long_one_only_once(make_batcher: Callable[[BatchLimits], Batcher], model: Model) -> None:
    batcher = make_batcher(BatchLimits(rows=2, frames=LONG_FRAMES))
    names = ["a", "long", "b", "c", "d", "e"]
    futures = submit_all(batcher, [utterance(name, LONG_FRAMES if name == "long" else 100) for name in names])
    model.may_finish.set()

    assert texts(futures) == names
    assert model.batches == [["first"], ["a", "b"], ["long"], ["c", "d"], ["e"]]


def test_the_oldest_is_taken_even_if_it_exceeds_the_limit_alone(
    make_batcher: Callable[[BatchLimits], Batcher], model: Model
) -> None:
    futures = submit_all(make_batcher(BatchLimits(rows=4, frames=10)), [utterance("a"), utterance("b")])
    model.may_finish.set()

    assert texts(futures) == ["a", "b"]
    assert model.batches == [["first"], ["a"], ["b"]]


def test_a_failing_model_fails_that_batch_only(batcher: Batcher, model: Model) -> None:
    def fail(_: Utterance) -> Recognition:
        raise MemoryError("no room for 16 rows")

    model.outcome = fail
    futures = submit_all(batcher, [utterance("a"), utterance("b")])
    model.may_finish.set()

    for future in futures:
        with pytest.raises(RecognitionError, match="no room for 16 rows"):
            future.result(PATIENCE_S)
    model.outcome = its_name
    assert texts([batcher.submit(utterance("c"))]) == ["c"]


def test_a_row_that_fails_fails_alone(batcher: Batcher, model: Model) -> None:
    error = UnsupportedLanguageError("xx", 99)
    model.outcome = lambda utterance: error if utterance.options.prompt == "b" else its_name(utterance)
    a, b, c = submit_all(batcher, [utterance(name) for name in "abc"])
    model.may_finish.set()

    assert texts([a, c]) == ["a", "c"]
    assert b.exception(PATIENCE_S) is error


def test_results_that_are_too_few_fail_the_batch(model: Model) -> None:
    batcher = Batcher(lambda utterances: model(utterances)[1:], BatchLimits())
    model.may_finish.set()
    future = batcher.submit(utterance("a"))

    with pytest.raises(RecognitionError):
        future.result(PATIENCE_S)
    batcher.close()


def test_features_without_frames_fail_alone(batcher: Batcher, model: Model) -> None:
    model.may_finish.set()

    with pytest.raises(RecognitionError):
        batcher.submit(Utterance(np.zeros(100, np.float32))).result(PATIENCE_S)
    assert texts([batcher.submit(utterance("a"))]) == ["a"]


def test_what_is_cancelled_never_reaches_the_model(batcher: Batcher, model: Model) -> None:
    a, b, c = submit_all(batcher, [utterance(name) for name in "abc"])
    assert a.cancel()
    assert c.cancel()
    model.may_finish.set()

    assert texts([b]) == ["b"]
    assert model.batches == [["first"], ["b"]]


def test_where_all_is_cancelled_the_model_is_not_called(batcher: Batcher, model: Model) -> None:
    assert batcher.submit(utterance("a")).cancel()
    model.may_finish.set()
    batcher.close()

    assert model.batches == [["first"]]


def test_a_caller_who_leaves_during_the_batch_harms_nobody(batcher: Batcher, model: Model) -> None:
    a, b = submit_all(batcher, [utterance("a"), utterance("b")])

    def leave(utterance: Utterance) -> Recognition:
        a.cancel()
        return its_name(utterance)

    model.outcome = leave
    model.may_finish.set()

    assert texts([b]) == ["b"]
    assert a.cancelled()


def attempts_of(model: Model, name: str) -> list[tuple[bool, float]]:
    return [
        (utterance.full_window, utterance.options.temperature)
        for batch in model.seen
        for utterance in batch
        if utterance.options.prompt == name
    ]


def test_a_result_that_looks_wrong_is_tried_again_until_it_looks_right(batcher: Batcher, model: Model) -> None:
    def repeats_itself_below_04(utterance: Utterance) -> Recognition:
        temperature = utterance.options.temperature
        ratio = 5.0 if utterance.options.prompt == "hard" and temperature < 0.4 else 1.0
        return recognition(f"{utterance.options.prompt} at {temperature}", compression_ratio=ratio)

    model.outcome = repeats_itself_below_04
    futures = submit_all(batcher, [utterance("hard"), utterance("easy")])
    model.may_finish.set()

    assert texts(futures) == ["hard at 0.4", "easy at 0.0"]
    assert attempts_of(model, "hard") == [(False, 0.0), (True, 0.0), (True, 0.2), (True, 0.4)]
    assert attempts_of(model, "easy") == [(False, 0.0)]


def test_the_likeliest_stands_where_all_look_wrong(batcher: Batcher, model: Model) -> None:
    def likeliest_at_06(utterance: Utterance) -> Recognition:
        temperature = utterance.options.temperature
        return recognition(f"at {temperature}", avg_logprob=-2.0 - abs(temperature - 0.6), temperature=temperature)

    model.outcome = likeliest_at_06
    future = batcher.submit(utterance("a"))
    model.may_finish.set()

    assert texts([future]) == ["at 0.6"]
    assert attempts_of(model, "a") == [(False, 0.0)] + [(True, step / 10) for step in range(0, 11, 2)]


def test_an_attempt_that_fails_fails_the_utterance(batcher: Batcher, model: Model) -> None:
    error = RecognitionError("out of range")
    model.outcome = lambda utterance: error if utterance.full_window else recognition("", avg_logprob=-3.0)
    future = batcher.submit(utterance("a"))
    model.may_finish.set()

    assert future.exception(PATIENCE_S) is error


def submit_until_refused(batcher: Batcher) -> list[Future[Recognition]]:
    futures = []
    while True:
        try:
            futures.append(batcher.submit(utterance("late")))
        except RecognitionError:
            return futures


def test_closing_fails_what_waits_and_finishes_what_runs(model: Model) -> None:
    batcher = Batcher(model, BatchLimits())
    running = batcher.submit(utterance("running"))
    assert model.started.wait(PATIENCE_S)
    waiting = batcher.submit(utterance("waiting"))
    closing = threading.Thread(target=batcher.close)
    closing.start()
    late = submit_until_refused(batcher)
    model.may_finish.set()
    closing.join(PATIENCE_S)

    assert texts([running]) == ["running"]
    for future in [waiting, *late]:
        with pytest.raises(RecognitionError, match="shutting down"):
            future.result(PATIENCE_S)
    assert model.batches == [["running"]]


def test_closing_an_idle_batcher_ends_its_thread(model: Model) -> None:
    before = threading.active_count()
    batcher = Batcher(model, BatchLimits())
    batcher.close()

    assert threading.active_count() == before
    with pytest.raises(RecognitionError, match="shutting down"):
        batcher.submit(utterance("late"))
