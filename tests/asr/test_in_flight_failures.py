"""What fails among rows in flight fails alone, and what was no number leaves with its row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from asr.errors import OutOfMemoryError, RecognitionError
from asr.in_flight import InFlightDecoder
from asr.lane import Lane
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions
from tests.asr.flight import LONG, Flight, Fly, Fragile, lasting
from tests.asr.scripted_decoder import DIMS, ScriptedSession, Words


def test_a_prompt_that_the_graph_fails_on(tokenizer: Tokenizer, say: Words) -> None:
    flight = Flight(tokenizer, Fragile(DIMS.n_vocab, *lasting(say, 3, 3, 3), fails=lambda rows: 1 in rows))
    flight.join(0)
    with pytest.raises(RecognitionError, match="no kernel"):
        flight.join(1, 2, options=DecodingOptions(prompt="Hear, hear!"))
    assert flight.decoder.rows == 1

    flight.finish()
    assert flight.heard(0).tokens == (1000, 1001, 1002)


def test_a_step_that_fails_as_a_whole_is_run_row_by_row(tokenizer: Tokenizer, say: Words) -> None:
    session = Fragile(DIMS.n_vocab, *lasting(say, 2, 5, 3), fails=lambda rows: False)
    flight = Flight(tokenizer, session)
    flight.join(0, 1, 2)
    flight.listen()
    session.fails = lambda rows: len(rows) > 1
    flight.take_batches()
    flight.finish()

    assert flight.take_batches() == [[0], [1], [2]] * 3 + [[2], [1]] + [[1]] * 2
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
    """Where they follow the prefix, or later; what it left behind harms nobody."""
    good, (_, late) = lasting(say, 6), lasting(say, 1, 3)
    scripts = [*good, {**say.heard, say.begin: {say.a: math.nan}}, {**late, 1101: {say.a: math.nan}}, *good]
    options = DecodingOptions(temperature=temperature)
    flight = fly(*scripts)
    flight.join(0, 1, 2, options=options)
    flight.listen()
    assert [flight.step() for _ in range(4)] == [[1], [], [2], []]
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
    flight.listen()
    assert [flight.step() for _ in range(3)] == [[1], [], [2]]
    flight.join(3)
    flight.finish()

    assert flight.heard(0).tokens == flight.heard(3).tokens == tuple(range(1000, 1006))


def test_a_lane_that_fails_fails_alone(tokenizer: Tokenizer, say: Words) -> None:
    session = Fragile(DIMS.n_vocab, *lasting(say, 3, 3), fails=lambda rows: False)
    flight = Flight(tokenizer, session)
    flight.join(0)
    flight.join(1, positions=LONG)
    session.fails = lambda rows: 1 in rows
    assert flight.step() == [1]

    flight.finish()
    assert flight.heard(0).complete


def test_a_device_without_room_for_the_lanes_says_so(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Lane, "reserve", refuse)
    with pytest.raises(OutOfMemoryError, match="no room for 99 rows in flight: CUDA out of memory"):
        InFlightDecoder(ScriptedSession(DIMS.n_vocab), tokenizer, DIMS).reserve(99)
