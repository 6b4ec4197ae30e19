"""Rows in flight that say what a script has them say."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from asr.decoding import Row
from asr.errors import OutOfMemoryError
from asr.in_flight import LANES, InFlightDecoder
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions, Recognition
from tests.asr.decoded_rows import assert_nothing_left, recognition_of
from tests.asr.scripted_decoder import DIMS, PREFIX, Script, ScriptedSession, Words, encoded, rows_of

LONG = LANES[0] + 4
"""Positions of rows that are in a lane of their own."""


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

    def listen(self) -> None:
        """Have the rows that joined last read what they do not answer to."""
        for _ in range(PREFIX - 1):
            assert self.step() == []

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


class Fragile(ScriptedSession):
    """Fails on some batches."""

    def __init__(self, n_vocab: int, *scripts: Script, fails: Callable[[list[int]], bool]) -> None:
        super().__init__(n_vocab, *scripts)
        self.fails = fails

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self.fails(rows_of(inputs)):
            raise OutOfMemoryError(f"no kernel for {len(inputs['tokens'])} rows")
        return super().run(inputs)


def lasting(say: Words, *steps: int) -> list[Script]:
    """Rows that end after so many steps, each with words of its own."""
    return [say.all_of(range(1000 + 100 * row, 1000 + 100 * row + count), 0.9) for row, count in enumerate(steps)]
