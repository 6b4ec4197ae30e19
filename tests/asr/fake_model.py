"""A model that hears the prompt of each utterance, in so many steps, by a clock of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from asr.errors import AsrError
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance

ENCODE_S, STEP_S = 0.5, 0.125
"""Sums of them are exact."""
PATIENCE_S = 10
"""How long a test waits for what is certain to come."""
LONG_FRAMES, MEDIUM_FRAMES, SHORT_FRAMES = 3000, 2000, 100

Outcome: TypeAlias = Callable[[Utterance], "Recognition | AsrError"]


def utterance(name: str, frames: int = SHORT_FRAMES) -> Utterance:
    return Utterance(np.zeros((2, frames), np.float32), DecodingOptions(language="en", prompt=name))


def recognition(
    text: str, *, avg_logprob: float = -0.1, compression_ratio: float = 1.0, temperature: float = 0.0
) -> Recognition:
    return Recognition(text, (1,), "en", avg_logprob, 0.0, compression_ratio, temperature, complete=True)


def its_name(utterance: Utterance) -> Recognition:
    return recognition(utterance.options.prompt)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(eq=False)
class FakeRow:
    utterance: Utterance
    ends_after: int
    steps: int = 0
    beside: int = 0

    @property
    def name(self) -> str:
        return self.utterance.options.prompt

    @property
    def ended(self) -> bool:
        return self.steps >= self.ends_after


class FakeModel:
    """ends_after: steps of the utterances of these names, one of all others; unfit: those that never start.

    started: the utterances of each batch; stepped: the names of the rows of each step.
    """

    encoders = 1

    def __init__(self, clock: Clock | None = None, outcome: Outcome = its_name) -> None:
        self.clock = clock or Clock()
        self.outcome = outcome
        self.ends_after: dict[str, int] = {}
        self.unfit: dict[str, AsrError] = {}
        self.started: list[list[Utterance]] = []
        self.stepped: list[list[str]] = []
        self.rows: list[FakeRow] = []

    @property
    def rows_in_flight(self) -> int:
        return len(self.rows)

    @property
    def batches(self) -> list[list[str]]:
        return [[utterance.options.prompt for utterance in batch] for batch in self.started]

    def attempts_at(self, name: str) -> list[tuple[bool, float]]:
        """Whether in a full window, and at which temperature."""
        utterances = [utterance for batch in self.started for utterance in batch if utterance.options.prompt == name]
        return [(utterance.full_window, utterance.options.temperature) for utterance in utterances]

    def encode(self, utterances: Sequence[Utterance]) -> list[str]:
        self.clock.now += ENCODE_S
        return [utterance.options.prompt for utterance in utterances]

    def start(self, utterances: Sequence[Utterance], encoded: list[str] | None) -> Sequence[FakeRow | AsrError]:
        assert encoded is None or encoded == [utterance.options.prompt for utterance in utterances]
        self.started.append(list(utterances))
        rows = [self._row(utterance) for utterance in utterances]
        self.rows += [row for row in rows if isinstance(row, FakeRow) and not row.ended]
        return rows

    def step(self) -> Sequence[FakeRow]:
        self.stepped.append([row.name for row in self.rows])
        self.clock.now += STEP_S
        for row in self.rows:
            row.steps += 1
            row.beside += len(self.rows)
        ended = [row for row in self.rows if row.ended]
        self.rows = [row for row in self.rows if not row.ended]
        return ended

    def drop(self, row: FakeRow) -> None:
        self.rows.remove(row)

    def result(self, row: FakeRow) -> Recognition | AsrError:
        assert row.ended
        return self.outcome(row.utterance)

    def _row(self, utterance: Utterance) -> FakeRow | AsrError:
        name = utterance.options.prompt
        return self.unfit.get(name) or FakeRow(utterance, self.ends_after.get(name, 1))


class BusyModel(FakeModel):
    """Is busy encoding until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_busy = threading.Event()
        self.may_go_on = threading.Event()
        self.has_stepped = threading.Event()

    def encode(self, utterances: Sequence[Utterance]) -> list[str]:
        self.is_busy.set()
        assert self.may_go_on.wait(PATIENCE_S)
        return super().encode(utterances)

    def step(self) -> Sequence[FakeRow]:
        self.has_stepped.set()
        return super().step()
