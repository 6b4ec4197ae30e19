"""Greedy and sampled decoding of a whole batch, in which each row has its own prompt, language, task and bounds.

The rules are those of openai-whisper's `decoding.py` without timestamps: non-speech and special tokens are never said,
the first token is neither a blank nor the end, and at temperature 0 the likeliest token is taken.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from asr.errors import RecognitionError
from asr.kv_cache import KvCache
from asr.model import Dims
from asr.session import Session
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions, Recognition

MAX_TOKENS_PER_S = 25.0
"""Far above speech in any script, far below what a model says that repeats itself until it is stopped."""
MIN_TOKEN_BOUND = 20


@dataclass(frozen=True)
class Encoded:
    """A batch that the encoder has seen.

    cross: cross-attention keys and values by input name, batch first; bias: (batch, positions), added to their
    attention scores.
    """

    cross: dict[str, Tensor]
    bias: Tensor

    def keep(self, rows: Tensor) -> Encoded:
        return Encoded({name: value[rows] for name, value in self.cross.items()}, self.bias[rows])


@dataclass
class Row:
    """One utterance on its way through the decoder."""

    options: DecodingOptions
    language: str
    prefix: list[int]
    sot_index: int
    bound: int
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    tokens: list[int] = field(default_factory=list)
    sum_logprob: float = 0.0
    no_speech_prob: float = 0.0
    complete: bool = False

    @property
    def ended(self) -> bool:
        return self.complete or len(self.tokens) >= self.bound


class BatchDecoder:
    """Decodes encoded batches with one decoder graph."""

    def __init__(self, session: Session, tokenizer: Tokenizer, dims: Dims) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._dims = dims
        self._device = session.device
        self._suppressed = torch.tensor(tokenizer.suppressed_tokens, device=self._device)
        self._not_first = torch.tensor(tokenizer.suppressed_at_start, device=self._device)

    def detect_languages(self, encoded: Encoded) -> list[str]:
        """The likeliest language of every row, from the token that follows the start of the transcript."""
        batch = len(encoded.bias)
        if not self._tokenizer.is_multilingual:
            return ["en"] * batch
        tokens = torch.full((batch, 1), self._tokenizer.sot, device=self._device)
        logits = self._run(self._cache(batch), encoded, tokens, torch.zeros_like(tokens))[0]
        language_tokens = self._tokenizer.language_tokens
        best = logits[:, 0, language_tokens.start : language_tokens.stop].argmax(-1)
        return [self._tokenizer.languages[index] for index in best.tolist()]

    def decode(
        self, encoded: Encoded, options: Sequence[DecodingOptions], languages: Sequence[str], seconds: Sequence[float]
    ) -> list[Recognition]:
        """Decode every row to its end. seconds: of audio in each row, which bound its tokens."""
        rows = [self._row(*row) for row in zip(options, languages, seconds, strict=True)]
        cache = self._cache(len(rows))
        logits = self._prefill(cache, encoded, rows)
        active = rows
        while True:
            ended = self._choose(logits, active)
            going = [index for index, end in enumerate(ended) if not end]
            if not going:
                return [self._recognition(row) for row in rows]
            if len(going) <= len(active) // 2:  # rows that ended are worth a copy of the others once they are half
                kept = torch.tensor(going, device=self._device)
                cache.keep(kept)
                encoded = encoded.keep(kept)
                active = [active[index] for index in going]
            logits = self._step(cache, encoded, active)

    def _cache(self, batch: int) -> KvCache:
        return KvCache(self._dims, batch, self._device, self._session.dtype)

    def _row(self, options: DecodingOptions, language: str, seconds: float) -> Row:
        tokenizer = self._tokenizer
        longest = self._dims.n_text_ctx // 2
        previous: list[int] = []
        if options.prompt.strip():
            previous = [tokenizer.sot_prev, *tokenizer.encode(" " + options.prompt.strip())[1 - longest :]]
        prefix = [*previous, tokenizer.sot, *tokenizer.task_tokens(language, options.task)]
        bound = min(MIN_TOKEN_BOUND + int(seconds * MAX_TOKENS_PER_S), longest, self._dims.n_text_ctx - len(prefix))
        return Row(options, language, prefix, sot_index=len(previous), bound=bound)

    def _prefill(self, cache: KvCache, encoded: Encoded, rows: Sequence[Row]) -> Tensor:
        """Run every row's prefix; → logits (batch, vocab) for the first token of the text."""
        counts = torch.tensor([len(row.prefix) for row in rows])
        tokens = torch.full((len(rows), int(counts.max())), self._tokenizer.eot)
        for index, row in enumerate(rows):
            tokens[index, : len(row.prefix)] = torch.tensor(row.prefix)
        wanted = torch.stack((torch.tensor([row.sot_index for row in rows]), counts - 1), dim=1)
        logits, new_kv = self._run(cache, encoded, tokens.to(self._device), wanted.to(self._device))
        cache.append(new_kv, counts.to(self._device))
        no_speech = torch.softmax(logits[:, 0], dim=-1)[:, self._tokenizer.no_speech]
        for row, probability in zip(rows, no_speech.tolist(), strict=True):
            row.no_speech_prob = probability
        first = logits[:, 1]
        first[:, self._not_first] = -torch.inf
        return first

    def _step(self, cache: KvCache, encoded: Encoded, rows: Sequence[Row]) -> Tensor:
        """Run every row's last token; → logits (batch, vocab)."""
        tokens = torch.tensor([[row.tokens[-1] if row.tokens else 0] for row in rows], device=self._device)
        logits, new_kv = self._run(cache, encoded, tokens, torch.zeros_like(tokens))
        cache.append(new_kv, torch.tensor([not row.ended for row in rows], device=self._device).long())
        return logits[:, 0]

    def _run(self, cache: KvCache, encoded: Encoded, tokens: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self._session.run(
            {
                "tokens": tokens,
                "past_lengths": cache.lengths,
                "logit_positions": wanted,
                "cross_bias": encoded.bias,
                **cache.tensors(),
                **encoded.cross,
            }
        )
        return outputs["logits"].float(), outputs["new_kv"]

    def _choose(self, logits: Tensor, rows: Sequence[Row]) -> list[bool]:
        """Give each row that goes on its next token; → which rows have ended. Changes logits."""
        logits[:, self._suppressed] = -torch.inf
        likeliest, log_total = logits.argmax(-1), logits.logsumexp(-1)
        if not bool(log_total.isfinite().all()):
            raise RecognitionError("the model's output is not a number")
        chosen = likeliest.tolist()
        for index, row in enumerate(rows):
            if row.options.temperature > 0 and not row.ended:
                probabilities = torch.softmax(logits[index] / row.options.temperature, dim=-1).cpu()
                chosen[index] = int(torch.multinomial(probabilities, 1, generator=row.generator))
        picked = torch.tensor(chosen, device=self._device)
        logprobs = (logits.gather(1, picked[:, None])[:, 0] - log_total).tolist()
        for row, token, logprob in zip(rows, chosen, logprobs, strict=True):
            if row.ended:
                continue
            row.sum_logprob += logprob
            if token == self._tokenizer.eot:
                row.complete = True
            else:
                row.tokens.append(token)
        return [row.ended for row in rows]

    def _recognition(self, row: Row) -> Recognition:
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


def compression_ratio(text: str) -> float:
    content = text.encode()
    return len(content) / len(zlib.compress(content))
