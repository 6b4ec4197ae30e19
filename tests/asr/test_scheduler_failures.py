"""A model that fails harms nobody but those whom it fails on."""

from __future__ import annotations

from typing import NoReturn

import pytest

from asr.errors import RecognitionError, UnsupportedLanguageError
from asr.transcript import Recognition
from asr.utterance import Utterance
from tests.asr.desk import Desk, desk
from tests.asr.fake_model import (
    its_name,
)


def test_a_row_that_cannot_start_fails_alone() -> None:
    at = desk()
    at.model.unfit["b"] = UnsupportedLanguageError("xx", 99)
    at.add("a", "b", "c")
    at.finish()

    assert at.texts("ac") == ["a", "c"]
    assert at.error("b") is at.model.unfit["b"]


def test_a_row_that_ends_with_an_error_fails_alone() -> None:
    error = RecognitionError("not a number")
    at = desk()
    at.model.outcome = lambda utterance: error if utterance.options.prompt == "b" else its_name(utterance)
    at.add("a", "b", "c")
    at.finish()

    assert at.texts("ac") == ["a", "c"]
    assert at.error("b") is error


def fail(*_: object) -> NoReturn:
    raise MemoryError("no room for 16 rows")


def assert_failed(at: Desk, *names: str) -> None:
    for name in names:
        with pytest.raises(RecognitionError, match="no room for 16 rows"):
            at.result(name)


def test_what_fails_ahead_of_its_start_is_tried_when_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start finds out which utterance is to blame."""
    at = desk()
    at.model.unfit["b"] = RecognitionError("no kernel")
    monkeypatch.setattr(at.model, "encode", fail)
    at.add("a", "b", "c")
    at.finish()

    assert at.texts("ac") == ["a", "c"]
    assert at.error("b") is at.model.unfit["b"]


def test_a_model_that_fails_to_start_fails_that_batch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    at = desk()
    at.add("in flight", steps=3)
    at.turn()
    with monkeypatch.context() as failing:
        failing.setattr(at.model, "start", fail)
        at.add("a", "b")
        at.turn()
    assert_failed(at, "a", "b")

    at.add("c")
    at.finish()
    assert at.result("in flight").text == "in flight"
    assert at.texts("c") == ["c"]


def test_a_model_that_fails_to_step_fails_what_is_in_flight_only(monkeypatch: pytest.MonkeyPatch) -> None:
    at = desk(rows=2)
    at.add("a", "b", steps=3)
    at.add("c")
    at.turn()
    with monkeypatch.context() as failing:
        failing.setattr(at.model, "step", fail)
        at.turn()
    assert_failed(at, "a", "b")
    assert at.model.rows_in_flight == 0

    at.finish()
    assert at.texts("c") == ["c"]
    assert at.model.stepped == [["a", "b"], ["c"]]


def test_a_model_that_fails_at_a_result_fails_that_row_only() -> None:
    def outcome(utterance: Utterance) -> Recognition:
        if utterance.options.prompt == "b":
            raise MemoryError("no room for 16 rows")
        return its_name(utterance)

    at = desk()
    at.model.outcome = outcome
    at.add("a", "b", "c")
    at.finish()

    assert_failed(at, "b")
    assert at.texts("ac") == ["a", "c"]


def test_a_model_that_cannot_forget_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row goes on without anybody to wait for it."""
    at = desk()
    at.add("a", "b", steps=3)
    at.turn()
    with monkeypatch.context() as failing:
        failing.setattr(at.model, "drop", fail)
        assert at.jobs["a"].future.cancel()
        at.turn()

    at.finish()
    assert at.texts("b") == ["b"]


def test_rows_that_are_too_few_fail_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were started meanwhile end without anybody to wait for them."""
    at = desk()
    start = at.model.start
    with monkeypatch.context() as failing:
        failing.setattr(at.model, "start", lambda utterances, encoded: start(utterances, encoded)[1:])
        at.add("a", "b", steps=2)
        at.turn()
    for name in "ab":
        assert isinstance(at.error(name), RecognitionError)

    at.add("c", steps=2)
    at.finish()
    assert at.texts("c") == ["c"]
    assert at.model.rows_in_flight == 0
