"""Thousands of requests in a row: does memory grow, do texts change, do requests fail, and what if clients leave?

python -m benchmarks.soak --model tiny.en --requests 3000 --disconnect 0.1
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.load.bounds import Bound, bound_table
from benchmarks.load.client import Client
from benchmarks.load.command import clips_of, command_parser, write_report
from benchmarks.load.loops import Answer, Window, closed_loop
from benchmarks.load.measurement import first_texts
from benchmarks.load.processes import ProcessMemory, memory_of
from benchmarks.load.results import REFERENCE, Setup
from benchmarks.load.service import Service, ServiceError, running_service
from benchmarks.load.tables import number, table
from benchmarks.load.workload import SEED, shuffled
from benchmarks.speech_set import Clip

SETTLING = 300
"""Requests before memory is first read, none of which leaves."""
CALM_S = 12.0
"""What is given to the service before its memory is read: by the second check of its health it rests, and gives back
what it needed under load only."""
GROWTH = 1.02
NOISE_BYTES = 4 << 20
"""By which a process may grow whatever its size: 2 % of a small one are a few pages."""
ROWS_IN_FLIGHT = "ray_rayscribe_rows_in_flight"
EXPORT_S = 30.0
"""What Ray takes at most to export that all rows have left."""
LATENCY = 1.1
"""How many times its median latency before may be that of those that stay, while others leave."""


@dataclass(frozen=True)
class Soak:
    """settled, soaked: answers to the first requests and to all the others; before, after: memory after each of them,
    when nothing was under way; rows_left: utterances whose keys and values the model holds at the end."""

    settled: Sequence[Answer]
    soaked: Sequence[Answer]
    before: Sequence[ProcessMemory]
    after: Sequence[ProcessMemory]
    rows_left: float

    @property
    def answers(self) -> list[Answer]:
        return [*self.settled, *self.soaked]

    @property
    def pairs(self) -> list[tuple[ProcessMemory, ProcessMemory | None]]:
        """Every process before with itself after, or with nothing if it has ended."""
        left = {process.pid: process for process in self.after}
        return [(process, left.get(process.pid)) for process in self.before]


def soak(service: Service, clips: Sequence[Clip], requests: int, concurrency: int, disconnect: float) -> Soak:
    """disconnect: the share of clients that leave after the first requests, each at a random moment before a typical
    answer."""
    order = shuffled(len(clips), -(-requests // len(clips)))[:requests]
    settled = service.closed_loop(clips, order[:SETTLING], concurrency).answers
    before = _memory_at_rest(service)
    typical_s = [answer.latency_s for answer in settled]
    random = np.random.default_rng(SEED)

    def load(client: Client) -> Awaitable[Window]:
        async def send(place: int, due_s: float) -> Answer:
            if random.random() >= disconnect:
                return await client.send(place, due_s)
            return await client.send_and_leave(place, due_s, random.random() * random.choice(typical_s))

        return closed_loop(send, order[SETTLING:], concurrency)

    soaked = service.run(clips, load).answers
    return Soak(settled, soaked, before, _memory_at_rest(service), _rows_left(service))


def _memory_at_rest(service: Service) -> list[ProcessMemory]:
    time.sleep(CALM_S)
    return memory_of(service.pid)


def _rows_left(service: Service) -> float:
    deadline = time.monotonic() + EXPORT_S
    while (rows := service.metric(ROWS_IN_FLIGHT)) > 0 and time.monotonic() < deadline:
        time.sleep(1)
    return rows


def bounds(found: Soak) -> Iterator[Bound]:
    """What a service that can run for months keeps to."""
    yield Bound("failed requests", sum(answer.failure is not None for answer in found.answers), 0)
    yield Bound("answers with another text than the first for their clip", first_texts(found.answers)[1], 0)
    yield Bound("rows that the model still holds", found.rows_left, 0)
    yield Bound("processes that have ended", sum(after is None for _, after in found.pairs), 0)
    kept = [(before, after) for before, after in found.pairs if after is not None]
    yield Bound(
        "memory of all processes, times", sum(after.uss for _, after in kept) / sum(one.uss for one, _ in kept), GROWTH
    )
    for before, after in kept:
        if after.uss - before.uss > NOISE_BYTES:
            yield Bound(f"memory of {after.name}, times", after.uss / before.uss, GROWTH)
    if any(not answer.patient for answer in found.soaked):
        times = _median_s(found.soaked) / _median_s(found.settled)
        yield Bound("median latency of clients that stay, times that before any left", times, LATENCY)


def _median_s(answers: Sequence[Answer]) -> float:
    return float(np.median([answer.latency_s for answer in answers if answer.patient and answer.text is not None]))


def report(found: Soak) -> str:
    left = sum(answer.text is None and answer.failure is None for answer in found.answers)
    failures = dict.fromkeys(answer.failure for answer in found.answers if answer.failure is not None)
    wall_s = found.soaked[-1].done_s - found.soaked[0].due_s
    parts = [
        f"{len(found.answers)} requests, {len(found.soaked) / wall_s:.2f} a second; {left} clients left.",
        bound_table(list(bounds(found))),
        f"Memory after {len(found.settled)} requests and at the end, MB; USS: of pages that no other process has.",
        table(
            ["process", "USS", "at the end", "growth", "RSS", "at the end", "growth"],
            ([before.name, *_growth(before, after)] for before, after in found.pairs),
        ),
        "Latencies in ms, of clients that stay.",
        table(["", "p50", "p95", "p99"], [_latencies("before", found.settled), _latencies("then", found.soaked)]),
        *failures,
    ]
    return "\n\n".join(parts) + "\n"


def _growth(before: ProcessMemory, after: ProcessMemory | None) -> Iterator[str]:
    for kind in ("uss", "rss"):
        first, last = getattr(before, kind), getattr(after, kind, None)
        yield number(first / 1e6, 1)
        yield "ended" if last is None else number(last / 1e6, 1)
        yield "" if last is None else f"{100 * (last / first - 1):+.1f} %"


def _latencies(title: str, answers: Sequence[Answer]) -> list[str]:
    stayed = [1000 * answer.latency_s for answer in answers if answer.patient and answer.text is not None]
    return [title, *(number(float(np.percentile(stayed, percentile))) for percentile in (50, 95, 99))]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser("soak", __doc__, model="tiny.en")
    parser.add_argument("--requests", type=int, default=3000, help=f"more than {SETTLING}")
    parser.add_argument("--concurrency", type=int, default=REFERENCE, help="requests at a time")
    parser.add_argument("--disconnect", type=float, default=0.0, help="share of the clients that leave")
    options = parser.parse_intermixed_args(arguments)
    if options.requests <= SETTLING:
        parser.error(f"--requests has to be more than {SETTLING}")
    clips = clips_of(parser, options)
    try:
        with running_service(options.model, options.settings) as service:
            found = soak(service, clips, options.requests, options.concurrency, options.disconnect)
    except ServiceError as error:
        parser.exit(1, f"{error}\n")
    text = f"{Setup.here(options.model, options.settings, clips)}\n\n{report(found)}"
    print(text)
    write_report(options.output / "soak", text, asdict(found))
    return int(not all(bound.holds for bound in bounds(found)))


if __name__ == "__main__":
    sys.exit(main())
