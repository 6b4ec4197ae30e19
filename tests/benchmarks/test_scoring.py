"""Exact error counts for texts that are made up here, and which row of a table a clip belongs to."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from benchmarks.scoring import Run, Score, invented_words, score_clip, score_failure, score_text, total, units
from benchmarks.speech_set import Clip, SpeechSetError, read_speech_set

CLIP = Clip(
    id="a",
    path=Path("a.wav"),
    text="",
    alt_text=None,
    language="en",
    duration_s=3.0,
    kind="read",
    confidence="high",
)


def clip(text: str, language: str | None = "en", **changes: object) -> Clip:
    return dataclasses.replace(CLIP, text=text, language=language, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("He paid five hundred and twenty one dollars.", "he paid $521"),
        ("TWENTY FIVE SHIPS", "25 ships."),
        ("The colour of the theatre", "the color of the theater"),
        ("Mister Quilter and Missus Smith", "Mr. Quilter and Mrs. Smith"),
        ("I'm sure they won't", "I am sure they will not"),
        ("um it is uh here", "It is here."),
        ("well, known!", "Well known"),
    ],
)
def test_spellings_of_the_same_english_words_are_alike(said: str, heard: str) -> None:
    assert units(said, "en") == units(heard, "en")
    assert score_clip(clip(said), heard).errors == 0


def test_substitutions_deletions_and_insertions_count_one_each() -> None:
    said = clip("the cat sat on the mat")
    assert score_clip(said, "The cat sat on the mat.") == Score(0, 6)
    assert score_clip(said, "the dog sat on the mat") == Score(1, 6)
    assert score_clip(said, "the cat sat on mat") == Score(1, 6)
    assert score_clip(said, "the cat sat there on the mat") == Score(1, 6)
    assert score_clip(said, "a dog sat there on mat") == Score(4, 6)


def test_an_empty_hypothesis_misses_every_word() -> None:
    assert score_clip(clip("go forward ten meters"), " ") == Score(4, 4)
    assert score_clip(clip("你好吗", "zh"), "") == Score(3, 3)


def test_a_rate_above_one_is_possible() -> None:
    assert score_clip(clip("no"), "no no no") == Score(2, 1)
    assert score_clip(clip("no"), "no no no").rate == 2.0


def test_digits_are_compared_one_by_one() -> None:
    said = clip("four one five zero two nine six", kind="digits")
    assert score_clip(said, "4150296") == Score(0, 7)
    assert score_clip(said, "4-1-5-0-2-9-6.") == Score(0, 7)
    assert score_clip(said, "415, 0296") == Score(0, 7)
    assert score_clip(said, "4150297") == Score(1, 7)
    assert score_clip(said, "four one five oh two nine") == Score(1, 7)


def test_mandarin_counts_characters_without_punctuation_and_spaces() -> None:
    assert units("你好， 世界！ＡＢ", "zh") == ["你", "好", "世", "界", "a", "b"]
    assert score_clip(clip("你好世界", "zh"), "你好，世间。") == Score(1, 4)


def test_traditional_characters_are_folded_without_changing_the_words() -> None:
    assert score_clip(clip("发现这个软件", "zh"), "發現這個軟件") == Score(0, 6)
    assert score_clip(clip("发现这个软件", "zh"), "發現這個軟體") == Score(1, 6)


def test_japanese_is_not_folded() -> None:
    assert units("電柱に。 デンキュウ", "ja") == ["電", "柱", "に", "デ", "ン", "キ", "ュ", "ウ"]
    assert score_clip(clip("電気", "ja"), "电気") == Score(1, 2)


def test_other_languages_keep_their_diacritics() -> None:
    assert score_clip(clip("El más poderoso, ¿no?", "es"), "el más poderoso no") == Score(0, 4)
    assert score_clip(clip("El más poderoso", "es"), "el mas poderoso") == Score(1, 3)
    assert score_clip(clip("Hände", "de"), "hande") == Score(1, 1)


def test_the_closer_of_two_references_counts() -> None:
    said = clip("the old gray cat", alt_text="that very old grey cat")
    assert score_clip(said, "The old grey cat") == Score(0, 4)
    assert score_clip(said, "That very old grey dog") == Score(1, 5)


def test_a_set_is_scored_by_its_errors_over_its_words() -> None:
    short, long = Score(1, 1), Score(1, 9)
    assert total([short, long]) == Score(2, 10)
    assert total([short, long]).rate == 0.2  # the mean of the two rates would be 0.56
    assert total([]) == Score(0, 0)


def test_a_run_is_scored_by_group_in_the_order_of_a_table() -> None:
    results = (
        score_text(clip("", None, kind="non-speech"), "thank you"),
        score_text(clip("one", kind="digits"), "1"),
        score_text(clip("the cat sat"), "the cat sat"),
        score_failure(clip("on the mat"), "no audio"),
        score_text(clip("ice cream", kind="noisy"), "ice scream"),
        score_text(clip("你好", "zh"), "您好"),
    )
    scores = Run("base", "int8", results, wall_s=6.0).scores()
    assert [(group.name, score) for group, score in scores.items()] == [
        ("**English**, clips under 60 s, noisy ones included", Score(4, 8)),
        ("**Mandarin**, clips under 60 s, noisy ones included", Score(1, 2)),
        ("English, clean", Score(3, 6)),
        ("Mandarin, clean", Score(1, 2)),
        ("English noisy", Score(1, 2)),
        ("English digits and commands", Score(0, 1)),
        ("non-speech: invented words", Score(2, 0)),
    ]
    assert Run("base", "int8", results, wall_s=6.0).audio_s_per_s == 3.0


def test_rate_where_nothing_was_said() -> None:
    assert Score(0, 0).rate == 0.0
    assert math.isinf(Score(3, 0).rate)


@pytest.mark.parametrize(
    ("heard", "words"),
    [
        ("", 0),
        (" ... ", 0),
        ("Thank you.", 2),
        ("um", 1),
        ("[Music]", 1),
        ("it's - here", 2),
        ("谢谢观看", 4),
        ("OK 谢谢", 3),
    ],
)
def test_every_word_heard_in_non_speech_is_invented(heard: str, words: int) -> None:
    assert invented_words(heard) == words
    assert score_clip(clip("", None, kind="non-speech"), heard) == Score(words, 0)


@pytest.mark.parametrize(
    ("changes", "group"),
    [
        ({}, "English, clean"),
        ({"kind": "telephony"}, "English, clean"),
        ({"confidence": "medium"}, "English, text uncertain"),
        ({"kind": "noisy"}, "English noisy"),
        ({"kind": "digits"}, "English digits and commands"),
        ({"kind": "command", "confidence": "medium"}, "English digits and commands"),
        ({"kind": "long", "duration_s": 200.0}, "long recording a"),
        ({"duration_s": 60.0}, "long recording a"),
        ({"language": "zh"}, "Mandarin, clean"),
        ({"language": "zh", "kind": "broadcast", "confidence": "medium"}, "Mandarin, text uncertain"),
        ({"language": "zh", "kind": "noisy"}, "Mandarin noisy"),
        ({"language": "sv"}, "Swedish"),
        ({"language": None, "kind": "non-speech"}, "non-speech: invented words"),
    ],
)
def test_group_of_a_clip(changes: dict[str, object], group: str) -> None:
    assert dataclasses.replace(CLIP, **changes).group.name == group  # type: ignore[arg-type]


def test_reading_a_speech_set(tmp_path: Path) -> None:
    entry = {"id": "b", "file": "b.wav", "text": "Hi", "language": "en", "duration_s": 2, "kind": "read"}
    lines = [json.dumps({**entry, "confidence": "high", "alt_text": "Hey", "sha256": "0"}), ""]
    (tmp_path / "manifest.jsonl").write_text("\n".join(lines))
    with pytest.raises(SpeechSetError, match=r"b\.wav: named by .*manifest\.jsonl:1"):
        read_speech_set(tmp_path)
    (tmp_path / "b.wav").touch()
    assert read_speech_set(tmp_path) == [Clip("b", tmp_path / "b.wav", "Hi", "Hey", "en", 2.0, "read", "high")]


def test_a_missing_speech_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpeechSetError, match=r"nowhere/manifest\.jsonl"):
        read_speech_set(tmp_path / "nowhere")


def test_a_manifest_line_that_lacks_a_field_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.jsonl").write_text('\n{"id": "b"}\n')
    with pytest.raises(SpeechSetError, match=r"manifest\.jsonl:2: not a clip: KeyError\('language'\)"):
        read_speech_set(tmp_path)
