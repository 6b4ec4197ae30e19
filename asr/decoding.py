"""The rules of greedy and sampled decoding, in which each row has its own prompt, language, task and bounds.

They are those of openai-whisper's `decoding.py` without timestamps: non-speech and special tokens are never said, the
first token is neither a blank nor the end, and at temperature 0 the likeliest token is taken.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from asr.errors import AsrError, RecognitionError
from asr.model import Dims
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions, Recognition

MAX_TOKENS_PER_S = 25.0
"""Far above speech in any script, far below what a model says that repeats itself until it is stopped."""
MIN_TOKEN_BOUND = 20


@dataclass(eq=False)
class Row:
    """One utterance on its way through the decoder.

    language: "" until it is heard; prefix: what the decoder reads first, as far as that is known; sot_index: place in
    it of the start of the transcript; bound: tokens that it may say at most; read: tokens of the prefix that were
    read; beside: rows that it was decoded together with, itself included, summed over its steps.
    """

    options: DecodingOptions
    language: str
    prefix: list[int]
    sot_index: int
    bound: int
    read: int = 0
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    tokens: list[int] = field(default_factory=list)
    sum_logprob: float = 0.0
    no_speech_prob: float = 0.0
    complete: bool = False
    error: AsrError | None = None
    steps: int = 0
    beside: int = 0

    @property
    def next_token(self) -> int:
        """What the decoder reads next."""
        return self.prefix[self.read] if self.read < len(self.prefix) else self.tokens[-1]

    @property
    def ended(self) -> bool:
        return self.complete or self.error is not None or len(self.tokens) >= self.bound


class DecodingRules:
    """What a row reads before it speaks, and what it says next."""

    def __init__(self, tokenizer: Tokenizer, dims: Dims, device: torch.device) -> None:
        self._tokenizer = tokenizer
        self._dims = dims
        self._suppressed = torch.tensor(tokenizer.suppressed_tokens, device=device)
        self._not_first = torch.tensor(tokenizer.suppressed_at_start, device=device)

    def row(self, options: DecodingOptions, language: str, seconds: float) -> Row:
        """A row that has said nothing yet. language: "" where the row is to hear it; seconds: of audio, which bound
        its tokens.
        """
        tokenizer = self._tokenizer
        if not tokenizer.is_multilingual:
            language = "en"
        longest = self._dims.n_text_ctx // 2
        previous: list[int] = []
        if options.prompt.strip():
            previous = [tokenizer.sot_prev, *tokenizer.encode(" " + options.prompt.strip())[1 - longest :]]
        told = tokenizer.task_tokens(language or "en", options.task)
        prefix = [*previous, tokenizer.sot, *(told if language else ())]
        room = self._dims.n_text_ctx - len(previous) - 1 - len(told)
        bound = min(MIN_TOKEN_BOUND + int(seconds * MAX_TOKENS_PER_S), longest, room)
        return Row(options, language, prefix, sot_index=len(previous), bound=bound)

    def likeliest_language(self, after_start: Tensor) -> str:
        """Of logits after the start of a transcript, (vocab,)."""
        candidates = self._tokenizer.language_tokens
        return self._tokenizer.languages[int(after_start[candidates.start : candidates.stop].argmax())]

    def choose(self, logits: Tensor, rows: Sequence[Row]) -> None:
        """Give each row its next token, or its end, or an error where the logits are not numbers; rows that have yet to
        read some of their prefix have what they wanted to know of it. Changes logits, (rows, vocab) float32.
        """
        for row, after in zip(rows, logits, strict=True):
            if row.read < len(row.prefix):
                self._listen(row, after)
        logits[:, self._suppressed] = -torch.inf
        logprobs = torch.log_softmax(logits, dim=-1)
        chosen = likeliest(logprobs)
        sound = logprobs.gather(1, chosen[:, None])[:, 0].isfinite().tolist()
        speaks = [row.read == len(row.prefix) for row in rows]
        for index, row in enumerate(rows):
            if row.options.temperature > 0 and sound[index] and speaks[index]:
                probabilities = torch.softmax(logits[index] / row.options.temperature, dim=-1).cpu()
                chosen[index] = torch.multinomial(probabilities, 1, generator=row.generator)[0]
        said = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
        for index, (row, token, logprob) in enumerate(zip(rows, chosen.tolist(), said, strict=True)):
            if not speaks[index]:
                continue
            if not sound[index]:
                row.error = RecognitionError("the model's output is not a number")
                continue
            row.sum_logprob += logprob
            if token == self._tokenizer.eot:
                row.complete = True
            else:
                row.tokens.append(token)

    def _listen(self, row: Row, logits: Tensor) -> None:
        """Read a token of the prefix. logits: (vocab,) after it; where a row will speak, they are changed."""
        if row.read == row.sot_index:
            row.no_speech_prob = float(torch.softmax(logits, dim=-1)[self._tokenizer.no_speech])
            if not row.language:
                row.language = self.likeliest_language(logits)
                row.prefix += self._tokenizer.task_tokens(row.language, row.options.task)
        row.read += 1
        if row.read == len(row.prefix):
            logits[self._not_first] = -torch.inf

    def recognition(self, row: Row) -> Recognition:
        """What an ended row has said."""
        text = self._tokenizer.decode(row.tokens)
        return Recognition(
            text=text,
            tokens=tuple(row.tokens),
            language=row.language,
            avg_logprob=row.sum_logprob / (len(row.tokens) + 1),
            no_speech_prob=row.no_speech_prob,
            compression_ratio=compression_ratio(text),
            temperature=row.options.temperature,
            complete=row.complete,
        )


def likeliest(scores: Tensor) -> Tensor:
    """(rows, vocab) → (rows,) int64."""
    if scores.device.type == "cpu":
        return torch.from_numpy(scores.numpy().argmax(-1))  # PyTorch's own takes ten times as long there
    return scores.argmax(-1)


def compression_ratio(text: str) -> float:
    content = text.encode()
    return len(content) / len(zlib.compress(content))
