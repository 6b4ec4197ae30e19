"""What an engine hears in utterances, and whether that is the same as it was before."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from asr.decoding import Row
from asr.engine import Engine
from asr.transcript import Recognition
from asr.utterance import Utterance

LOGPROB_TOLERANCE = 0.02
"""On the processor that this was written on a row's numbers differ by 4e-7 at most. Elsewhere sums may come in another
order, and int8 makes more of a last bit."""


def recognized(engine: Engine, *utterances: Utterance) -> list[Recognition]:
    results = engine.recognize(utterances)
    heard = [result for result in results if isinstance(result, Recognition)]
    assert len(heard) == len(results) == len(utterances), results
    return heard


def recognized_alone(engine: Engine, utterance: Utterance) -> Recognition:
    [heard] = recognized(engine, utterance)
    return heard


def assert_same(actual: Recognition, expected: Recognition) -> None:
    assert actual.text == expected.text
    assert actual.tokens == expected.tokens
    assert (actual.language, actual.complete) == (expected.language, expected.complete)
    assert actual.avg_logprob == pytest.approx(expected.avg_logprob, abs=LOGPROB_TOLERANCE)
    assert actual.no_speech_prob == pytest.approx(expected.no_speech_prob, abs=LOGPROB_TOLERANCE)


STEPS_BETWEEN = 3


def results_in_flight(engine: Engine, utterances: Sequence[Utterance], dropped: Collection[int] = ()) -> list[object]:
    """Start one every few steps, and drop some as many steps after that; → their results, None of what was dropped."""
    rows: list[Row] = []
    for utterance in utterances:
        [row] = engine.start([utterance], engine.encode([utterance]))
        assert isinstance(row, Row)
        rows.append(row)
        for _ in range(STEPS_BETWEEN):
            engine.step()
        if len(rows) - 1 in dropped:
            assert not row.ended
            engine.drop(row)
    while engine.rows_in_flight:
        engine.step()
    return [engine.result(row) if place not in dropped else None for place, row in enumerate(rows)]
