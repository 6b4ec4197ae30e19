"""Tokens against openai-whisper's own tokenizer."""

from __future__ import annotations

from typing import Any

import pytest
import whisper.tokenizer

from asr.checkpoint.vocabulary import published_vocabulary
from asr.errors import UnsupportedArchitectureError, UnsupportedLanguageError, UnsupportedTaskError
from asr.tokenizer import Tokenizer, text_token_count

# openai-whisper never closes its vocabulary file.
pytestmark = pytest.mark.filterwarnings("ignore:.*tiktoken:pytest.PytestUnraisableExceptionWarning")

VOCABULARIES = {  # vocabulary size → how openai-whisper calls it
    51_864: {"multilingual": False, "num_languages": 99},
    51_865: {"multilingual": True, "num_languages": 99},
    51_866: {"multilingual": True, "num_languages": 100},
}
TEXTS = [
    "",
    " ",
    " It was the best of times, it was the worst of times.",
    "  two  spaces \t\n\n lines \r\n end  ",
    "I'll say it's 'quoted', we've DON'T",
    " Être déçu à Zürich, señor; naïve café – “ja”…",
    "cafe\u0301 is not café",
    "他说：今天天气很好。",
    "こんにちは、世界",
    "Здравствуйте, мир! Γειά",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    " 🙂👩‍👩‍👧‍👦 🇨🇭",
    " 3,141.59 and 1234567890",
    "<|endoftext|><|startoftranscript|><|en|>",
    "♪♪♪ [MUSIC] (laughs)",
    "\x00\x7f\ufffd",
]


@pytest.fixture(scope="module", params=VOCABULARIES)
def n_vocab(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def tokenizer(n_vocab: int) -> Tokenizer:
    vocabulary = published_vocabulary(n_vocab)
    assert vocabulary is not None
    return Tokenizer(vocabulary, n_vocab)


@pytest.fixture(scope="module")
def reference(n_vocab: int) -> Any:
    return whisper.tokenizer.get_tokenizer(**VOCABULARIES[n_vocab])


@pytest.fixture(scope="module")
def english() -> Tokenizer:
    return Tokenizer(published_vocabulary(51_864) or [], 51_864)


@pytest.fixture(scope="module")
def multilingual() -> Tokenizer:
    return Tokenizer(published_vocabulary(51_865) or [], 51_865)


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_and_has_the_tokens_of_the_reference(tokenizer: Tokenizer, reference: Any, text: str) -> None:
    tokens = tokenizer.encode(text)

    assert tokens == reference.encode(text, disallowed_special=())
    assert tokenizer.decode(tokens) == text


def test_every_text_token_has_the_bytes_of_the_reference(tokenizer: Tokenizer, reference: Any) -> None:
    for token in range(tokenizer.eot):
        assert tokenizer.decode_bytes([token]) == reference.encoding.decode_single_token_bytes(token)


def test_special_tokens(tokenizer: Tokenizer, reference: Any) -> None:
    names = ["eot", "sot", "translate", "transcribe", "sot_lm", "sot_prev", "no_speech", "no_timestamps"]
    names.append("timestamp_begin")

    assert {name: getattr(tokenizer, name) for name in names} == {name: getattr(reference, name) for name in names}
    assert tokenizer.n_vocab == reference.encoding.n_vocab
    assert tokenizer.is_multilingual == (tokenizer.n_vocab != 51_864)


def test_languages_in_token_order(tokenizer: Tokenizer, reference: Any) -> None:
    known = tuple(whisper.tokenizer.LANGUAGES)[: reference.num_languages]

    assert tokenizer.languages == (known if tokenizer.is_multilingual else ("en",))
    assert list(tokenizer.language_tokens) == [reference.to_language_token(language) for language in known]


def test_every_language_token(tokenizer: Tokenizer, reference: Any) -> None:
    for language in tokenizer.languages:
        assert tokenizer.language_token(language) == reference.to_language_token(language)


def test_non_speech_tokens(tokenizer: Tokenizer, reference: Any) -> None:
    assert tokenizer.non_speech_tokens == reference.non_speech_tokens


def test_a_transcript_may_hold_text_and_the_end_only(tokenizer: Tokenizer, reference: Any) -> None:
    allowed = set(range(tokenizer.n_vocab)) - set(tokenizer.suppressed_tokens)

    assert allowed == set(range(tokenizer.eot + 1)) - set(reference.non_speech_tokens)
    assert tokenizer.suppressed_at_start == (*reference.encode(" "), reference.eot)


def test_special_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    hello = tokenizer.encode(" hello")

    assert tokenizer.decode([tokenizer.sot, *hello, tokenizer.timestamp_begin, tokenizer.eot]) == " hello"


def test_a_character_split_over_tokens(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("𓀀")
    assert len(tokens) > 1

    assert tokenizer.decode(tokens) == "𓀀"
    assert b"".join(tokenizer.decode_bytes([token]) for token in tokens) == "𓀀".encode()
    assert tokenizer.decode(tokens[:-1]) == "\ufffd"
    assert tokenizer.decode(tokens[1:]).strip("\ufffd") == ""


@pytest.mark.parametrize("task", ["transcribe", "translate"])
@pytest.mark.parametrize("language", ["en", "zh", "su"])
def test_what_a_multilingual_model_is_told(multilingual: Tokenizer, language: str, task: str) -> None:
    reference = whisper.tokenizer.get_tokenizer(multilingual=True, language=language, task=task)

    told = [multilingual.sot, *multilingual.task_tokens(language, task)]
    assert told == list(reference.sot_sequence_including_notimestamps)


def test_what_an_english_model_is_told(english: Tokenizer) -> None:
    reference = whisper.tokenizer.get_tokenizer(multilingual=False)

    told = [english.sot, *english.task_tokens("en", "transcribe")]
    assert told == list(reference.sot_sequence_including_notimestamps)


def test_an_english_model_cannot_translate(english: Tokenizer) -> None:
    with pytest.raises(UnsupportedTaskError, match="translate") as caught:
        english.task_tokens("en", "translate")
    assert caught.value.param == "task"


@pytest.mark.parametrize("language", ["de", "yue", "", "english"])
def test_an_english_model_knows_english_only(english: Tokenizer, language: str) -> None:
    with pytest.raises(UnsupportedLanguageError, match="English only") as caught:
        english.language_token(language)
    assert caught.value.param == "language"
    assert repr(language) in str(caught.value)


@pytest.mark.parametrize("language", ["yue", "xx", "", "German", "EN"])
def test_languages_that_a_model_does_not_know(multilingual: Tokenizer, language: str) -> None:
    with pytest.raises(UnsupportedLanguageError, match=f"'{language}'.*99 languages"):
        multilingual.task_tokens(language, "transcribe")


def test_cantonese_came_with_large_v3() -> None:
    tokenizer = Tokenizer(published_vocabulary(51_866) or [], 51_866)

    assert len(tokenizer.languages) == 100
    assert tokenizer.language_token("yue") == tokenizer.translate - 1 == 50_358


@pytest.mark.parametrize("n_vocab", [0, 50_257, 51_863, 51_867])
def test_no_other_vocabulary_is_whispers(n_vocab: int) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=str(n_vocab)):
        text_token_count(n_vocab)
