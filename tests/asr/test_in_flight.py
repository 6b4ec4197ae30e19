"""Rows join and leave at any step, and have the results that they have alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from asr.decoding import Row
from asr.in_flight import LANES, InFlightDecoder
from asr.lane import Lane
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions
from tests.asr.decoded_rows import assert_nothing_left, decoded, recognition_of
from tests.asr.flight import LONG, Fly, lasting
from tests.asr.scripted_decoder import DIMS, PREFIX, ScriptedSession, Words, encoded

# --- joining


def test_rows_that_join_in_the_middle_have_the_results_that_they_have_alone(
    tokenizer: Tokenizer, say: Words, fly: Fly
) -> None:
    """Also those that sample, and with prompts that make the others' cache grow."""
    spread = {say.a: 0.35, say.b: 0.3, say.c: 0.3, say.end: 0.05}
    drawn = {**say.heard, **dict.fromkeys((say.begin, say.a, say.b, say.c), spread)}
    scripts = [*lasting(say, 20, 3), drawn, *lasting(say, 90)[:1], drawn]
    options = [
        DecodingOptions(),
        DecodingOptions(),
        DecodingOptions(temperature=1.0),
        DecodingOptions(prompt="Hear, hear! " * 30),
        DecodingOptions(temperature=0.7),
    ]
    together = fly(*scripts)
    for number, option in enumerate(options):
        together.join(number, positions=4 + 2 * number, options=option)
        for _ in range(4):
            together.step()
    together.finish()

    for number, option in enumerate(options):
        alone = fly(*scripts)
        alone.join(number, options=option)
        alone.finish()
        assert together.heard(number) == alone.heard(number)
        assert together.session.read[number] == alone.session.read[number]
    assert len(set(together.heard(2).tokens)) > 1


def test_rows_of_a_step(say: Words, fly: Fly) -> None:
    """Whoever joined is in the next step. A prompt is read without the others."""
    flight = fly(*lasting(say, 9, 9, 9, 9))
    flight.join(0)
    flight.step()
    flight.join(2, 1)
    flight.step()
    flight.join(3, options=DecodingOptions(prompt="Hear, hear!"))
    flight.step()

    assert flight.take_batches() == [[0], [0, 2, 1], [3], [0, 2, 1, 3]]
    assert flight.decoder.rows == 4


def test_steps_and_company_are_counted(say: Words, fly: Fly) -> None:
    """A row's first token comes with the last of its prefix, its end with the step after its last."""
    flight = fly(*lasting(say, 5, 2))
    flight.join(0)
    flight.step()
    flight.join(1)
    flight.finish()

    [first, second] = flight.rows.values()
    assert (first.steps, second.steps) == (PREFIX + 5, PREFIX + 2)
    assert second.beside == 2 * second.steps
    assert first.beside == 1 + second.beside + (first.steps - 1 - second.steps)


def test_a_row_whose_first_token_is_its_last(tokenizer: Tokenizer, say: Words) -> None:
    """Its prompt leaves room for one."""
    dims = dataclasses.replace(DIMS, n_text_ctx=10)
    session = ScriptedSession(DIMS.n_vocab, {**say.heard, say.begin: {say.a: 1.0}})
    decoder = InFlightDecoder(session, tokenizer, dims)
    prompted = DecodingOptions(prompt="It was the best of times")
    [row] = decoder.join(encoded(0), [prompted], ["en"], [9.0])
    assert [decoder.step() for _ in range(PREFIX)] == [[], [], [], [row]]

    assert_nothing_left(decoder)
    assert recognition_of(decoder, row).tokens == (say.a,)


# --- leaving


def test_a_row_that_ends_leaves_at_once(say: Words, fly: Fly) -> None:
    """The last takes its place, and the next to join comes after it."""
    flight = fly(*lasting(say, 2, 6, 1, 4, 1))
    flight.join(0, 1, 2, 3)
    flight.listen()
    assert [flight.step() for _ in range(3)] == [[], [2], [0]]
    flight.join(4)
    assert [flight.step() for _ in range(5)] == [[], [3], [], [1], [4]]

    everyone = [0, 1, 2, 3]
    assert flight.take_batches() == [everyone] * (PREFIX + 1) + [[0, 1, 3]] + [[3, 1, 4]] * 2 + [[4, 1]] * 2 + [[4]]
    assert_nothing_left(flight.decoder)
    for number, count in enumerate((2, 6, 1, 4, 1)):
        assert flight.heard(number).tokens == tuple(range(1000 + 100 * number, 1000 + 100 * number + count))


def test_rows_are_dropped(say: Words, fly: Fly) -> None:
    flight = fly(*lasting(say, 9, 3, 9))
    flight.join(0, 1, 2)
    flight.step()
    flight.decoder.drop(flight.rows[0])
    flight.take_batches()
    flight.step()
    assert flight.take_batches() == [[2, 1]]
    assert not flight.rows[0].ended

    flight.decoder.drop(flight.rows[2])
    flight.finish()
    assert flight.heard(1).tokens == (1100, 1101, 1102)


def test_a_row_that_has_left_is_dropped_in_vain(say: Words, fly: Fly) -> None:
    flight = fly(*lasting(say, 1, 4))
    flight.join(0, 1)
    flight.listen()
    assert [flight.step() for _ in range(2)] == [[], [0]]
    flight.decoder.drop(flight.rows[0])
    flight.decoder.drop(flight.rows[0])
    assert flight.decoder.rows == 1

    flight.finish()
    assert flight.heard(1).complete


# --- lanes


def test_short_and_long_rows_step_in_lanes_of_their_own(say: Words, fly: Fly) -> None:
    flight = fly(*lasting(say, 2, 3, 3, 2))
    flight.join(0, 1)
    flight.join(2, positions=LONG)
    flight.join(3)
    flight.listen()
    flight.take_batches()
    assert [flight.step() for _ in range(4)] == [[], [], [0, 3], [1, 2]]

    assert flight.take_batches() == [[0, 1, 3], [2]] * 3 + [[1], [2]]
    assert flight.rows[2].beside == flight.rows[2].steps == PREFIX + 3
    assert_nothing_left(flight.decoder)
    assert [len(flight.heard(number).tokens) for number in range(4)] == [2, 3, 3, 2]


def test_a_lane_takes_what_is_as_long_as_its_bound(say: Words, fly: Fly) -> None:
    flight = fly(*lasting(say, 3, 3, 3))
    flight.join(0, positions=4)
    flight.join(1, positions=LANES[0])
    flight.join(2, positions=DIMS.n_audio_ctx)
    flight.take_batches()
    flight.step()

    assert flight.take_batches() == [[0, 1], [2]]


def test_memory_is_reserved_in_every_lane(tokenizer: Tokenizer, say: Words) -> None:
    decoder = InFlightDecoder(ScriptedSession(DIMS.n_vocab, *lasting(say, 9) * 3), tokenizer, DIMS)
    decoder.reserve(3)
    reserved = [memories(lane) for lane in decoder._lanes]
    for positions in (4, LONG):
        batch = encoded(0, 1, 2, positions=positions)
        decoded(decoder, batch, [DecodingOptions(prompt="Hear, hear! " * 60)] * 3, ["en"] * 3, [9.0] * 3)

    assert [memories(lane) for lane in decoder._lanes] == reserved


def memories(lane: Lane[Row]) -> Sequence[int]:
    return [slots._memory.data_ptr() for slots in (*lane._cross.values(), lane._cache._slots)]
