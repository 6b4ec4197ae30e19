"""Count the errors of a transcript against what was said.

Both sides are normalised alike before they are compared. English: openai-whisper's normaliser, which writes numbers,
titles, spelling and contractions in one way and drops fillers. Chinese and Japanese: characters, without punctuation
and spaces, traditional Chinese folded to simplified. All others: lower case without punctuation, diacritics kept.

A rate over a set is all its errors over all its reference units, not the mean of the rates of its clips.
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import jiwer

from benchmarks.speech_set import Clip, Group

CHARACTER_LANGUAGES = ("zh", "ja")
"""Written without spaces: a unit is a character, elsewhere a word."""

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")


@dataclass(frozen=True)
class Score:
    """Errors of one transcript, or of many together.

    errors: substitutions, deletions and insertions; reference_length: words (characters for Chinese and Japanese) said.
    """

    errors: int
    reference_length: int

    @property
    def rate(self) -> float:
        """Errors per unit said; infinite where nothing was said and something was heard."""
        if self.reference_length == 0:
            return math.inf if self.errors else 0.0
        return self.errors / self.reference_length


def score_clip(clip: Clip, hypothesis: str) -> Score:
    """Score a transcript of a clip against its closest reference; for non-speech, every word is an error."""
    if clip.language is None or clip.kind == "non-speech":
        return Score(invented_words(hypothesis), 0)
    language, digits = clip.language, clip.kind == "digits"
    heard = units(hypothesis, language, digit_by_digit=digits)
    said = [units(reference, language, digit_by_digit=digits) for reference in clip.references]
    return min((score_units(reference, heard) for reference in said), key=lambda score: score.errors)


def score_units(said: Sequence[str], heard: Sequence[str]) -> Score:
    """The fewest substitutions, deletions and insertions of units that turn what was said into what was heard."""
    alignment = jiwer.process_words(" ".join(said), " ".join(heard))
    return Score(alignment.substitutions + alignment.deletions + alignment.insertions, len(said))


def score_ending(clip: Clip, hypothesis: str, count: int) -> Score:
    """Errors in the last units of a clip, against its closest reference: units of the reference that were not heard as
    they are, and what was heard after the last of them."""
    heard = units(hypothesis, clip.language or "")
    said = [units(reference, clip.language or "") for reference in clip.references]
    return min((_score_ending(reference, heard, count) for reference in said), key=lambda score: score.errors)


def _score_ending(said: Sequence[str], heard: Sequence[str], count: int) -> Score:
    first = max(0, len(said) - count)
    [chunks] = jiwer.process_words(" ".join(said), " ".join(heard)).alignments
    errors = 0
    for chunk in chunks:
        if chunk.type == "insert":
            errors += (chunk.hyp_end_idx - chunk.hyp_start_idx) * (chunk.ref_start_idx > first)
        elif chunk.type != "equal":
            errors += max(0, chunk.ref_end_idx - max(chunk.ref_start_idx, first))
    return Score(errors, len(said) - first)


def total(scores: Iterable[Score]) -> Score:
    """The score of a set, from those of its clips."""
    listed = list(scores)
    return Score(sum(score.errors for score in listed), sum(score.reference_length for score in listed))


@dataclass(frozen=True)
class Result:
    """What a system made of a clip. failure: what it raised, which is scored as having heard nothing."""

    clip: Clip
    hypothesis: str
    failure: str | None
    score: Score


@dataclass(frozen=True)
class Run:
    """One model on one system. wall_s: for all the clips, without loading."""

    model: str
    system: str
    results: tuple[Result, ...]
    wall_s: float

    @property
    def audio_s_per_s(self) -> float:
        return sum(result.clip.duration_s for result in self.results) / self.wall_s

    def scores(self) -> dict[Group, Score]:
        """Score by group, in the order of a table."""
        groups = sorted({group for result in self.results for group in result.clip.groups})
        return {
            group: total(result.score for result in self.results if group in result.clip.groups) for group in groups
        }


def score_text(clip: Clip, text: str) -> Result:
    return Result(clip, text.strip(), None, score_clip(clip, text))


def score_failure(clip: Clip, failure: str) -> Result:
    return Result(clip, "", failure, score_clip(clip, ""))


def units(text: str, language: str, *, digit_by_digit: bool = False) -> list[str]:
    """What is compared of a text, normalised: its words, or its characters in languages written without spaces.

    digit_by_digit: take numbers apart, for English that is digits read out: 415, "4-1-5", "four one five" are alike.
    """
    if language in CHARACTER_LANGUAGES:
        folded = _to_simplified()(text) if language == "zh" else text
        return [character for character in unicodedata.normalize("NFKC", folded).lower() if _is_spoken(character)]
    if language != "en":
        return str(_basic()(text)).split()
    if not digit_by_digit:
        return str(_english()(text)).split()
    spelt_out = re.sub(r"[0-9]", lambda digit: f" {DIGITS[int(digit[0])]} ", text)  # keeps the zeros of 0296
    return re.sub(r"(\d)", r" \1 ", re.sub(r"\bone\b", "1", _english()(spelt_out))).split()


def invented_words(text: str) -> int:
    """Words heard where nobody spoke; an ideograph or kana counts as one, and labels such as [Music] count too."""
    return sum(any(map(str.isalnum, word)) for word in IDEOGRAPH.sub(r" \g<0> ", text).split())


def _is_spoken(character: str) -> bool:
    """Whether a character is anything but punctuation, a symbol, a blank or a control character."""
    return unicodedata.category(character)[0] in "LMN"


# The two libraries below leave the files that they read on loading to the garbage collector.


@functools.cache
def _english() -> Callable[[str], str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        from whisper.normalizers import EnglishTextNormalizer

        normalizer: Callable[[str], str] = EnglishTextNormalizer()  # type: ignore[no-untyped-call]
    return normalizer


@functools.cache
def _basic() -> Callable[[str], str]:
    from whisper.normalizers import BasicTextNormalizer

    return BasicTextNormalizer()


@functools.cache
def _to_simplified() -> Callable[[str], str]:
    from zhconv.zhconv import convert

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        convert("", "zh-hans")  # type: ignore[no-untyped-call]
    return functools.partial(convert, locale="zh-hans")
