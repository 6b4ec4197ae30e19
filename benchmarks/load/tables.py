"""Measurements as Markdown tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.load.measurement import AROUND, Measurement

COLUMNS: Mapping[str, Callable[[Measurement], str]] = {
    "clips/s": lambda measured: f"{measured.clips_per_s:.2f}",
    "audio s/s": lambda measured: f"{measured.audio_s_per_s:.1f}",
    "p50 ms": lambda measured: number(measured.latency_ms(50)),
    "p95 ms": lambda measured: number(measured.latency_ms(95)),
    "p99 ms": lambda measured: number(measured.latency_ms(99)),
    "WER %": lambda measured: f"{100 * measured.score.rate:.2f}",
    "CPU s/clip": lambda measured: f"{measured.cpu_s_per_clip:.2f}",
    "peak MB": lambda measured: f"{measured.usage.peak_bytes / 1e6:.0f}",
    "rows": lambda measured: number(measured.mean_rows, 1),
    "least ms/clip": lambda measured: number(measured.floor_ms),
    "of the least": lambda measured: number(measured.floor_ms and 1000 / measured.clips_per_s / measured.floor_ms, 1),
}
"""The last three are left out where nothing is known of them."""


def number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column to the left, the others, of numbers, to the right."""
    return "\n".join(map(line, [head, ["---", *["---:"] * (len(head) - 1)], *rows]))


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def measurement_table(measurements: Sequence[Measurement]) -> str:
    """A row for each; columns of which no measurement knows anything are left out."""
    columns = {title: cell for title, cell in COLUMNS.items() if any(map(cell, measurements))}
    return table(["", *columns], ([name_of(one), *(cell(one) for cell in columns.values())] for one in measurements))


def table_head() -> str:
    """Of a table that is written row by row, and so has every column."""
    return table(["", *COLUMNS], [])


def table_row(measured: Measurement) -> str:
    return line([name_of(measured), *(cell(measured) for cell in COLUMNS.values())])


def name_of(measured: Measurement) -> str:
    """Its name, with what went wrong."""
    wrong = {"failed": len(measured.failures), "answered otherwise than before": measured.differing}
    notes = [f"{count} {what}" for what, count in wrong.items() if count]
    return f"{measured.name} ({', '.join(notes)})" if notes else measured.name


def stage_table(measurements: Sequence[Measurement]) -> str | None:
    """Median ms that a request spends in every stage; nothing where no stages are known."""
    timed = [measured for measured in measurements if measured.stages_ms]
    stages = dict.fromkeys(stage for measured in timed for stage in measured.stages_ms if stage != AROUND)
    if not timed:
        return None
    rows = [[stage, *(number(measured.stages_ms.get(stage), 1) for measured in timed)] for stage in (*stages, AROUND)]
    rows.append(["client, from request to answer", *(number(measured.latency_ms(50), 1) for measured in timed)])
    return table(["median ms", *(measured.name for measured in timed)], rows)


def rows_table(measurements: Sequence[Measurement]) -> str | None:
    """How many requests were decoded with how many rows at a time; nothing where that is not known."""
    known = [measured for measured in measurements if measured.rows]
    if not known:
        return None
    counts = [Counter(round(rows) for rows in measured.rows) for measured in known]
    sizes = sorted(set().union(*counts))
    lines = [[str(size), *(f"{100 * count[size] / count.total():.0f} %" for count in counts)] for size in sizes]
    return table(["rows", *(measured.name for measured in known)], lines)
