"""The Recognizer's own class with a stand-in for the engine: no Ray is started."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from ray import serve

from asr.errors import RecognitionError, UnsupportedLanguageError
from asr.scheduler import BatchLimits, Job
from asr.transcript import DecodingOptions, Recognition
from deployments.recognizer import ModelInfo, Recognizer, RecognizerConfig
from tests.asr.fake_model import PATIENCE_S, BusyModel, recognition, utterance

Result = TypeVar("Result")

RECOGNIZER: Any = cast(Any, Recognizer).func_or_class
"""The class without what Serve wraps it in."""

CONFIG = RecognizerConfig(
    model="tiny.en",
    precision="int8",
    backend="onnx",
    threads=3,
    cache_dir=Path("/cache"),
    limits=BatchLimits(rows=4, frames=100_000),
)


class FakeEngine(BusyModel):
    """Has what the deployment wants of an engine beside what the scheduler wants."""

    def __init__(self) -> None:
        super().__init__()
        self.dims = SimpleNamespace(n_mels=2)
        self.tokenizer = SimpleNamespace(languages=("en", "de"))
        self.loaded_with: dict[str, Any] = {}
        self.warmed_up: list[int] = []

    def load(self, model: str, **options: Any) -> FakeEngine:
        self.loaded_with = {"model": model, **options}
        return self

    def warm_up(self, batch_size: int) -> None:
        self.warmed_up.append(batch_size)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """What the deployment loads. Free to go on, unless a test has it wait."""
    engine = FakeEngine()
    engine.may_go_on.set()
    monkeypatch.setattr("deployments.recognizer.load_engine", engine.load)
    replica = SimpleNamespace(_deployment_config=SimpleNamespace(max_ongoing_requests=64))
    monkeypatch.setattr(serve, "get_replica_context", lambda: replica)
    return engine


def with_recognizer(use: Callable[[Any], Awaitable[Result]]) -> Result:
    """Make a Recognizer as Serve does, and use it."""

    async def run() -> Result:
        recognizer = RECOGNIZER(CONFIG)
        try:
            return await use(recognizer)
        finally:
            recognizer._batcher.close()
            _close_door(recognizer)

    return asyncio.run(run())


def _close_door(recognizer: Any) -> None:
    """Serve's queue would otherwise make an event loop when it is collected, and leave that open."""
    queue = recognizer._admit._get_max_batch_size.__self__._queue
    if queue is not None:
        queue._handle_batch_task.cancel()
        queue._handle_batch_task = None


def recognize(recognizer: Any, *names: str) -> list[asyncio.Task[Recognition]]:
    """Calls that are made at the same time."""
    return [asyncio.create_task(recognizer.recognize(utterance(name))) for name in names]


async def outcomes(*calls: Awaitable[Recognition]) -> list[str | BaseException]:
    results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE_S)
    return [result.text if isinstance(result, Recognition) else result for result in results]


# --- loading


def test_the_model_is_loaded_and_warmed_up(engine: FakeEngine) -> None:
    described = with_recognizer(lambda recognizer: recognizer.describe())

    assert described == ModelInfo(n_mels=2, languages=("en", "de"))
    assert engine.warmed_up == [4]
    assert engine.loaded_with == {
        "model": "tiny.en",
        "precision": "int8",
        "backend": "onnx",
        "threads": 3,
        "max_batch": 4,
        "cache_dir": Path("/cache"),
    }


def test_a_model_that_does_not_work_is_not_served(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(batch_size: int) -> None:
        raise RecognitionError("no kernel")

    monkeypatch.setattr(engine, "warm_up", fail)
    with pytest.raises(RecognitionError, match="no kernel"):
        RECOGNIZER(CONFIG)


# --- calls


def test_simultaneous_calls_are_handed_in_together(engine: FakeEngine) -> None:
    async def use(recognizer: Any) -> None:
        assert await outcomes(*recognize(recognizer, "a", "b", "c")) == ["a", "b", "c"]
        assert await outcomes(*recognize(recognizer, "d")) == ["d"]

    with_recognizer(use)
    assert engine.batches == [["a", "b", "c"], ["d"]]


def test_more_calls_than_rows_are_all_answered(engine: FakeEngine) -> None:
    names = [f"{number}" for number in range(30)]

    async def use(recognizer: Any) -> None:
        assert await outcomes(*recognize(recognizer, *names)) == names

    with_recognizer(use)
    assert [name for batch in engine.batches for name in batch] == names
    assert max(map(len, engine.stepped)) == 4


def test_what_comes_while_the_model_is_busy_is_handed_in(engine: FakeEngine) -> None:
    """The door never waits for the model."""
    engine.may_go_on.clear()

    async def use(recognizer: Any) -> None:
        handed_in: asyncio.Queue[list[str]] = asyncio.Queue()
        submit_jobs = recognizer._batcher.submit_jobs

        def watched(jobs: list[Job]) -> None:
            submit_jobs(jobs)
            handed_in.put_nowait([job.utterance.options.prompt for job in jobs])

        recognizer._batcher.submit_jobs = watched
        calls = []
        for name in "abc":
            calls += recognize(recognizer, name)
            assert await asyncio.wait_for(handed_in.get(), PATIENCE_S) == [name]
            assert await asyncio.to_thread(engine.is_busy.wait, PATIENCE_S)
        engine.may_go_on.set()
        assert await outcomes(*calls) == ["a", "b", "c"]

    with_recognizer(use)
    assert engine.batches == [["a"], ["b", "c"]]


def test_an_error_comes_back_to_its_caller_only(engine: FakeEngine) -> None:
    error = UnsupportedLanguageError("xx", 99)
    engine.unfit["b"] = error
    heard = with_recognizer(lambda recognizer: outcomes(*recognize(recognizer, "a", "b", "c")))

    assert heard == ["a", error, "c"]


# --- cancelling


def test_a_call_that_is_cancelled_leaves_the_model_within_a_turn(engine: FakeEngine) -> None:
    engine.ends_after |= {"a": 1000, "b": 3}
    engine.may_go_on.clear()

    async def use(recognizer: Any) -> None:
        a, b = recognize(recognizer, "a", "b")
        assert await asyncio.to_thread(engine.is_busy.wait, PATIENCE_S)
        a.cancel()
        with pytest.raises(asyncio.CancelledError):
            await a
        engine.may_go_on.set()
        assert await outcomes(b) == ["b"]

    with_recognizer(use)
    assert engine.stepped == [["a", "b"], ["b"], ["b"]]


def test_a_call_that_is_cancelled_at_the_door_never_reaches_the_model(engine: FakeEngine) -> None:
    async def use(recognizer: Any) -> None:
        a, b = recognize(recognizer, "a", "b")
        await asyncio.sleep(0)  # both are at the door
        a.cancel()
        assert await outcomes(b) == ["b"]

    with_recognizer(use)
    assert engine.batches == [["b"]]


# --- health


def test_a_model_that_just_worked_is_not_asked(engine: FakeEngine) -> None:
    """After its start, or after any call."""

    async def use(recognizer: Any) -> None:
        await recognizer.check_health()
        assert engine.batches == []

        recognizer._proven_at = -math.inf
        assert await outcomes(*recognize(recognizer, "a")) == ["a"]
        await recognizer.check_health()

    with_recognizer(use)
    assert engine.batches == [["a"]]


def test_a_model_that_has_long_been_idle_is_asked_once(engine: FakeEngine) -> None:
    """What it hears in silence may look as wrong as it likes."""
    engine.outcome = lambda utterance: recognition("", avg_logprob=-3.0)

    async def use(recognizer: Any) -> None:
        recognizer._proven_at = -math.inf
        for _ in range(3):
            await recognizer.check_health()

    with_recognizer(use)
    [[silence]] = engine.started
    assert silence.log_mel.shape == (2, 100)
    assert silence.options == DecodingOptions(language="en")


def test_a_model_that_rests_gives_memory_back(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[float] = []
    monkeypatch.setattr("deployments.recognizer.give_back_free_memory", lambda: given_back.append(1))

    async def use(recognizer: Any) -> None:
        await recognizer.check_health()
        assert not given_back
        recognizer._proven_at = -math.inf
        await recognizer.check_health()

    with_recognizer(use)
    assert len(given_back) == 1


def test_what_ails_the_model_is_raised(engine: FakeEngine) -> None:
    """Each time, and calls that failed prove nothing."""
    engine.outcome = lambda utterance: RecognitionError("ill")

    async def use(recognizer: Any) -> None:
        recognizer._proven_at = -math.inf
        await outcomes(*recognize(recognizer, "a"))
        for _ in range(2):
            with pytest.raises(RecognitionError, match="ill"):
                await recognizer.check_health()

    with_recognizer(use)
    assert len(engine.started) == 3
