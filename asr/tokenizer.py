"""Text ↔ tokens, and the special tokens by which a Whisper model is told what to do.

Every Whisper vocabulary is one of two byte-pair vocabularies (GPT-2's for English-only models, 50,256 tokens; the
multilingual one, 50,257) followed by special tokens whose ids follow from the size of the vocabulary. A byte-pair merge
has the id of its rank, so the bytes of the tokens are all that encoding needs, whatever file they came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import tiktoken

from asr.errors import UnsupportedArchitectureError, UnsupportedLanguageError, UnsupportedTaskError
from asr.languages import LANGUAGES

SPLIT_PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""  # GPT-2's
ENGLISH_VOCABULARY = 51_864
TASKS = ("transcribe", "translate")
TIMESTAMPS = 1501  # 0.00 s to 30.00 s by 0.02 s
BRACKETS = '"#()*+/:;<=>@[\\]^_`{|}~「」『』'
NOTATION = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪"
MUSIC = "♩♪♫♬♭♮♯"  # each is several tokens, of which the first is enough


def text_token_count(n_vocab: int, path: str = "vocabulary") -> int:
    """How many of a vocabulary's tokens are text.

    Raises:
        UnsupportedArchitectureError: no Whisper model has a vocabulary of this size.
    """
    if n_vocab == ENGLISH_VOCABULARY:
        return 50_256
    if n_vocab in (51_865, 51_866):
        return 50_257
    raise UnsupportedArchitectureError(path, f"a vocabulary of {n_vocab} tokens is not one of Whisper's")


class Tokenizer:
    """The tokens of one model.

    vocabulary: bytes of every text token, by id; n_vocab: text and special tokens together.
    """

    def __init__(self, vocabulary: Sequence[bytes], n_vocab: int) -> None:
        self.is_multilingual = n_vocab != ENGLISH_VOCABULARY
        self.eot = text_token_count(n_vocab)
        self.sot = self.eot + 1
        language_count = n_vocab - self.eot - TIMESTAMPS - 8  # the eight tokens that are named here
        self.languages = tuple(LANGUAGES)[:language_count] if self.is_multilingual else ("en",)
        self.translate = self.sot + 1 + language_count
        self.transcribe = self.translate + 1
        self.sot_lm = self.translate + 2
        self.sot_prev = self.translate + 3
        self.no_speech = self.translate + 4
        self.no_timestamps = self.translate + 5
        self.timestamp_begin = self.translate + 6
        self.n_vocab = n_vocab
        self._encoding = tiktoken.Encoding(
            name=f"whisper-{n_vocab}",
            pat_str=SPLIT_PATTERN,
            mergeable_ranks={token: rank for rank, token in enumerate(vocabulary)},
            special_tokens={},
        )

    def encode(self, text: str) -> list[int]:
        return self._encoding.encode_ordinary(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the text tokens among these; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", errors="replace")

    def decode_bytes(self, tokens: Sequence[int]) -> bytes:
        return self._encoding.decode_bytes([token for token in tokens if token < self.eot])

    def language_token(self, language: str) -> int:
        """
        Raises:
            UnsupportedLanguageError: the model has no token for this code.
        """
        if language not in self.languages:
            raise UnsupportedLanguageError(language, len(self.languages))
        return self.sot + 1 + self.languages.index(language)

    def task_tokens(self, language: str, task: str) -> list[int]:
        """What follows the start-of-transcript token: language and task where the model has them, no timestamps.

        Raises:
            UnsupportedLanguageError, UnsupportedTaskError: the model cannot do it.
        """
        language_token = self.language_token(language)
        if task not in (TASKS if self.is_multilingual else TASKS[:1]):
            raise UnsupportedTaskError(task)
        if not self.is_multilingual:  # has no language and task tokens
            return [self.no_timestamps]
        return [language_token, self.transcribe if task == "transcribe" else self.translate, self.no_timestamps]

    @cached_property
    def language_tokens(self) -> range:
        return range(self.sot + 1, self.translate)

    @cached_property
    def non_speech_tokens(self) -> tuple[int, ...]:
        """Tokens of speaker tags, annotations and music, which are not spoken: openai-whisper's set, by its rule."""
        found = {self.encode(" -")[0], self.encode(" '")[0]}  # in the middle of words they stay
        for symbol in [*BRACKETS, *NOTATION.split(), *MUSIC]:
            for tokens in (self.encode(symbol), self.encode(" " + symbol)):
                if len(tokens) == 1 or symbol in MUSIC:
                    found.add(tokens[0])
        return tuple(sorted(found))

    @cached_property
    def suppressed_tokens(self) -> tuple[int, ...]:
        """Never to be predicted in a transcript without timestamps: non-speech, and every special token but the end."""
        return (*self.non_speech_tokens, *range(self.sot, self.n_vocab))

    @cached_property
    def suppressed_at_start(self) -> tuple[int, ...]:
        """Not to be predicted as the first token: a blank, or the end."""
        return (self.encode(" ")[0], self.eot)
