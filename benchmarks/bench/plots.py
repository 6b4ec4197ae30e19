"""Plots of what was found, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks.figures import save
from benchmarks.load.measurement import Measurement
from benchmarks.load.results import Results
from benchmarks.peers import PEER_TITLES

WIDTH, HEIGHT, LEGEND_HEIGHT = 7.0, 4.5, 1.0  # inches
OURS, BATCHES_OF_ONE, OTHERS = "tab:blue", "tab:cyan", "tab:orange"


def draw(results: Results, stem: Path) -> None:
    """Write <stem>-latency, <stem>-batch and <stem>-rows, each as PNG and SVG, as far as there is something in them."""
    if results.closed:
        save(throughput_and_latency(results), stem.with_name(f"{stem.name}-latency"))
    if results.engine:
        save(throughput_by_batch(results), stem.with_name(f"{stem.name}-batch"))
    if any(measured.rows for measured in results.closed.values()):
        save(rows_at_a_time(results), stem.with_name(f"{stem.name}-rows"))


def throughput_and_latency(results: Results) -> Figure:
    """A point for each number of requests at a time and for each peer; a line where a peer has a throughput alone."""
    figure = Figure((WIDTH, HEIGHT + LEGEND_HEIGHT), layout="constrained")
    axes = figure.subplots()
    for points, colour, label in (
        (results.closed, OURS, "Rayscribe, requests at a time"),
        (results.single, BATCHES_OF_ONE, "the same in batches of one"),
    ):
        if points:
            x, y = _rates(list(points.values())), _medians(list(points.values()))
            axes.plot(x, y, "o-", color=colour, label=label)
            for concurrency, rate, median in zip(points, x, y, strict=True):
                axes.annotate(str(concurrency), (rate, median), textcoords="offset points", xytext=(6, 6))
    for index, (name, measured) in enumerate(results.peers.items()):
        colour = f"C{index + 1}"
        if measured.latencies_ms:
            axes.plot(_rates([measured]), _medians([measured]), "s", color=colour, label=PEER_TITLES[name])
        else:
            axes.axvline(measured.clips_per_s, color=colour, linestyle=":", label=f"{PEER_TITLES[name]}: throughput")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.margins(0.08)
    axes.set_xlim(left=0)
    axes.set(xlabel="clips per second", ylabel="latency, ms (median)")
    figure.legend(loc="outside lower center", fontsize=6, ncols=1)
    return figure


def throughput_by_batch(results: Results) -> Figure:
    """The engine alone over the rows of a batch, with the roofline, and the service at its own."""
    figure = Figure((WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots()
    sizes = list(results.engine)
    axes.plot(sizes, _rates(list(results.engine.values())), "o-", color=OURS, label="engine alone")
    floors = {size: measured.floor_ms for size, measured in results.engine.items() if measured.floor_ms}
    if floors:
        rates = [1000 / floor_ms for floor_ms in floors.values()]
        axes.plot(list(floors), rates, ":", color="gray", label="roofline")
    for size, measured in results.preparing.items():
        axes.plot([size], [measured.clips_per_s], "s", color=OTHERS, label="engine with preparation")
        axes.plot([size], [results.capacity], "^", color=BATCHES_OF_ONE, label="service, at best")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_ylim(bottom=0)
    axes.set(xlabel="rows decoded at a time, at most", ylabel="clips per second")
    axes.legend()
    return figure


def rows_at_a_time(results: Results) -> Figure:
    """Of the service: with how many rows at a time its requests were decoded, by requests at a time."""
    known = {concurrency: measured.rows for concurrency, measured in results.closed.items() if measured.rows}
    figure = Figure((WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots()
    most = round(max(max(rows) for rows in known.values()))
    axes.hist(
        list(known.values()),
        bins=np.arange(0.5, most + 1.5).tolist(),
        weights=[np.full(len(rows), 100 / len(rows)) for rows in known.values()],
        label=[f"{concurrency} at a time" for concurrency in known],
    )
    axes.set(xlabel="rows decoded at a time", ylabel="% of the requests")
    axes.legend()
    return figure


def _rates(measurements: Sequence[Measurement]) -> list[float]:
    return [measured.clips_per_s for measured in measurements]


def _medians(measurements: Sequence[Measurement]) -> list[float]:
    return [measured.latency_ms(50) or 0.0 for measured in measurements]
