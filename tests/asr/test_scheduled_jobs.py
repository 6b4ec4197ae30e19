"""What becomes of a job: it is cancelled, tried again, timed, refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from asr.errors import AsrError, RecognitionError
from asr.transcript import Recognition, Timing
from asr.utterance import Utterance
from tests.asr.desk import desk
from tests.asr.fake_model import (
    ENCODE_S,
    LONG_FRAMES,
    MEDIUM_FRAMES,
    STEP_S,
    FakeRow,
    its_name,
    recognition,
)

# --- cancelling


def test_what_is_cancelled_while_it_waits_never_reaches_the_model() -> None:
    at = desk()
    at.add("a", "b", "c")
    assert at.jobs["a"].future.cancel()
    assert at.jobs["c"].future.cancel()
    at.finish()

    assert at.texts("b") == ["b"]
    assert at.model.batches == [["b"]]


def test_where_all_is_cancelled_the_model_is_not_called() -> None:
    at = desk()
    at.add("a")
    assert at.jobs["a"].future.cancel()
    at.turn()

    assert at.scheduler.is_idle
    assert (at.model.batches, at.model.stepped) == ([], [])


def test_what_is_cancelled_in_flight_leaves_in_the_next_turn() -> None:
    at = desk(rows=2)
    at.add("a", "b", steps=9)
    at.add("c", steps=9)
    at.turn()
    assert at.jobs["a"].future.cancel()
    at.turn()

    assert at.model.stepped == [["a", "b"], ["b", "c"]]
    at.finish()
    assert at.texts("bc") == ["b", "c"]


def test_what_is_cancelled_while_it_starts_leaves_in_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    at = desk()
    start = at.model.start

    def leave(utterances: Sequence[Utterance], encoded: list[str]) -> Sequence[FakeRow | AsrError]:
        at.jobs["a"].future.cancel()
        return start(utterances, encoded)

    monkeypatch.setattr(at.model, "start", leave)
    at.add("a", "b", steps=3)
    at.turn(times=2)

    assert at.model.stepped == [["a", "b"], ["b"]]


def test_what_is_cancelled_while_it_is_encoded_never_starts() -> None:
    at = desk(frames=0)
    at.add("a", "b")
    assert at.scheduler.encode()
    assert at.scheduler.encode()
    assert at.jobs["a"].future.cancel()
    at.finish()

    assert at.model.batches == [["b"]]
    assert at.texts("b") == ["b"]


def test_a_place_that_is_given_up_is_work_for_the_encoder() -> None:
    """Whoever encodes hears of it, even if nothing else is in flight."""
    at = desk(rows=1)
    at.add("a", "b", steps=9)
    at.turn()
    assert not at.scheduler.encode()
    assert at.jobs["a"].future.cancel()

    assert at.scheduler.advance()
    assert at.scheduler.encode()
    at.finish()
    assert at.texts("b") == ["b"]


@pytest.mark.parametrize("steps", [0, 1])
def test_a_caller_who_leaves_at_the_last_moment_harms_nobody(steps: int) -> None:
    at = desk()

    def leave(utterance: Utterance) -> Recognition:
        at.jobs["a"].future.cancel()
        return its_name(utterance)

    at.model.outcome = leave
    at.add("a", "b", steps=steps)
    at.finish()

    assert at.texts("b") == ["b"]
    assert at.jobs["a"].future.cancelled()


def test_what_is_cancelled_is_not_tried_again() -> None:
    at = desk()

    def leave(utterance: Utterance) -> Recognition:
        at.jobs["a"].future.cancel()
        return recognition("", avg_logprob=-3.0)

    at.model.outcome = leave
    at.add("a")
    at.finish()

    assert at.model.batches == [["a"]]


# --- trying again


def test_a_result_that_looks_wrong_is_tried_again_until_it_looks_right() -> None:
    def repeats_itself_below_04(utterance: Utterance) -> Recognition:
        temperature = utterance.options.temperature
        ratio = 5.0 if utterance.options.prompt == "hard" and temperature < 0.4 else 1.0
        return recognition(f"{utterance.options.prompt} at {temperature}", compression_ratio=ratio)

    at = desk()
    at.model.outcome = repeats_itself_below_04
    at.add("hard", "easy")
    at.finish()

    assert at.result("hard").text == "hard at 0.4"
    assert at.result("easy").text == "easy at 0.0"
    assert at.model.attempts_at("hard") == [(False, 0.0), (True, 0.0), (True, 0.2), (True, 0.4)]
    assert at.model.attempts_at("easy") == [(False, 0.0)]


def test_the_likeliest_stands_where_all_look_wrong() -> None:
    def likeliest_at_06(utterance: Utterance) -> Recognition:
        temperature = utterance.options.temperature
        return recognition(f"at {temperature}", avg_logprob=-2.0 - abs(temperature - 0.6), temperature=temperature)

    at = desk()
    at.model.outcome = likeliest_at_06
    at.add("a")
    at.finish()

    assert at.texts("a") == ["at 0.6"]
    assert at.model.attempts_at("a") == [(False, 0.0)] + [(True, step / 10) for step in range(0, 11, 2)]


def test_an_attempt_that_fails_fails_the_utterance() -> None:
    error = RecognitionError("out of range")
    at = desk()
    at.model.outcome = lambda utterance: error if utterance.full_window else recognition("", avg_logprob=-3.0)
    at.add("a")
    at.finish()

    assert at.error("a") is error


def test_what_is_tried_again_keeps_its_seniority() -> None:
    """It goes before what came after it, as long as that is no shorter."""
    at = desk(rows=1)
    at.model.outcome = lambda utterance: recognition(
        "", compression_ratio=5.0 if utterance.options.prompt == "old" and not utterance.full_window else 1.0
    )
    at.add("old", frames=MEDIUM_FRAMES)
    at.clock.now += 1e-3
    at.add("young", frames=LONG_FRAMES)
    at.finish()

    assert at.model.batches == [["old"], ["old"], ["young"]]


# --- timing


def test_where_the_time_went() -> None:
    at = desk(rows=2)
    at.add("a", steps=2)
    at.clock.now += 3.0
    at.turn()  # a alone
    at.add("b", "c", steps=3)
    at.turn()  # b joins; a ends
    at.turn()  # c joins
    at.finish()

    first, second = ENCODE_S + STEP_S, 2 * (ENCODE_S + STEP_S)
    assert at.result("a").timing == Timing(3.0, ENCODE_S, first + STEP_S, steps=2, rows=1.5)
    assert at.result("b").timing == Timing(0.0, ENCODE_S, ENCODE_S + 3 * STEP_S, steps=3, rows=2.0)
    assert at.result("c").timing == Timing(first, ENCODE_S, 3 * STEP_S, steps=3, rows=5 / 3)
    assert at.clock.now == 3.0 + second + ENCODE_S + 3 * STEP_S


def test_the_time_of_all_attempts_is_added_up() -> None:
    """Waiting, too; rows are those of the average step."""
    at = desk(rows=2)
    at.model.outcome = lambda utterance: recognition(
        "", compression_ratio=5.0 if utterance.options.prompt == "a" and not utterance.full_window else 1.0
    )
    at.add("a", steps=1)
    at.add("b", "c", steps=2)
    at.clock.now += 3.0
    at.finish()

    assert at.model.batches == [["a", "b"], ["c"], ["a"]]
    assert at.model.stepped == [["a", "b"], ["b", "c"], ["c", "a"]]
    assert at.result("a").timing == Timing(
        queue_s=3.0 + ENCODE_S + STEP_S, encode_s=2 * ENCODE_S, decode_s=2 * STEP_S, steps=2, rows=2.0
    )


# --- refusing


def test_what_waits_is_refused_and_what_is_in_flight_goes_on() -> None:
    at = desk(rows=1)
    at.add("a", "b", steps=2)
    at.turn()
    error = RecognitionError("closed")
    at.scheduler.refuse_waiting(error)
    at.finish()

    assert at.texts("a") == ["a"]
    assert at.error("b") is error


def test_a_result_that_was_to_be_tried_again_stands_where_it_is_refused() -> None:
    at = desk()
    at.model.outcome = lambda utterance: recognition("doubtful", avg_logprob=-3.0)
    at.add("a")
    at.turn()
    assert not at.done()
    at.scheduler.refuse_waiting(RecognitionError("closed"))

    assert at.texts("a") == ["doubtful"]
    assert at.scheduler.is_idle
