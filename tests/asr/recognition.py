"""What an engine hears in utterances, and whether that is the same as it was before."""

from __future__ import annotations

import pytest

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
