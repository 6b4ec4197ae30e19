"""When a result stands and what is tried when it does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asr.fallback import best, is_silence, looks_wrong, next_attempt
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance

GOOD = Recognition(
    text=" Good.",
    tokens=(1, 2),
    language="en",
    avg_logprob=-0.3,
    no_speech_prob=0.1,
    compression_ratio=1.2,
    temperature=0.0,
    complete=True,
)
WRONG = replace(GOOD, text=" no no no no", compression_ratio=5.0)
SILENT = replace(GOOD, text=" Thank you.", no_speech_prob=0.9, avg_logprob=-1.5)
UTTERANCE = Utterance(np.zeros((80, 100), np.float32), DecodingOptions(language="en", prompt="Names"))


def at(temperature: float, *, full_window: bool = True) -> Utterance:
    return replace(UTTERANCE, options=replace(UTTERANCE.options, temperature=temperature), full_window=full_window)


@pytest.mark.parametrize(
    ("recognition", "wrong"),
    [
        (GOOD, False),
        (replace(GOOD, complete=False), True),
        (replace(GOOD, compression_ratio=2.4), False),
        (replace(GOOD, compression_ratio=2.401), True),
        (replace(GOOD, avg_logprob=-1.0), False),
        (replace(GOOD, avg_logprob=-1.001), True),
        (replace(GOOD, no_speech_prob=0.99), False),
        (replace(GOOD, no_speech_prob=0.6, avg_logprob=-1.001), True),
        (SILENT, False),
        (replace(SILENT, complete=False, compression_ratio=9.0), False),
    ],
)
def test_looks_wrong(recognition: Recognition, wrong: bool) -> None:
    assert looks_wrong(recognition) is wrong


@pytest.mark.parametrize(
    ("no_speech_prob", "avg_logprob", "silent"),
    [
        (0.601, -1.001, True),
        (0.6, -1.001, False),
        (0.601, -1.0, False),
        (1.0, -0.1, False),
        (0.0, -9.0, False),
    ],
)
def test_is_silence(no_speech_prob: float, avg_logprob: float, silent: bool) -> None:
    assert is_silence(replace(GOOD, no_speech_prob=no_speech_prob, avg_logprob=avg_logprob)) is silent


@pytest.mark.parametrize("recognition", [GOOD, SILENT], ids=["good", "silent"])
def test_nothing_follows_what_looks_right(recognition: Recognition) -> None:
    assert next_attempt(UTTERANCE, recognition) is None


def test_nothing_follows_where_fallback_is_not_wanted() -> None:
    assert next_attempt(replace(UTTERANCE, fallback=False), WRONG) is None


def test_the_ladder_from_a_short_window() -> None:
    """First the full window at the same temperature, then one temperature after the other."""
    attempts = [(UTTERANCE.full_window, UTTERANCE.options)]
    following = next_attempt(UTTERANCE, WRONG)
    while following is not None:
        attempts.append((following.full_window, following.options))
        following = next_attempt(following, WRONG)

    assert [(full, options.temperature) for full, options in attempts] == [
        (False, 0.0),
        (True, 0.0),
        (True, 0.2),
        (True, 0.4),
        (True, 0.6),
        (True, 0.8),
        (True, 1.0),
    ]
    assert {replace(options, temperature=0.0) for _, options in attempts} == {UTTERANCE.options}


def test_an_utterance_that_fills_the_window_goes_straight_to_the_temperatures() -> None:
    whole = replace(UTTERANCE, log_mel=np.zeros((80, 3000), np.float32))
    following = next_attempt(whole, WRONG)

    assert following is not None
    assert following.options.temperature == 0.2


@pytest.mark.parametrize(
    ("asked_for", "next_tried"), [(0.0, 0.2), (0.1, 0.2), (0.2, 0.4), (0.5, 0.6), (0.95, 1.0), (1.0, None)]
)
def test_the_ladder_goes_on_above_the_temperature_that_was_asked_for(
    asked_for: float, next_tried: float | None
) -> None:
    following = next_attempt(at(asked_for), WRONG)

    assert (following.options.temperature if following else None) == next_tried


def test_the_last_result_stands_if_it_looks_right() -> None:
    assert best([GOOD]) == GOOD
    assert best([replace(WRONG, avg_logprob=-0.01), GOOD]) == GOOD


def test_the_likeliest_result_stands_if_none_looks_right() -> None:
    attempts = [replace(WRONG, avg_logprob=logprob) for logprob in (-2.0, -0.9, -3.0)]

    assert best(attempts) == attempts[1]


def test_silence_stands_without_text() -> None:
    assert best([SILENT]) == replace(SILENT, text="", tokens=())
    assert best([WRONG, SILENT]) == replace(SILENT, text="", tokens=())
