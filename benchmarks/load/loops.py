"""Two ways to load a system: so many requests at a time, and requests that arrive whether it is ready or not.

Both know a system as a function from a place among the clips, and the time when the request is due, to an `Answer`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.load.server_timing import ServerTiming

NO_TIMING = ServerTiming()


@dataclass(frozen=True)
class Answer:
    """What became of a request.

    place: of its clip; due_s, done_s: when it was to be sent, and when its answer was complete; text: None where there
    is none; failure: why not, None where the client did not wait; patient: whether it waited however long.
    """

    place: int
    due_s: float
    done_s: float
    text: str | None
    failure: str | None = None
    timing: ServerTiming = NO_TIMING
    patient: bool = True

    @property
    def latency_s(self) -> float:
        return self.done_s - self.due_s


Send: TypeAlias = Callable[[int, float], Awaitable[Answer]]


@dataclass(frozen=True)
class Window:
    """counted: answers that ended between start_s and end_s; others: those before and after, while load built up and
    went."""

    counted: tuple[Answer, ...]
    start_s: float
    end_s: float
    others: tuple[Answer, ...] = ()

    @property
    def answers(self) -> list[Answer]:
        """All of them, in the order in which they came."""
        return sorted((*self.counted, *self.others), key=lambda answer: answer.done_s)


async def closed_loop(send: Send, order: Sequence[int], concurrency: int) -> Window:
    """As many requests under way as `concurrency`, each followed by the next.

    As many answers are counted as there are places in the order. The first `concurrency` are not, and the order begins
    anew until the last that counts is there: neither the beginning nor the end makes rates or latencies look better.
    """
    places = itertools.cycle(order)
    answers: list[Answer] = []
    last = concurrency + len(order)

    async def client() -> None:
        while len(answers) < last:
            answers.append(await send(next(places), time.monotonic()))

    await asyncio.gather(*(client() for _ in range(concurrency)))
    counted = tuple(answers[concurrency:last])
    others = (*answers[:concurrency], *answers[last:])
    return Window(counted, answers[concurrency - 1].done_s, counted[-1].done_s, others)


async def open_loop(send: Send, order: Sequence[int], arrivals_s: Sequence[float]) -> Window:
    """A request for each arrival, in seconds from now, however many are under way.

    Latencies count from the arrival: a client that comes to send late does not hide what its request has waited.
    """
    start_s = time.monotonic()

    async def arrive(place: int, due_s: float) -> Answer:
        await asyncio.sleep(due_s - time.monotonic())
        return await send(place, due_s)

    requests = zip(itertools.cycle(order), arrivals_s)
    answers = await asyncio.gather(*(arrive(place, start_s + arrival_s) for place, arrival_s in requests))
    return Window(tuple(answers), start_s, max(answer.done_s for answer in answers))
