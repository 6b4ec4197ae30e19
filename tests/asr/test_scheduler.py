"""What is encoded together, and in which order, a turn of the scheduler at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from asr.errors import AsrError
from asr.features import FRAMES_PER_SECOND, WINDOW_FRAMES
from asr.scheduler import PRECEDENCE, SIMILAR, BatchLimits
from asr.transcript import Timing
from asr.utterance import Utterance
from tests.asr.desk import Desk, desk, window_frames
from tests.asr.fake_model import (
    ENCODE_S,
    LONG_FRAMES,
    MEDIUM_FRAMES,
    SHORT_FRAMES,
    STEP_S,
    FakeRow,
    recognition,
)

PASSED_FOR_S = PRECEDENCE * WINDOW_FRAMES / FRAMES_PER_SECOND
"""How long anything may be passed by what comes later."""


# --- turns


def test_a_turn_starts_a_batch_and_advances_all_rows() -> None:
    at = desk()
    at.add("a", "b", steps=2)
    at.turn()
    assert (at.model.batches, at.model.stepped, at.done()) == ([["a", "b"]], [["a", "b"]], [])

    at.add("c")
    at.turn()
    assert (at.model.batches, at.model.stepped) == ([["a", "b"], ["c"]], [["a", "b"], ["a", "b", "c"]])
    assert at.done() == ["a", "b", "c"]
    assert at.texts("abc") == ["a", "b", "c"]
    assert at.scheduler.is_idle


def test_a_turn_starts_no_more_than_one_batch() -> None:
    """Those in flight wait for one run of the encoder at most."""
    at = desk(frames=0)
    at.add("a", "b", "c", steps=9)
    at.turn()
    assert (at.model.batches, at.scheduler.waiting) == ([["a"]], 2)

    at.turn(times=2)
    assert at.model.batches == [["a"], ["b"], ["c"]]
    assert at.model.stepped == [["a"], ["a", "b"], ["a", "b", "c"]]


def test_by_default_each_is_encoded_by_itself() -> None:
    at = Desk(BatchLimits())
    at.add("a", "b")
    at.finish()

    assert at.model.batches == [["a"], ["b"]]


def test_a_turn_without_work_does_nothing() -> None:
    at = desk()
    at.turn()

    assert at.scheduler.is_idle
    assert (at.model.batches, at.model.stepped) == ([], [])


def test_a_row_that_ends_when_it_starts() -> None:
    at = desk()
    at.add("a", steps=0)
    at.turn()

    assert at.texts("a") == ["a"]
    assert at.model.stepped == []
    assert at.result("a").timing == Timing(encode_s=ENCODE_S)


# --- what is encoded together


def test_what_waits_is_one_batch() -> None:
    at = desk()
    at.add("a", "b", "c", "d", "e")
    at.finish()

    assert at.model.batches == [["a", "b", "c", "d", "e"]]


def test_no_more_rows_than_the_limit_are_in_flight() -> None:
    at = desk(rows=2)
    at.add("a", "b", steps=2)
    at.add("c", "d", "e", steps=3)
    at.finish()

    assert at.model.batches == [["a", "b"], ["c", "d"], ["e"]]
    assert max(len(rows) for rows in at.model.stepped) == 2


def test_no_place_is_given_to_two_while_a_batch_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may look for what to encode next at any time."""
    at = desk(rows=2)
    start = at.model.start

    def start_while_another_encodes(
        utterances: Sequence[Utterance], encoded: list[str]
    ) -> Sequence[FakeRow | AsrError]:
        assert not at.scheduler.encode()
        return start(utterances, encoded)

    monkeypatch.setattr(at.model, "start", start_while_another_encodes)
    at.add("a", "b", "c", "d", steps=2)
    at.finish()

    assert at.model.stepped == [["a", "b"]] * 2 + [["c", "d"]] * 2


def test_a_row_takes_the_place_of_one_that_ends_in_the_next_turn() -> None:
    at = desk(rows=2)
    at.add("a", steps=2)
    at.add("b", steps=5)
    at.add("c", "d", steps=1)
    at.finish()

    assert at.model.stepped == [["a", "b"], ["a", "b"], ["b", "c"], ["b", "d"], ["b"]]


def test_no_more_frames_than_the_limit_are_encoded_together() -> None:
    at = desk(frames=3 * window_frames(SHORT_FRAMES))
    at.add("a", "b", "c", "d", steps=9)
    at.turn(times=2)

    assert at.model.batches == [["a", "b", "c"], ["d"]]


def test_padding_counts() -> None:
    """Every row is as long as the longest: one long utterance makes short ones expensive."""
    medium, long = window_frames(MEDIUM_FRAMES), window_frames(LONG_FRAMES)
    assert SIMILAR * medium > long
    assert 3 * long > long + 2 * medium
    at = desk(frames=long + 2 * medium)
    at.add("long", frames=LONG_FRAMES)
    at.clock.now += PASSED_FOR_S
    at.add("a", "b", frames=MEDIUM_FRAMES)
    at.finish()

    assert at.model.batches == [["long", "a"], ["b"]]


def test_short_and_long_ones_are_not_padded_to_each_other() -> None:
    at = desk()
    for name in "aBcD":
        at.add(name, frames=LONG_FRAMES if name.isupper() else SHORT_FRAMES)
    at.finish()

    assert at.texts("aBcD") == ["a", "B", "c", "D"]
    assert at.model.batches == [["a", "c"], ["B", "D"]]


def test_one_is_taken_even_if_it_exceeds_the_limit_alone() -> None:
    at = desk(frames=10)
    at.add("a", "b")
    at.finish()

    assert at.model.batches == [["a"], ["b"]]


# --- the order


def test_short_ones_go_before_long_ones() -> None:
    """By a twentieth of the difference in length."""
    ahead = PRECEDENCE * (window_frames(LONG_FRAMES) - window_frames(SHORT_FRAMES)) / FRAMES_PER_SECOND
    at = desk(rows=1)
    at.add("first", steps=2)
    at.turn()
    at.add("long", frames=LONG_FRAMES)
    at.clock.now += ahead - 0.01
    at.add("passes")
    at.clock.now += 0.02
    at.add("does not")
    at.finish()

    assert at.model.batches == [["first"], ["passes"], ["long"], ["does not"]]


def test_of_equal_length_whoever_came_first_goes_first() -> None:
    at = desk(rows=1)
    for name in "abcd":
        at.add(name, frames=MEDIUM_FRAMES)
        at.clock.now += 1e-3
    at.finish()

    assert at.model.batches == [["a"], ["b"], ["c"], ["d"]]


@pytest.mark.parametrize("frames", [0, 100_000])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_long_one_is_passed_for_no_longer_than_a_while(rows: int, frames: int) -> None:
    """Short ones come one after another, more than the model can take, and are encoded together where they may be."""
    at = desk(rows=rows, frames=frames)
    at.add(*(f"earlier {number}" for number in range(rows)), steps=8)
    at.turn()
    at.add("long", frames=LONG_FRAMES)
    arrived = at.clock.now
    for number in range(40):
        at.add(f"{number}", steps=3)
        at.clock.now += 0.2
        at.turn()

    before = [name for batch in at.model.batches for name in batch]
    before = before[rows : before.index("long")]
    assert len(before) >= 3
    assert all(at.jobs[name].arrived <= arrived + PASSED_FOR_S for name in before)
    assert at.jobs["long"].future.done()
    assert at.scheduler.waiting > 0


def test_what_came_much_later_takes_no_place_of_a_long_one() -> None:
    """It would be similar to what is most urgent, but there are only two places."""
    at = desk(rows=2)
    at.add("x", "y", steps=4)
    at.turn()
    at.add("long", frames=LONG_FRAMES)
    at.add("urgent")
    at.clock.now += PASSED_FOR_S + 0.1
    at.add("later")
    at.finish()

    assert at.model.batches == [["x", "y"], ["urgent"], ["long"], ["later"]]


# --- waiting for others


def test_what_waits_is_held_back_for_others_while_rows_are_in_flight() -> None:
    at = desk(wait_s=1.0)
    at.add("a", steps=20)
    at.turn()
    assert at.model.batches == [["a"]]  # nothing was in flight

    at.add("b", steps=20)
    at.turn(times=3)
    at.add("c", steps=20)
    at.turn(times=5)
    assert at.model.batches == [["a"]]
    assert at.clock.now == ENCODE_S + 9 * STEP_S

    at.turn()  # b has waited for 1 s
    assert at.model.batches == [["a"], ["b", "c"]]


def test_nothing_is_held_back_once_nothing_is_in_flight() -> None:
    at = desk(wait_s=100.0)
    at.add("a", steps=2)
    at.turn()
    at.add("b")
    at.turn(times=2)

    assert at.model.batches == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("rows", "frames"),
    [
        pytest.param(3, 100_000, id="as many rows as there is room for"),
        pytest.param(16, 3 * window_frames(SHORT_FRAMES) - 1, id="as many frames as are encoded together"),
        pytest.param(16, 0, id="each is encoded by itself"),
    ],
)
def test_what_cannot_grow_is_not_held_back(rows: int, frames: int) -> None:
    at = desk(rows=rows, frames=frames, wait_s=100.0)
    at.add("a", steps=9)
    at.turn()
    at.add("b", "c", steps=9)
    at.turn()

    assert at.model.batches[1] == (["b", "c"] if frames else ["b"])


def test_an_attempt_waits_for_others_from_its_own_beginning() -> None:
    at = desk(wait_s=1.0)
    at.model.outcome = lambda utterance: recognition("", avg_logprob=-0.1 if utterance.full_window else -3.0)
    at.add("keeps it busy", frames=LONG_FRAMES, steps=40)
    at.add("again", steps=9)
    at.turn(times=10)
    assert at.model.attempts_at("again") == [(False, 0.0)]

    at.turn(times=7)
    assert at.model.attempts_at("again") == [(False, 0.0)]
    at.turn()
    assert at.model.attempts_at("again") == [(False, 0.0), (True, 0.0)]
