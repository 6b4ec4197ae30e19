"""What an engine hears: a row has the result that it has alone, whoever is decoded beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from asr.engine import Engine
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance
from tests.asr.decoded_rows import assert_nothing_left
from tests.asr.excerpts import ENGLISH, Recording
from tests.asr.recognition import assert_same, recognized, recognized_alone, results_in_flight

# --- what is heard


def test_speech_is_recognized(engine: Engine, best_of_times: Utterance) -> None:
    heard = recognized_alone(engine, best_of_times)

    assert heard.text == " It was the best of times, it was the worst of times."
    assert heard.language == "en"
    assert heard.complete
    assert heard.no_speech_prob < 0.3
    assert -0.3 < heard.avg_logprob < 0


def test_languages_are_detected_row_by_row(engine: Engine, best_of_times: Utterance) -> None:
    """Where one is given, it is taken, whatever is spoken."""
    unsaid, german = replace(best_of_times, options=DecodingOptions()), DecodingOptions(language="de")
    heard = recognized(engine, unsaid, replace(best_of_times, options=german), unsaid)

    assert [result.language for result in heard] == ["en", "de", "en"]
    assert heard[0].text == heard[2].text == recognized_alone(engine, best_of_times).text


def test_a_prompt_sets_the_spelling(engine: Engine, best_of_times: Utterance) -> None:
    prompt = "IT WAS THE AGE OF WISDOM. IT WAS THE AGE OF FOOLISHNESS. IT WAS THE EPOCH OF BELIEF."
    heard = recognized_alone(engine, replace(best_of_times, options=replace(ENGLISH, prompt=prompt)))

    assert heard.text.isupper()
    assert "THE BEST OF TIMES" in heard.text


def test_a_prompt_longer_than_the_model_takes(engine: Engine, best_of_times: Utterance) -> None:
    sentence = "It was the epoch of belief, it was the epoch of incredulity, it was the season of Light. "
    endless = replace(best_of_times, options=replace(ENGLISH, prompt=sentence * 100))
    heard, beside = recognized(engine, endless, best_of_times)

    assert "best of times" in heard.text.lower()
    assert len(engine.tokenizer.encode(endless.options.prompt)) > engine.dims.n_text_ctx
    assert_same(beside, recognized_alone(engine, best_of_times))


def test_noise_ends(engine: Engine) -> None:
    """Features that no sound makes, on which a model may go on for ever."""
    noise = np.random.default_rng(0).standard_normal((80, 100)).astype(np.float32)
    sampled = replace(ENGLISH, temperature=1.0)
    for heard in recognized(engine, Utterance(noise, ENGLISH), Utterance(noise, sampled)):
        assert len(heard.tokens) <= 20 + 25
        assert heard.complete or len(heard.tokens) == 20 + 25


def test_nothing_to_recognize(engine: Engine) -> None:
    assert engine.recognize([]) == []


def test_the_same_draw_every_time(engine: Engine, recording: Recording) -> None:
    """At temperature 1 noisy speech reads differently, but not differently today than yesterday."""
    utterance = Utterance(recording.cut(26.0, 31.0), ENGLISH)
    sampled = replace(utterance, options=replace(ENGLISH, temperature=1.0))
    first, again = recognized(engine, sampled, sampled)

    assert_same(again, first)
    assert_same(recognized_alone(engine, sampled), first)
    assert first.temperature == 1.0
    assert first.avg_logprob < recognized_alone(engine, utterance).avg_logprob


def test_warm_up_works(engine: Engine) -> None:
    engine.warm_up(3)


# --- rows of a batch do not touch each other


@pytest.fixture(scope="module")
def alone(engine: Engine, crowd: Sequence[Utterance]) -> list[Recognition]:
    return [recognized_alone(engine, utterance) for utterance in crowd]


def test_beside_itself(engine: Engine, crowd: Sequence[Utterance], alone: Sequence[Recognition]) -> None:
    for utterance, expected in zip(crowd, alone, strict=True):
        for heard in recognized(engine, utterance, utterance):
            assert_same(heard, expected)


def test_among_strangers(engine: Engine, crowd: Sequence[Utterance], alone: Sequence[Recognition]) -> None:
    for heard, expected in zip(recognized(engine, *crowd), alone, strict=True):
        assert_same(heard, expected)


def test_among_other_strangers(engine: Engine, crowd: Sequence[Utterance], alone: Sequence[Recognition]) -> None:
    """Where none is long, all tensors are smaller, and the rows in another order."""
    for rows in ([6, 4, 3, 1, 0], [3, 3, 6]):
        for row, heard in zip(rows, recognized(engine, *(crowd[row] for row in rows)), strict=True):
            assert_same(heard, alone[row])


def test_the_crowd_says_different_things(alone: Sequence[Recognition]) -> None:
    assert len({heard.text for heard in alone}) == len(alone)
    assert all(heard.text for heard in alone)


# --- rows that come and go


@pytest.mark.parametrize("seed", range(4))
def test_utterances_that_come_one_after_another(
    engine: Engine, crowd: Sequence[Utterance], alone: Sequence[Recognition], seed: int
) -> None:
    """In any order, and some are dropped before they have ended."""
    order = 2 * random.Random(seed).sample(range(len(crowd)), len(crowd))
    dropped = [place for place, number in enumerate(order) if number in (1, 2)][: seed + 1]
    results = results_in_flight(engine, [crowd[number] for number in order], dropped)

    assert_nothing_left(engine._decoder)
    for place, (number, result) in enumerate(zip(order, results, strict=True)):
        if place in dropped:
            assert result is None
        else:
            assert isinstance(result, Recognition)
            assert_same(result, alone[number])
