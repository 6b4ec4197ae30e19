"""The rules of decoding in exact numbers, with a model that says what it is told to."""

from __future__ import annotations

import dataclasses
import math

import pytest

from asr.decoding import compression_ratio
from asr.errors import RecognitionError
from asr.in_flight import InFlightDecoder
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions
from tests.asr.decoded_rows import decoded
from tests.asr.scripted_decoder import DIMS, PREFIX, ScriptedSession, Words, decode, encoded, tokenizer_of

ENGLISH_DIMS = dataclasses.replace(DIMS, n_vocab=51_864)


# --- what is said


def test_the_likeliest_tokens_up_to_the_end(tokenizer: Tokenizer, say: Words) -> None:
    script = {
        **say.heard,
        say.begin: {say.a: 0.5, say.b: 0.3, say.c: 0.2},
        say.a: {say.b: 0.6, say.end: 0.4},
        say.b: {say.end: 0.9, say.c: 0.1},
    }
    [heard] = decode(tokenizer, script)

    assert heard.text == " good day"
    assert heard.tokens == (say.a, say.b)
    assert heard.complete
    assert heard.language == "en"
    assert heard.temperature == 0.0
    assert heard.avg_logprob == pytest.approx((math.log(0.5) + math.log(0.6) + math.log(0.9)) / 3, rel=1e-6)
    assert heard.no_speech_prob == pytest.approx(0.25)
    assert heard.compression_ratio == compression_ratio(" good day")


def test_neither_a_blank_nor_the_end_comes_first(tokenizer: Tokenizer, say: Words) -> None:
    """What is suppressed leaves its probability to the others: 0.1 of 0.1 + 0.05 for the first token."""
    script = {
        **say.heard,
        say.begin: {say.blank: 0.5, say.end: 0.35, say.a: 0.1, say.b: 0.05},
        say.a: {say.blank: 0.8, say.end: 0.2},
        say.blank: {say.end: 1.0},
    }
    [heard] = decode(tokenizer, script)

    assert heard.tokens == (say.a, say.blank)
    assert heard.avg_logprob == pytest.approx((math.log(0.1 / 0.15) + math.log(0.8) + math.log(1.0)) / 3, rel=1e-6)


def test_what_nobody_speaks_is_never_said(tokenizer: Tokenizer, say: Words) -> None:
    """Special tokens but the end, and the tokens of annotations, wherever they come."""
    [bracket], note = tokenizer.encode(" ["), tokenizer.encode("♪")[0]
    unspoken = (bracket, note, *range(tokenizer.sot, tokenizer.n_vocab))
    share = 0.9 / len(unspoken)
    loud = dict.fromkeys(unspoken, share)
    script = {
        **say.heard,
        say.begin: {**loud, bracket: 0.5, say.a: 0.05},
        say.a: {**loud, tokenizer.timestamp_begin: 0.5, say.b: 0.03, say.end: 0.02},
        say.b: {**loud, tokenizer.no_speech: 0.5, say.end: 0.04},
    }
    [heard] = decode(tokenizer, script)

    assert heard.tokens == (say.a, say.b)
    assert heard.avg_logprob == pytest.approx(math.log(0.6) / 3, rel=1e-5)


def test_a_model_without_end_is_stopped(tokenizer: Tokenizer, say: Words) -> None:
    """After 20 tokens and 25 for each second, but never more than half of the context."""
    seconds, bounds = [0.0, 1.0, 2.5, 30.0], [20, 45, 82, 224]
    script = {**say.heard, say.begin: {say.a: 1.0}, say.a: {say.a: 0.5, say.b: 0.25, say.end: 0.25}}
    decoder = InFlightDecoder(ScriptedSession(DIMS.n_vocab, *[script] * 4), tokenizer, DIMS)
    results = decoded(decoder, encoded(*range(4)), [DecodingOptions()] * 4, ["en"] * 4, seconds)

    for heard, bound in zip(results, bounds, strict=True):
        assert heard.tokens == (say.a,) * bound
        assert not heard.complete
        assert heard.avg_logprob == pytest.approx((bound - 1) * math.log(0.5) / (bound + 1), rel=1e-5)


def test_an_end_at_the_bound_is_an_end(tokenizer: Tokenizer, say: Words) -> None:
    """20 tokens are allowed: the end may be the twentieth, not the twenty-first."""
    short, long = decode(tokenizer, say.all_of(range(1000, 1019)), say.all_of(range(1000, 1020)), seconds=0.0)

    assert (short.tokens, short.complete) == (tuple(range(1000, 1019)), True)
    assert (long.tokens, long.complete) == (tuple(range(1000, 1020)), False)


# --- the prompt


def test_a_prompt_comes_before_the_start(tokenizer: Tokenizer, say: Words) -> None:
    """The probability of no speech is that after the start of the transcript, wherever that is."""
    script = {
        say.start: {tokenizer.no_speech: 0.125, say.a: 0.875},
        say.begin: {say.a: 1.0},
        say.a: {say.end: 1.0},
    }
    session = ScriptedSession(DIMS.n_vocab, script, script)
    options = [DecodingOptions(prompt="  Hello there. \n"), DecodingOptions(prompt=" \t")]
    prompted, plain = decoded(
        InFlightDecoder(session, tokenizer, DIMS), encoded(0, 1), options, ["de", "en"], [1.0, 1.0]
    )

    told = [tokenizer.sot, *tokenizer.task_tokens("de", "transcribe")]
    assert session.read[0] == [tokenizer.sot_prev, *tokenizer.encode(" Hello there."), *told, say.a]
    assert session.read[1] == [tokenizer.sot, *tokenizer.task_tokens("en", "transcribe"), say.a]
    assert [prompted.no_speech_prob, plain.no_speech_prob] == pytest.approx([0.125, 0.125])
    assert prompted.tokens == plain.tokens == (say.a,)
    assert (prompted.language, plain.language) == ("de", "en")


def test_of_a_long_prompt_the_end_counts(tokenizer: Tokenizer, say: Words) -> None:
    """Half of the context is for what was said before, one token of it for the mark that it was."""
    prompt = " ".join(f"word{number}" for number in range(300))
    script = {**say.heard, say.begin: {say.a: 1.0}, say.a: {say.a: 1.0}}
    session = ScriptedSession(DIMS.n_vocab, script)
    decoder = InFlightDecoder(session, tokenizer, DIMS)
    [heard] = decoded(decoder, encoded(0), [DecodingOptions(prompt=prompt)], ["en"], [30.0])

    assert session.read[0][:224] == [tokenizer.sot_prev, *tokenizer.encode(" " + prompt)[-223:]]
    assert session.read[0][224] == tokenizer.sot
    assert len(session.read[0]) <= DIMS.n_text_ctx
    assert len(heard.tokens) == DIMS.n_text_ctx - 224 - 4


def test_an_english_model_has_no_language_and_task() -> None:
    tokenizer = tokenizer_of(ENGLISH_DIMS)
    say = Words(tokenizer)
    session = ScriptedSession(ENGLISH_DIMS.n_vocab, {**say.heard, say.begin: {say.a: 1.0}, say.a: {say.end: 1.0}})
    decoder = InFlightDecoder(session, tokenizer, ENGLISH_DIMS)
    [heard] = decoded(decoder, encoded(0), [DecodingOptions()], [""], [1.0])

    assert session.read[0] == [tokenizer.sot, tokenizer.no_timestamps, say.a]
    assert (heard.text, heard.language) == (" good", "en")
    assert decoder.detect_languages(encoded(*range(3))) == ["en"] * 3


# --- rows of a batch


def test_rows_that_end_early_keep_their_results(tokenizer: Tokenizer, say: Words) -> None:
    """Six rows end one after another; each leaves at once, and the last takes its place."""
    lengths, languages = [1, 9, 2, 6, 1, 3], ["en", "de", "fr", "es", "it", "ja"]
    words = [range(1000 + 100 * row, 1000 + 100 * row + length) for row, length in enumerate(lengths)]
    silence = [{say.start: {tokenizer.no_speech: (row + 1) / 10, say.a: 0.9 - row / 10}} for row in range(6)]
    scripts = [{**say.all_of(said, 0.9), **silent} for said, silent in zip(words, silence, strict=True)]
    session = ScriptedSession(DIMS.n_vocab, *scripts)
    heard = decoded(
        InFlightDecoder(session, tokenizer, DIMS), encoded(*range(6)), [DecodingOptions()] * 6, languages, [9.0] * 6
    )

    for row, (result, said) in enumerate(zip(heard, words, strict=True)):
        assert result.tokens == tuple(said)
        assert result.complete
        assert result.language == languages[row]
        assert result.avg_logprob == pytest.approx(math.log(0.9), rel=1e-5)
        assert result.no_speech_prob == pytest.approx((row + 1) / 10)
        assert session.read[row][4 : 4 + len(said)] == list(said)
    every_row, after_one, after_two = [0, 1, 2, 3, 4, 5], [5, 1, 2, 3], [5, 1, 3]
    assert session.batches == [every_row] * (PREFIX + 1) + [after_one, after_two] + [[3, 1]] * 3 + [[1]] * 3


def test_rows_decode_as_they_do_alone(tokenizer: Tokenizer, say: Words) -> None:
    """Sampling too: what a row draws does not depend on who draws beside it."""
    spread = {say.a: 0.35, say.b: 0.3, say.c: 0.3, say.end: 0.05}
    script = {**say.heard, **dict.fromkeys((say.begin, say.a, say.b, say.c), spread)}
    sampled = DecodingOptions(temperature=1.0)
    [alone] = decode(tokenizer, script, options=sampled)
    others = decode(tokenizer, script, script, script, options=sampled)
    decoder = InFlightDecoder(ScriptedSession(DIMS.n_vocab, script, script), tokenizer, DIMS)
    greedy, beside = decoded(decoder, encoded(0, 1), [DecodingOptions(), sampled], ["en"] * 2, [1.0] * 2)

    assert others == [alone] * 3
    assert beside == alone
    assert len(set(alone.tokens)) > 1
    assert set(greedy.tokens) == {say.a}


def test_a_low_temperature_draws_the_likeliest(tokenizer: Tokenizer, say: Words) -> None:
    """0.5 against 0.25 at a temperature of 0.02 is 2^50 to one; the log-probability stays that of the model."""
    script = {**say.heard, say.begin: {say.a: 0.5, say.b: 0.25, say.c: 0.25}, say.a: {say.end: 0.75, say.b: 0.25}}
    [heard] = decode(tokenizer, script, options=DecodingOptions(temperature=0.02))

    assert heard.tokens == (say.a,)
    assert heard.avg_logprob == pytest.approx((math.log(0.5) + math.log(0.75)) / 2, rel=1e-6)
    assert heard.temperature == 0.02


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_logits_that_are_not_numbers(tokenizer: Tokenizer, say: Words, temperature: float) -> None:
    with pytest.raises(RecognitionError):
        decode(tokenizer, {**say.heard, say.begin: {say.a: math.nan}}, options=DecodingOptions(temperature=temperature))


# --- languages


def in_languages(tokenizer: Tokenizer, say: Words) -> ScriptedSession:
    """Rows in English, Sundanese and German, but something else is likelier: a word, or the token after the last
    language.
    """
    begin = {say.begin: {say.a: 1.0}, say.a: {say.end: 1.0}}
    starts = [
        {tokenizer.language_token(language): 0.2, tokenizer.language_token("fr"): 0.1, other: 0.7}
        for language, other in [("en", say.a), ("su", tokenizer.translate), ("de", tokenizer.eot)]
    ]
    return ScriptedSession(DIMS.n_vocab, *({**begin, say.start: start} for start in starts))


def test_the_likeliest_language_of_each_row(tokenizer: Tokenizer, say: Words) -> None:
    decoder = InFlightDecoder(in_languages(tokenizer, say), tokenizer, DIMS)

    assert decoder.detect_languages(encoded(*range(3))) == ["en", "su", "de"]


def test_rows_hear_their_language_on_the_way(tokenizer: Tokenizer, say: Words) -> None:
    """Where none is given, after the start of the transcript; it takes no step more."""
    session = in_languages(tokenizer, say)
    decoder = InFlightDecoder(session, tokenizer, DIMS)
    tasks = [DecodingOptions(), DecodingOptions(task="translate"), DecodingOptions()]
    heard = decoded(decoder, encoded(*range(3)), tasks, ["", "", "it"], [1.0] * 3)

    assert [result.language for result in heard] == ["en", "su", "it"]
    for row, (language, option) in enumerate(zip(("en", "su", "it"), tasks, strict=True)):
        assert session.read[row] == [tokenizer.sot, *tokenizer.task_tokens(language, option.task), say.a]
    assert len(session.batches) == PREFIX + 1


def test_a_prompt_has_no_say_in_the_language(tokenizer: Tokenizer, say: Words) -> None:
    """It is heard before the prompt is read."""
    session = in_languages(tokenizer, say)
    decoder = InFlightDecoder(session, tokenizer, DIMS)
    decoder.join(encoded(2, 1), [DecodingOptions(prompt="Hear!"), DecodingOptions()], ["", "it"], [1.0] * 2)

    assert session.batches == [[2, 1]] * 2
    prompt = [tokenizer.sot_prev, *tokenizer.encode(" Hear!")]
    assert session.read == {0: [], 1: [], 2: prompt}
    while decoder.rows:
        decoder.step()
    assert session.read[2] == [*prompt, tokenizer.sot, *tokenizer.task_tokens("de", "transcribe"), say.a]
    assert session.read[1] == [tokenizer.sot, *tokenizer.task_tokens("it", "transcribe"), say.a]
