"""Errors in per cent of words, or of characters where words are not separated."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest
from jiwer import process_characters, process_words

from asr.build.error_rate import error_rate
from asr.errors import ArtefactError

Text = tuple[str, str, str | None]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([("it was the best", "it was the best", "en")], 0.0),
        ([("it was the best", "it was the west", "en")], 25.0),
        ([("it was the best", "it was best", "en")], 25.0),
        ([("it was the best", "it was the very best", "en")], 25.0),
        ([("it was the best", "", "en")], 100.0),
        ([("it", "it was the best", "en")], 300.0),
        ([("of times", "of times", "en"), ("it was the worst of times", "it is the worst", None)], 37.5),
    ],
    ids=["none", "substitution", "deletion", "insertion", "silence", "more than there is", "over all"],
)
def test_exact_values(texts: Sequence[Text], expected: float) -> None:
    assert error_rate(texts) == expected


@pytest.mark.parametrize(
    ("reference", "hypothesis"),
    [
        ("It was the best of times, it was the WORST of times!", "it was the best of times it was the worst of times"),
        ("Don’t — don't", "don't, dont"),
        ("naïve café", "naïve café"),
        ("３ times²", "3 times2"),
        ("Straße", "STRASSE"),
        ("semi-detached", "semi detached"),
    ],
    ids=["case and punctuation", "apostrophes", "accents", "forms of digits", "case folding", "hyphens"],
)
def test_what_does_not_count(reference: str, hypothesis: str) -> None:
    assert error_rate([(reference, hypothesis, "en")]) == 0


@pytest.mark.parametrize(
    ("reference", "hypothesis"), [("naïve", "naive"), ("resume", "résumé"), ("two", "2"), ("color", "colour")]
)
def test_what_counts(reference: str, hypothesis: str) -> None:
    assert error_rate([(reference, hypothesis, "en")]) == 100


@pytest.mark.parametrize("language", ["zh", "ja", "th"])
def test_characters_where_words_are_not_separated(language: str) -> None:
    reference, hypothesis = "那是最好的時代，那是最壞的時代。", "那是 最好的時代 那是最坏的时代"

    assert error_rate([(reference, hypothesis, language)]) == pytest.approx(100 * 2 / 14)
    assert error_rate([(reference, hypothesis, "en")]) == 150  # two words, three others


def test_against_jiwer() -> None:
    """Over all recordings together, a long one counts for more than a short one."""
    references = ["it was the age of wisdom", "it was the age of foolishness", "we had everything before us"]
    hypotheses = ["it was an age of wisdom", "the age of foolish mess", "we had everything before us us"]
    english = list(zip(references, hypotheses, ["en"] * 3, strict=True))
    chinese = [("那是最好的時代", "那是最好的时间", "zh")]

    assert error_rate(english) == pytest.approx(100 * process_words(references, hypotheses).wer)
    assert error_rate(chinese) == pytest.approx(100 * process_characters(chinese[0][0], chinese[0][1]).cer)


def test_without_jiwer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(ArtefactError, match=r"jiwer: pip install rayscribe\[precision\]"):
        error_rate([("it", "it", "en")])
