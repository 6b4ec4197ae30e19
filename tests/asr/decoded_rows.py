"""What a decoder makes of rows that join it together."""

from __future__ import annotations

from collections.abc import Sequence

from asr.decoding import Row
from asr.in_flight import InFlightDecoder
from asr.lane import Encoded
from asr.transcript import DecodingOptions, Recognition


def decoded(
    decoder: InFlightDecoder,
    encoded: Encoded,
    options: Sequence[DecodingOptions],
    languages: Sequence[str],
    seconds: Sequence[float],
) -> list[Recognition]:
    """Have rows join, and step until all have ended; raises the first error among them."""
    rows = decoder.join(encoded, options, languages, seconds)
    while decoder.rows:
        decoder.step()
    return [recognition_of(decoder, row) for row in rows]


def recognition_of(decoder: InFlightDecoder, row: Row) -> Recognition:
    """What an ended row has said; raises its error."""
    assert row.ended
    if row.error is not None:
        raise row.error
    return decoder.recognition(row)


def assert_nothing_left(decoder: InFlightDecoder) -> None:
    """No row is in flight, and none has left anything in its place."""
    assert decoder.rows == 0
    for lane in decoder._lanes:
        assert [slots.rows for slots in (*lane._cross.values(), lane._cache._slots)] == [0] * (len(lane._cross) + 1)
        assert lane.width == len(lane._cache.lengths) == 0
