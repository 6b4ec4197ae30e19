"""A recording's segments → its transcript, wherever the segments are recognised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from asr.segments import Segment
from asr.transcript import DecodingOptions, Recognition, Transcript, TranscriptSegment
from asr.utterance import Utterance

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
    results = await asyncio.gather(*(heard(segments[index], options) for index in waiting))
    done.update(zip(waiting, results, strict=True))
    return _assemble(segments, [done[index] for index in range(len(segments))], duration_s, options.language)


def _assemble(
    segments: Sequence[Segment], recognitions: Sequence[Recognition], duration_s: float, language: str | None
) -> Transcript:
    said = tuple(
        TranscriptSegment(segment.start_s, segment.end_s, recognition)
        for segment, recognition in zip(segments, recognitions, strict=True)
    )
    return Transcript(
        # The model begins a word with a blank where its script has blanks, so that segments join without more.
        text="".join(recognition.text for recognition in recognitions).strip(),
        language=language or (recognitions[0].language if recognitions else None),
        duration_s=duration_s,
        segments=said,
    )
