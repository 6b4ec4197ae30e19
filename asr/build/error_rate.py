"""Word error rate for choosing between precisions; `benchmarks.scoring` has the one for publishing."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from asr.errors import ArtefactError

CHARACTER_LANGUAGES = ("zh", "ja", "yue", "th", "lo", "my", "km")  # written without spaces between words


def require_jiwer() -> None:
    """
    Raises:
        ArtefactError: jiwer is not installed.
    """
    try:
        import jiwer  # noqa: F401
    except ImportError as error:
        raise ArtefactError("mixed precision", "needs jiwer: pip install rayscribe[precision]") from error


def error_rate(texts: Iterable[tuple[str, str, str | None]]) -> float:
    """(reference, hypothesis, language) of every recording → errors in per cent of the references' words, or characters
    in languages that do not separate words. Case and punctuation do not count.

    Raises:
        ArtefactError: jiwer is not installed.
    """
    require_jiwer()
    from jiwer import process_words

    references, hypotheses = zip(
        *((_units(reference, language), _units(heard, language)) for reference, heard, language in texts), strict=True
    )
    return 100 * float(process_words(list(references), list(hypotheses)).wer)


def _units(text: str, language: str | None) -> str:
    """Words, or characters, separated by spaces."""
    letters = "".join(
        character if unicodedata.category(character)[0] in "LMN" else " "
        for character in re.sub("['’]", "", unicodedata.normalize("NFKC", text).casefold())
    )
    units = list(re.sub(r"\s", "", letters)) if language in CHARACTER_LANGUAGES else letters.split()
    return " ".join(units)
