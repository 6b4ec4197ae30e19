"""Plots of what precisions cost and give, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from benchmarks.precision import Measured

FORMATS = ("png", "svg")
CHOSEN = "int8"  # what the service runs unless told otherwise
WIDTH, HEIGHT = 7.0, 4.5  # inches
ROW_HEIGHT = 0.16
IN_INT8, IN_FLOAT = "tab:blue", "tab:orange"


def draw(results: Sequence[Measured], stem: Path) -> None:
    """Write <stem>-latency and, for each measured placement, <stem>-sensitivity, each as PNG and SVG."""
    _save(latency_and_accuracy(results), stem.with_name(f"{stem.name}-latency"))
    for measured in results:
        if measured.choice is not None:
            _save(sensitivity(measured.choice), stem.with_name(f"{stem.name}-sensitivity"))


def latency_and_accuracy(results: Sequence[Measured]) -> Figure:
    """A point for each precision: time of an utterance alone against errors in all languages, the default ringed."""
    figure = Figure((WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots()
    points = sorted((measured.latency_ms, _error_rate(measured), measured.name) for measured in results)
    axes.plot([x for x, _, _ in points], [y for _, y, _ in points], color="lightgray", zorder=1)
    for x, y, name in points:
        axes.scatter([x], [y], color="tab:blue", zorder=2)
        axes.annotate(name, (x, y), textcoords="offset points", xytext=(6, 6))
        if name == CHOSEN:
            axes.scatter([x], [y], s=160, facecolors="none", edgecolors="tab:red", zorder=3, label="default")
            axes.legend()
    axes.set(xlabel="one utterance alone, ms (median)", ylabel="errors, % of words and characters")
    axes.set_ylim(bottom=0)
    return figure


def sensitivity(choice: dict[str, Any]) -> Figure:
    """A bar for each group of products, the least sensitive for its work first; colours say what was chosen."""
    order = choice["order"]
    taken = choice["quantized"]
    figure = Figure((WIDTH, 1 + ROW_HEIGHT * len(order)), layout="constrained")
    axes: Axes = figure.subplots()
    colours = [IN_INT8 if index < taken else IN_FLOAT for index in range(len(order))]
    axes.barh(range(len(order)), [one["divergence"] for one in order], color=colours)
    axes.set_yticks(range(len(order)), [one["group"] for one in order], fontsize=6)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set(xlabel="divergence from fp32, nats a token", title=f"{taken} of {len(order)} groups in int8 (blue)")
    return figure


def _error_rate(measured: Measured) -> float:
    return (
        100 * sum(score.errors for score in measured.scores) / sum(score.reference_length for score in measured.scores)
    )


def _save(figure: Figure, stem: Path) -> None:
    with mpl.rc_context({"svg.hashsalt": "rayscribe"}):  # the same drawing is the same file
        for suffix in FORMATS:
            metadata = {"Date": None} if suffix == "svg" else None
            figure.savefig(stem.with_name(f"{stem.name}.{suffix}"), dpi=150, metadata=metadata)
