"""What was found, as a Markdown document."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.load.ratios import ratios
from benchmarks.load.results import REFERENCE, Results
from benchmarks.load.tables import measurement_table, rows_table, stage_table, table

SECTIONS = {
    "closed": "## The service: so many requests at a time, each followed by the next",
    "single": "## The service in batches of one (`max_batch_size=1`)",
    "arriving": "## Requests that arrive by chance (Poisson), at a share of the highest throughput above",
    "engine": "## The engine alone, its recordings prepared beforehand",
    "preparing": "## The same, preparing them on the way",
    "peers": "## Others, each in a process of its own",
}
IN_TURNS = "## In turns, round after round, each started anew"
NOTES = """\
Latencies are of the client, which shares the machine; where requests arrive by chance they count from the arrival. CPU
and memory are of all processes of a system, the client not among them; memory is proportional (PSS), and in every
process but Ray's own includes PyTorch, which reads the weights. Rows: decoded at a time. The least that a clip could
take is the roofline of this processor at the lengths of the clips and the rows that were measured, nothing but the two
networks."""


def report(results: Results) -> str:
    return "\n\n".join([str(results.setup), *_sections(results), *conclusions(results)]) + "\n"


def _sections(results: Results) -> Iterator[str]:
    for name, title in SECTIONS.items():
        measurements = list(getattr(results, name).values())
        if measurements:
            yield f"{title}\n\n{measurement_table(measurements)}"
    if results.rounds:
        in_turns = [measured for turns in results.rounds for measured in turns.measurements()]
        yield f"{IN_TURNS}\n\n{measurement_table(in_turns)}"


def conclusions(results: Results) -> Iterator[str]:
    """What follows from the measurements together."""
    found = [[ratio.title, str(ratio)] for ratio in ratios(results)]
    if found:
        title = "## How they compare" + ": the median of the rounds, where there were any" * bool(results.rounds)
        yield f"{title}\n\n{table(['', ''], found)}"
    timed = [measured for concurrency, measured in results.closed.items() if concurrency in (1, REFERENCE)]
    for title, text in (
        ("One request", stage_table(timed)),
        ("Rows decoded at a time, share of the requests", rows_table(list(results.closed.values()))),
    ):
        if text is not None:
            yield f"## {title}\n\n{text}"
    if results.left_out:
        yield "## Left out\n\n" + "\n".join(f"- {why}" for why in results.left_out)
    yield NOTES
    if results.processor:
        yield f"The processor at best: {results.processor}."
