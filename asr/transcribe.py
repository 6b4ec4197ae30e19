"""A recording's segments → its transcript, wherever the segments are recognised."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from asr.segments import Segment
from asr.transcript import DecodingOptions, Recognition, Timing, Transcript, TranscriptSegment, TranscriptTiming
from asr.utterance import Utterance

LANGUAGES_WITHOUT_BLANKS = ("zh", "yue", "ja", "th", "lo", "km", "my", "bo")
"""Whose scripts put nothing between words or sentences."""

Recognize: TypeAlias = Callable[[Utterance], Awaitable[Recognition]]


async def transcribe_segments(
    segments: Sequence[Segment], duration_s: float, options: DecodingOptions, recognize: Recognize
) -> Transcript:
    """Have every segment recognised, all at once, and put them together in the order of the recording.

    Without a language, the longest segment is heard first, and the language detected in it holds for the others: a
    single cough should not make a recording change its language.

    Raises:
        AsrError: what `recognize` raised for the first segment that failed.
    """

    def heard(segment: Segment, options: DecodingOptions) -> Awaitable[Recognition]:
        return recognize(Utterance(segment.log_mel, options))

    done: dict[int, Recognition] = {}
    if options.language is None and len(segments) > 1:
        longest = max(range(len(segments)), key=lambda index: segments[index].log_mel.shape[1])
        done[longest] = await heard(segments[longest], options)
        options = replace(options, language=done[longest].language)
    waiting = [index for index in range(len(segments)) if index not in done]
    done.update(zip(waiting, await _gather(heard(segments[index], options) for index in waiting), strict=True))
    return _assembled(segments, [done[index] for index in range(len(segments))], duration_s, options.language)


async def _gather(calls: Iterable[Awaitable[Recognition]]) -> list[Recognition]:
    """All results, or the first error, which spares the others the work that nobody waits for any more."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _assembled(
    segments: Sequence[Segment], recognitions: Sequence[Recognition], duration_s: float, language: str | None
) -> Transcript:
    started = time.perf_counter()
    said = tuple(
        TranscriptSegment(segment.start_s, segment.end_s, recognition)
        for segment, recognition in zip(segments, recognitions, strict=True)
    )
    language = language or (recognitions[0].language if recognitions else None)
    between = "" if language in LANGUAGES_WITHOUT_BLANKS else " "
    text = between.join(filter(None, (recognition.text.strip() for recognition in recognitions)))
    timings = (recognition.timing for recognition in recognitions)
    slowest = max(timings, key=lambda timing: timing.total_s, default=Timing())
    timing = TranscriptTiming(recognition=slowest, assemble_s=time.perf_counter() - started)
    return Transcript(text, language, duration_s, said, timing)
