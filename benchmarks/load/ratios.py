"""What the measurements say of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks.load.measurement import Measurement
from benchmarks.load.results import REFERENCE, Results
from benchmarks.peers import PEER_TITLES


@dataclass(frozen=True)
class Ratio:
    """value: a factor, or a difference in points, or the median of rounds; lowest, highest: of them."""

    title: str
    value: float
    in_points: bool = False
    lowest: float | None = None
    highest: float | None = None

    def __str__(self) -> str:
        if self.lowest is not None:
            return f"{self.value:.2f} ({self.lowest:.2f} to {self.highest:.2f})"
        return f"{self.value:+.2f} points" if self.in_points else f"{self.value:.2f}"


def ratios(results: Results) -> list[Ratio]:
    """Of what was measured, and where it was measured in turns, of these: a machine that drifts is another one ten
    minutes later. A peer that was given only some of the clips is compared by throughput alone.
    """
    found = {ratio.title: ratio for ratio in _of_speed(results)}
    in_turns: dict[str, list[float]] = {}
    for turns in results.rounds:
        for ratio in _of_speed(turns):
            in_turns.setdefault(ratio.title, []).append(ratio.value)
    for title, values in in_turns.items():
        found[title] = Ratio(title, median(values), lowest=min(values), highest=max(values))
    return [*found.values(), *_errors(results)]


def _of_speed(results: Results) -> Iterator[Ratio]:
    yield from _against_peers(results)
    yield from _within(results)


def _against_peers(results: Results) -> Iterator[Ratio]:
    alone, together = results.closed.get(1), results.closed.get(REFERENCE)
    peer = results.peers.get("faster-whisper")
    yield from _ratio("median latency, 1 at a time, over faster-whisper's", alone, peer, _median)
    for name, measured in results.peers.items():
        yield from _ratio(f"throughput, {REFERENCE} at a time, over {PEER_TITLES[name]}", together, measured, _rate)


def _within(results: Results) -> Iterator[Ratio]:
    together = results.closed.get(REFERENCE)
    engine, single = results.engine.get(results.limit), results.single.get(REFERENCE)
    what = f"throughput, {REFERENCE} at a time, over"
    yield from _ratio(f"{what} 1 at a time", together, results.closed.get(1), _rate)
    yield from _ratio(f"{what} {REFERENCE} at a time in batches of one", together, single, _rate)
    yield from _ratio(f"{what} the engine alone", together, engine, _rate)
    yield from _ratio(f"{what} the engine with preparation", together, results.preparing.get(results.limit), _rate)
    one = results.engine.get(1)
    yield from _ratio(f"throughput of the engine, batches of {results.limit} over batches of one", engine, one, _rate)


def _errors(results: Results) -> Iterator[Ratio]:
    ours = results.closed.get(REFERENCE) or next(iter(results.closed.values()), None)
    for name, measured in results.peers.items():
        if ours is not None and name not in results.partial:
            difference = 100 * (ours.score.rate - measured.score.rate)
            yield Ratio(f"WER less that of {PEER_TITLES[name]}", difference, in_points=True)


def _ratio(
    title: str, ours: Measurement | None, other: Measurement | None, of: Callable[[Measurement], float | None]
) -> Iterator[Ratio]:
    """One, where both were measured."""
    if ours is not None and other is not None:
        value, base = of(ours), of(other)
        if value is not None and base:
            yield Ratio(title, value / base)


def _median(measured: Measurement) -> float | None:
    return measured.latency_ms(50)


def _rate(measured: Measurement) -> float:
    """In audio, since one may have been counted with longer clips than another."""
    return measured.audio_s_per_s
