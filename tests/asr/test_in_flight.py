"""Rows join and leave at any step, and have the results that they have alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor

from asr.checkpoint.vocabulary import published_vocabulary
from asr.decoding import Row
from asr.errors import OutOfMemoryError, RecognitionError
from asr.in_flight import LANES, InFlightDecoder
from asr.lane import Lane
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions, Recognition
from tests.asr.decoded_rows import assert_nothing_left, decoded, recognition_of
from tests.asr.scripted_decoder import DIMS, Script, ScriptedSession, Words, encoded, rows_of

LONG = LANES[0] + 4
"""Positions of rows that are in a lane of their own."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    vocabulary = published_vocabulary(DIMS.n_vocab)
    assert vocabulary is not None
    return Tokenizer(vocabulary, DIMS.n_vocab)


@pytest.fixture(scope="module")
def say(tokenizer: Tokenizer) -> Words:
    return Words(tokenizer)


class Flight:
    """A decoder of these scripts, and the rows that have joined it by their numbers."""

    def __init__(self, tokenizer: Tokenizer, session: ScriptedSession) -> None:
        self.session = session
        self.decoder = InFlightDecoder(session, tokenizer, DIMS)
        self.rows: dict[int, Row] = {}

    def join(self, *numbers: int, positions: int = 4, options: DecodingOptions = DecodingOptions()) -> None:
        count = len(numbers)
        batch = encoded(*numbers, positions=positions)
        rows = self.decoder.join(batch, [options] * count, ["en"] * count, [9.0] * count)
        self.rows |= zip(numbers, rows, strict=True)

    def step(self) -> list[int]:
        """→ the numbers of the rows that have ended."""
        ended = self.decoder.step()
        return [next(number for number, row in self.rows.items() if row is end) for end in ended]

    def finish(self) -> None:
        while self.decoder.rows:
            self.decoder.step()
        assert_nothing_left(self.decoder)

    def heard(self, number: int) -> Recognition:
        return recognition_of(self.decoder, self.rows[number])

    def take_batches(self) -> list[list[int]]:
        """The numbers of the rows of each run of the graph since they were last taken."""
        taken, self.session.batches = self.session.batches, []
        return taken


Fly = Callable[..., Flight]


@pytest.fixture
def fly(tokenizer: Tokenizer) -> Fly:
    return lambda *scripts: Flight(tokenizer, ScriptedSession(DIMS.n_vocab, *scripts))


def lasting(say: Words, *steps: int) -> list[Script]:
    """Rows that end after so many steps, each with words of its own."""
    return [say.all_of(range(1000 + 100 * row, 1000 + 100 * row + count), 0.9) for row, count in enumerate(steps)]


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
    """Whoever joined is in the next step; a prefix is read without the others."""
    flight = fly(*lasting(say, 9, 9, 9, 9))
    flight.join(0)
    flight.step()
    flight.join(2, 1)
    flight.step()
    flight.join(3)
    flight.step()

    assert flight.take_batches() == [[0], [0], [2, 1], [0, 2, 1], [3], [0, 2, 1, 3]]
    assert flight.decoder.rows == 4


def test_steps_and_company_are_counted(say: Words, fly: Fly) -> None:
    """A row's first token comes with its prefix, its end with the step after its last."""
    flight = fly(*lasting(say, 5, 2))
    flight.join(0)
    flight.step()
    flight.join(1)
    flight.finish()

    assert [(row.steps, row.beside) for row in flight.rows.values()] == [(5, 1 + 2 + 2 + 1 + 1), (2, 4)]


def test_a_row_whose_first_token_is_its_last_never_flies(tokenizer: Tokenizer, say: Words) -> None:
    """Its prompt leaves room for one."""
    dims = dataclasses.replace(DIMS, n_text_ctx=10)
    session = ScriptedSession(DIMS.n_vocab, {**say.heard, say.begin: {say.a: 1.0}})
    decoder = InFlightDecoder(session, tokenizer, dims)
    prompted = DecodingOptions(prompt="It was the best of times")
    [row] = decoder.join(encoded(0), [prompted], ["en"], [9.0])

    assert (row.ended, row.steps) == (True, 0)
    assert_nothing_left(decoder)
    assert recognition_of(decoder, row).tokens == (say.a,)


def test_a_prefix_that_the_graph_fails_on(tokenizer: Tokenizer, say: Words) -> None:
    flight = Flight(tokenizer, Fragile(DIMS.n_vocab, *lasting(say, 3, 3, 3), fails=lambda rows: 1 in rows))
    flight.join(0)
    with pytest.raises(RecognitionError, match="no kernel"):
        flight.join(1, 2)
    assert flight.decoder.rows == 1

    flight.finish()
    assert flight.heard(0).tokens == (1000, 1001, 1002)


# --- leaving


def test_a_row_that_ends_leaves_at_once(say: Words, fly: Fly) -> None:
    """The last takes its place, and the next to join comes after it."""
    flight = fly(*lasting(say, 2, 6, 1, 4, 1))
    flight.join(0, 1, 2, 3)
    assert [flight.step() for _ in range(2)] == [[2], [0]]
    flight.join(4)
    assert [flight.step() for _ in range(4)] == [[4], [3], [], [1]]

    assert flight.take_batches() == [
        [0, 1, 2, 3],  # the prefixes
        [0, 1, 2, 3],
        [0, 1, 3],
        [4],
        [3, 1, 4],
        [3, 1],
        [1],
        [1],
    ]
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
    flight.step()
    flight.decoder.drop(flight.rows[0])
    flight.decoder.drop(flight.rows[0])
    assert flight.decoder.rows == 1

    flight.finish()
    assert flight.heard(1).complete


# --- failing


class Fragile(ScriptedSession):
    """Fails on some batches."""

    def __init__(self, n_vocab: int, *scripts: Script, fails: Callable[[list[int]], bool]) -> None:
        super().__init__(n_vocab, *scripts)
        self.fails = fails

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self.fails(rows_of(inputs)):
            raise OutOfMemoryError(f"no kernel for {len(inputs['tokens'])} rows")
        return super().run(inputs)


def test_a_step_that_fails_as_a_whole_is_run_row_by_row(tokenizer: Tokenizer, say: Words) -> None:
    session = Fragile(DIMS.n_vocab, *lasting(say, 2, 5, 3), fails=lambda rows: False)
    flight = Flight(tokenizer, session)
    flight.join(0, 1, 2)
    session.fails = lambda rows: len(rows) > 1
    flight.take_batches()
    flight.finish()

    assert flight.take_batches() == [[0], [1], [2]] * 2 + [[2], [1]] + [[1]] * 2
    assert [len(flight.heard(number).tokens) for number in range(3)] == [2, 5, 3]


def test_only_the_row_that_the_graph_fails_on_has_the_error(tokenizer: Tokenizer, say: Words) -> None:
    session = Fragile(DIMS.n_vocab, *lasting(say, 9, 9, 9), fails=lambda rows: False)
    flight = Flight(tokenizer, session)
    flight.join(0, 1, 2)
    flight.step()
    session.fails = lambda rows: 1 in rows
    assert flight.step() == [1]
    flight.take_batches()
    flight.step()
    assert flight.take_batches() == [[0, 2]]

    flight.finish()
    with pytest.raises(OutOfMemoryError, match="no kernel for 1 rows"):
        flight.heard(1)
    assert [len(flight.heard(number).tokens) for number in (0, 2)] == [9, 9]


def test_an_error_holds_nothing(tokenizer: Tokenizer, say: Words) -> None:
    """A traceback would hold the lane's tensors for as long as the caller has the error."""
    session = Fragile(DIMS.n_vocab, *lasting(say, 9), fails=lambda rows: False)
    flight = Flight(tokenizer, session)
    flight.join(0)
    session.fails = lambda rows: True
    flight.step()

    error = flight.rows[0].error
    assert error is not None
    assert (error.__traceback__, error.__context__) == (None, None)


@pytest.mark.parametrize("temperature", [0.0, 0.02])
def test_logits_that_are_not_numbers_fail_their_row(say: Words, fly: Fly, temperature: float) -> None:
    """At once where they follow the prefix, later where they follow a step; what it left behind harms nobody."""
    good, (_, late) = lasting(say, 6), lasting(say, 1, 3)
    scripts = [*good, {**say.heard, say.begin: {say.a: math.nan}}, {**late, 1101: {say.a: math.nan}}, *good]
    options = DecodingOptions(temperature=temperature)
    flight = fly(*scripts)
    flight.join(0, 1, 2, options=options)
    assert flight.rows[1].error is not None
    assert [flight.step() for _ in range(3)] == [[], [2], []]
    flight.join(3, options=options)
    flight.finish()

    alone = fly(*scripts)
    alone.join(0, options=options)
    alone.finish()
    assert flight.heard(0) == flight.heard(3) == alone.heard(0)
    for number in (1, 2):
        with pytest.raises(RecognitionError, match="not a number"):
            flight.heard(number)


class Spoilt(ScriptedSession):
    """Its keys and values are no numbers either, where its logits are not."""

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for name in ("cross_key_0", "cross_value_0", "self_key_0", "self_value_0", "cross_bias"):
            assert inputs[name].isfinite().all(), name
        outputs = super().run(inputs)
        for row in range(len(inputs["tokens"])):
            if outputs["logits"][row].isnan().any():
                outputs["new_kv"][:, :, row] = math.nan
        return outputs


@pytest.mark.parametrize("order", [(2, 1, 0), (0, 1, 2)])
def test_what_is_no_number_leaves_with_its_row(tokenizer: Tokenizer, say: Words, order: Sequence[int]) -> None:
    """No mask hides it from the row that comes to its place, be that the last or a new one."""
    good, (_, late) = lasting(say, 6), lasting(say, 1, 3)
    scripts = [*good, {**say.heard, say.begin: {say.a: math.nan}}, {**late, 1101: {say.a: math.nan}}, *good]
    flight = Flight(tokenizer, Spoilt(DIMS.n_vocab, *scripts))
    flight.join(*order)
    assert [flight.step() for _ in range(2)] == [[], [2]]
    flight.join(3)
    flight.finish()

    assert flight.heard(0).tokens == flight.heard(3).tokens == tuple(range(1000, 1006))


# --- lanes


def test_short_and_long_rows_step_in_lanes_of_their_own(say: Words, fly: Fly) -> None:
    flight = fly(*lasting(say, 2, 3, 3, 2))
    flight.join(0, 1)
    flight.join(2, positions=LONG)
    flight.join(3)
    flight.take_batches()
    assert [flight.step() for _ in range(3)] == [[], [0, 3], [1, 2]]

    assert flight.take_batches() == [[0, 1, 3], [2], [0, 1, 3], [2], [1], [2]]
    assert flight.rows[2].beside == flight.rows[2].steps == 3
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


def test_a_lane_that_fails_fails_alone(tokenizer: Tokenizer, say: Words) -> None:
    session = Fragile(DIMS.n_vocab, *lasting(say, 3, 3), fails=lambda rows: False)
    flight = Flight(tokenizer, session)
    flight.join(0)
    flight.join(1, positions=LONG)
    session.fails = lambda rows: 1 in rows
    assert flight.step() == [1]

    flight.finish()
    assert flight.heard(0).complete


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


def test_a_device_without_room_for_the_lanes_says_so(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Lane, "reserve", refuse)
    with pytest.raises(OutOfMemoryError, match="no room for 99 rows in flight: CUDA out of memory"):
        InFlightDecoder(ScriptedSession(DIMS.n_vocab), tokenizer, DIMS).reserve(99)
