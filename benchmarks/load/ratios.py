"""What the measurements say of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.load.measurement import Measurement
from benchmarks.load.results import REFERENCE, Results
from benchmarks.peers import PEER_TITLES


@dataclass(frozen=True)
class Ratio:
    """value: a factor, or a difference in points."""

    title: str
    value: float
    in_points: bool = False

    def __str__(self) -> str:
        return f"{self.value:+.2f} points" if self.in_points else f"{self.value:.2f}"


def ratios(results: Results) -> list[Ratio]:
    """Of what was measured; a peer that was given only some of the clips is compared by throughput alone."""
    return [*_against_peers(results), *_within(results), *_errors(results)]


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
