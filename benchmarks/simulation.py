"""The scheduler driven by a model of a GPU's times, to choose its budgets without one: `make simulation`.

The scheduler is the real one; what it drives only counts. An encoder run and a decoder step take the time of the
roofline (`asr.roofline`) at an efficiency that is assumed, and the launch on top. Utterances of random lengths arrive
at random, so many a second, for ten minutes of simulated time.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from asr.devices import GPUS, Device
from asr.features import FRAMES_PER_SECOND
from asr.in_flight import lane_bounds
from asr.model import Dims
from asr.roofline import (
    MODELS,
    PRECISIONS,
    PREFIX_TOKENS,
    NumberFormats,
    Stage,
    decoder_flops,
    decoder_step_bytes,
    encoder_bytes,
    encoder_flops,
)
from asr.scheduler import BatchLimits, Job, Scheduler
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance

TOKENS_PER_S = 3.5
"""Of English speech, as Whisper spells it."""
LONG_S, SHORT_S = 30.0, 2.0
MEAN_SHORT_S, SIGMA = 5.0, 0.6
"""Utterances are log-normal in length, 1 to 16 s."""

HOPELESS = 500
"""Requests that wait where the machine falls behind."""


@dataclass(frozen=True)
class Machine:
    """efficiency: share of the roofline that kernels reach; launch_s: of an encoder run or a step (as a CUDA graph);
    lanes: encoder positions that bound each, by default the decoder's."""

    dims: Dims
    device: Device
    formats: NumberFormats
    efficiency: float = 0.5
    launch_s: float = 0.0005
    lanes: tuple[int, ...] | None = None

    @property
    def lane_bounds(self) -> tuple[int, ...]:
        return self.lanes or lane_bounds(self.dims)

    def encode_s(self, rows: int, positions: int) -> float:
        flops = encoder_flops(self.dims, positions).times(rows)
        moved = encoder_bytes(self.dims, self.formats, batch=rows, positions=positions)
        return self._seconds(Stage.on(self.device, self.formats, flops, moved))

    def step_s(self, rows: int, positions: int, length: float) -> float:
        flops = decoder_flops(self.dims, positions=positions, length=length).times(rows)
        moved = decoder_step_bytes(self.dims, self.formats, batch=rows, positions=positions, length=length)
        return self._seconds(Stage.on(self.device, self.formats, flops, moved))

    def _seconds(self, stage: Stage) -> float:
        return stage.seconds / self.efficiency + self.launch_s


@dataclass
class Clock:
    """Simulated time, s."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


@dataclass(eq=False)
class SimulatedRow:
    positions: int
    tokens: int
    steps: int = 0
    beside: int = 0

    @property
    def ended(self) -> bool:
        return self.steps >= self.tokens


class SimulatedModel:
    """What `asr.engine.Engine` is to the scheduler, in times alone."""

    encoders = 1

    def __init__(self, machine: Machine, clock: Clock) -> None:
        self._machine = machine
        self._clock = clock
        self._lanes: list[list[SimulatedRow]] = [[] for _ in machine.lane_bounds]
        self.encoded: list[int] = []
        self.stepped: list[int] = []

    @property
    def rows_in_flight(self) -> int:
        return sum(map(len, self._lanes))

    def encode(self, utterances: Sequence[Utterance]) -> int:
        """→ positions of every row."""
        positions = max(utterance.window.positions for utterance in utterances)
        self._clock.work(self._machine.encode_s(len(utterances), positions))
        self.encoded.append(len(utterances))
        return positions

    def start(self, utterances: Sequence[Utterance], encoded: int) -> list[SimulatedRow]:
        positions = encoded
        rows = [
            SimulatedRow(positions, PREFIX_TOKENS + max(1, round(TOKENS_PER_S * one.duration_s))) for one in utterances
        ]
        self._lanes[sum(positions > bound for bound in self._machine.lane_bounds)] += rows
        return rows

    def step(self) -> list[SimulatedRow]:
        self.stepped.append(self.rows_in_flight)
        ended = []
        for lane in self._lanes:
            if not lane:
                continue
            longest = max(row.steps for row in lane) + 1
            self._clock.work(self._machine.step_s(len(lane), max(row.positions for row in lane), longest))
            for row in lane:
                row.steps += 1
                row.beside += len(lane)
            ended += [row for row in lane if row.ended]
            lane[:] = [row for row in lane if not row.ended]
        return ended

    def drop(self, row: SimulatedRow) -> None:
        for lane in self._lanes:
            if row in lane:
                lane.remove(row)

    def result(self, row: SimulatedRow) -> Recognition:
        return Recognition("", (0,) * row.tokens, "en", -0.1, 0.0, 1.0, 0.0, complete=True)


@dataclass(frozen=True)
class Load:
    """rate: requests a second; seconds: of simulated arrivals; long_share: of requests that are 30 s long."""

    rate: float = 100.0
    seconds: float = 600.0
    long_share: float = 0.05
    seed: int = 0

    def arrivals(self) -> Iterator[tuple[float, float]]:
        """→ (time, audio seconds) of each request."""
        generator = np.random.default_rng(self.seed)
        time = generator.exponential(1 / self.rate)
        while time < self.seconds:
            short = float(np.clip(generator.lognormal(np.log(MEAN_SHORT_S), SIGMA), 1.0, 16.0))
            yield float(time), LONG_S if generator.random() < self.long_share else short
            time += generator.exponential(1 / self.rate)


@dataclass
class Outcome:
    """rows: in flight at every step; encoded: rows of every encoder run; latencies: seconds of every request, in the
    order of arrival; short_latencies: of those of up to SHORT_S."""

    rows: Sequence[int]
    encoded: Sequence[int]
    latencies: Sequence[float]
    short_latencies: Sequence[float]


@lru_cache(maxsize=4096)
def _utterance(frames: int) -> Utterance:
    return Utterance(np.zeros((1, frames), np.float32), DecodingOptions(language="en"))


def simulate(machine: Machine, limits: BatchLimits, load: Load) -> Outcome | None:
    """Every request of the load through the scheduler; None: it falls behind."""
    clock = Clock()
    model = SimulatedModel(machine, clock)
    scheduler = Scheduler(model, limits, clock)
    done: dict[int, float] = {}
    lengths: list[float] = []

    def answered(place: int, arrived: float, _: object) -> None:
        done[place] = clock.now - arrived

    arrivals = load.arrivals()
    following = next(arrivals, None)
    while following is not None or not scheduler.is_idle:
        if scheduler.is_idle and following is not None:
            clock.now = max(clock.now, following[0])
        while following is not None and following[0] <= clock.now:
            arrived, audio_s = following
            job = Job(_utterance(round(audio_s * FRAMES_PER_SECOND)))
            place = len(lengths)
            lengths.append(audio_s)
            job.future.add_done_callback(partial(answered, place, arrived))
            scheduler.add(job)
            following = next(arrivals, None)
        if scheduler.waiting > HOPELESS:
            return None
        before = clock.now
        scheduler.turn()
        if clock.now == before:  # everything that waits is held back
            clock.now = min(before + max(limits.wait_s, 1e-3), following[0] if following else float("inf"))
    latencies = [done[place] for place in range(len(lengths))]
    short = [latency for latency, audio_s in zip(latencies, lengths, strict=True) if audio_s <= SHORT_S]
    return Outcome(model.stepped, model.encoded, latencies, short)


HEADER = (
    "| rows | frames together | wait ms | rows in flight | rows encoded together | p50 ms | p95 ms | p99 ms "
    f"| p95 ms of ≤ {SHORT_S:g} s |\n|" + "---:|" * 9
)


def table_row(limits: BatchLimits, outcome: Outcome | None) -> str:
    budgets = [f"{limits.rows}", f"{limits.frames or 'one'}", f"{1000 * limits.wait_s:.0f}"]
    if outcome is None:
        return f"| {' | '.join([*budgets, 'falls behind', *[''] * 5])} |"
    centiles = statistics.quantiles(outcome.latencies, n=100)
    short = statistics.quantiles(outcome.short_latencies, n=20)
    cells = [
        *budgets,
        f"{statistics.fmean(outcome.rows):.1f}",
        f"{statistics.fmean(outcome.encoded):.1f}",
        *(f"{1000 * centiles[centile - 1]:.0f}" for centile in (50, 95, 99)),
        f"{1000 * short[18]:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


BASE = BatchLimits(rows=32, frames=24_000)
VARIANTS = [
    *(replace(BASE, rows=rows) for rows in (4, 8, 16, 64)),
    BASE,
    *(replace(BASE, frames=frames) for frames in (0, 3_000, 6_000, 12_000)),
    *(replace(BASE, wait_s=wait_ms / 1000) for wait_ms in (5, 20, 50)),
]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulation", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--gpu", choices=GPUS, default="t4")
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp16")
    parser.add_argument("--efficiency", type=float, default=0.5, help="share of the roofline that kernels reach")
    parser.add_argument("--lanes", type=int, nargs="+", help="encoder positions that bound each lane")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=600.0, help="of simulated arrivals")
    options = parser.parse_args(arguments)
    machine = Machine(MODELS[options.model], GPUS[options.gpu], PRECISIONS[options.precision], options.efficiency)
    if options.lanes:
        machine = replace(machine, lanes=(*options.lanes, machine.dims.n_audio_ctx))
    load = Load(options.rate, options.seconds)
    print(
        f"Whisper {options.model} {options.precision} on {machine.device.title} at {100 * options.efficiency:.0f} % of "
        f"its roofline, {options.rate:g} requests a second for {options.seconds:g} s (simulated).\n\n{HEADER}"
    )
    for limits in VARIANTS:
        print(table_row(limits, simulate(machine, limits, load)), flush=True)


if __name__ == "__main__":
    main()
