"""Short utterances beside long recordings: what do they wait?

python -m benchmarks.fairness --model base --share 0.5

Recordings of 30 s arrive steadily, so many that they take a share of what the service can do; utterances of about 2 s
arrive by chance. The latter are first sent without the former.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import wave
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asr.audio import decode_audio
from asr.features import SAMPLE_RATE, WINDOW_S, WINDOW_SAMPLES
from benchmarks.load.bounds import Bound, bound_table
from benchmarks.load.client import Client
from benchmarks.load.command import clips_of, command_parser, write_report
from benchmarks.load.loops import Answer, Window, open_loop
from benchmarks.load.results import Setup
from benchmarks.load.service import Service, ServiceError, running_service
from benchmarks.load.tables import table
from benchmarks.load.workload import poisson_arrivals, shuffled
from benchmarks.speech_set import Clip

LONG, SHORT = 4, 6
"""Different recordings of each kind."""
SHORT_S = 2.0
SHORT_SHARE = 0.1
"""Of the capacity, that the short ones take: they are to meet the long ones, not each other."""
TIMES = 3.0
"""How many times as long as without the long ones a short one may take."""
AT_A_TIME, COUNTED = 4, 12
"""Requests, and those that count, to find out how many the service can do."""
AHEAD = 2
"""How many of the long ones arrive before the first short one."""
PERCENTILES = (50, 95)


@dataclass(frozen=True)
class Fairness:
    """capacity: long recordings a second that the service can do; long_per_s, short_per_s: that were sent; alone,
    beside: answers to the short ones without and with the long ones; long: answers to these."""

    capacity: float
    long_per_s: float
    short_per_s: float
    alone: Sequence[Answer]
    beside: Sequence[Answer]
    long: Sequence[Answer]


def fairness(service: Service, short: Sequence[Clip], long: Sequence[Clip], share: float, count: int) -> Fairness:
    """share: of the capacity, that the long ones take; count: of short ones, and as many again with the long ones."""
    clips = [*short, *long]
    shorts, longs = range(len(short)), range(len(short), len(clips))
    service.closed_loop(clips, clips_in_turn(longs, AT_A_TIME), AT_A_TIME)  # first-time allocations are not measured
    window = service.closed_loop(clips, clips_in_turn(longs, COUNTED), AT_A_TIME)
    capacity = len(window.counted) / (window.end_s - window.start_s)
    one_by_one = service.closed_loop(clips, clips_in_turn(shorts, COUNTED), 1)
    short_per_s = SHORT_SHARE / float(np.mean([answer.latency_s for answer in one_by_one.counted]))
    arrivals_s = poisson_arrivals(short_per_s, count)
    alone = service.open_loop(clips, shorts, arrivals_s)

    long_per_s = share * capacity
    ahead_s = AHEAD / long_per_s
    long_arrivals_s = np.arange(0, ahead_s + arrivals_s[-1], 1 / long_per_s).tolist()

    async def both(client: Client) -> tuple[Window, Window]:
        return await asyncio.gather(
            open_loop(client.send, shorts, [ahead_s + arrival_s for arrival_s in arrivals_s]),
            open_loop(client.send, longs, long_arrivals_s),
        )

    beside, among = service.run(clips, both)
    return Fairness(capacity, long_per_s, short_per_s, alone.answers, beside.answers, among.answers)


def clips_in_turn(places: Sequence[int], count: int) -> list[int]:
    return list(itertools.islice(itertools.cycle(places), count))


def bounds(found: Fairness) -> Iterator[Bound]:
    """What keeps short utterances from queueing up behind long recordings."""
    everything = (*found.alone, *found.beside, *found.long)
    yield Bound("failed requests", sum(answer.text is None for answer in everything), 0)
    for percentile in PERCENTILES:
        times = _latency_ms(found.beside, percentile) / _latency_ms(found.alone, percentile)
        yield Bound(f"p{percentile} of the short ones beside long ones, times that without", times, TIMES)


def report(found: Fairness) -> str:
    rows = {
        f"short, {found.short_per_s:.2f}/s, alone": found.alone,
        f"short, {found.short_per_s:.2f}/s, beside the long ones": found.beside,
        f"long, {found.long_per_s:.2f}/s": found.long,
    }
    parts = [
        f"Recordings of {WINDOW_S} s alone, {AT_A_TIME} at a time: {found.capacity:.2f} a second.",
        table(
            ["ms", "requests", *(f"p{percentile}" for percentile in PERCENTILES)],
            ([title, str(len(answers)), *_latencies(answers)] for title, answers in rows.items()),
        ),
        bound_table(list(bounds(found))),
    ]
    return "\n\n".join(parts) + "\n"


def _latencies(answers: Sequence[Answer]) -> list[str]:
    return [f"{_latency_ms(answers, percentile):.0f}" for percentile in PERCENTILES]


def _latency_ms(answers: Sequence[Answer], percentile: float) -> float:
    return float(np.percentile([1000 * answer.latency_s for answer in answers], percentile))


def short_clips(clips: Sequence[Clip]) -> list[Clip]:
    return sorted(clips, key=lambda clip: (abs(clip.duration_s - SHORT_S), clip.id))[:SHORT]


def long_clips(clips: Sequence[Clip], folder: Path) -> list[Clip]:
    """Recordings of 30 s without a pause to speak of, joined of clips and written to the folder.

    Raises:
        ValueError: the clips are too few.
    """
    waveform = np.concatenate([decode_audio(clips[place].path.read_bytes()) for place in shuffled(len(clips))])
    count = min(LONG, len(waveform) // WINDOW_SAMPLES)
    if not count:
        raise ValueError(f"the clips have less than {WINDOW_S:.0f} s together")
    paths = [folder / f"{number}.wav" for number in range(count)]
    for path, samples in zip(paths, waveform[: count * WINDOW_SAMPLES].reshape(count, -1), strict=True):
        write_wav(path, samples)
    return [replace(clips[0], id=path.stem, path=path, text="", kind="long", duration_s=WINDOW_S) for path in paths]


def write_wav(path: Path, waveform: NDArray[np.float32]) -> None:
    """waveform: (samples,) float32 at 16 kHz."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(np.round(np.clip(waveform, -1, 1) * 32767).astype("<i2").tobytes())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser("fairness", __doc__, model="base")
    parser.add_argument("--share", type=float, default=0.5, help="of the capacity, that the long ones take")
    parser.add_argument("--count", type=int, default=100, help="of short ones")
    options = parser.parse_intermixed_args(arguments)
    clips = clips_of(parser, options)
    with tempfile.TemporaryDirectory() as folder:
        try:
            long = long_clips(clips, Path(folder))
            with running_service(options.model, options.settings) as service:
                found = fairness(service, short_clips(clips), long, options.share, options.count)
        except (ServiceError, ValueError) as error:
            parser.exit(1, f"{error}\n")
    text = f"{Setup.here(options.model, options.settings, clips)}\n\n{report(found)}"
    print(text)
    write_report(options.output / "fairness", text, asdict(found))
    return int(not all(bound.holds for bound in bounds(found)))


if __name__ == "__main__":
    sys.exit(main())
